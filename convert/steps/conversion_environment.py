"""The conversion environment: the interpreter that has the converters, which would conflict with serving."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from pipeline.errors import ConversionError

CONVERT_PYTHON = "PADDLEWHEEL_CONVERT_PYTHON"
PDMODEL_PADDLE = "PADDLEWHEEL_PDMODEL_PADDLE"
SHIMS = "paddlenlp_shims"
FOLDER = Path(__file__).resolve().parents[2] / ".venv-convert"
IS_CHECKOUT = (FOLDER.parent / "Makefile").is_file()
PDMODEL_FOLDER = FOLDER / "pdmodel"
TORCH_REMARK = (
    "PyTorch from pip's own index is 2.7 GB to fetch, for CUDA comes with it; the address of an index "
    "with its CPU builds in place of `pip` spares most of that"
)


def conversion_python(needs: Sequence[str]) -> str:
    """The interpreter for a step that imports the packages `needs`, by their import names.

    The one that PADDLEWHEEL_CONVERT_PYTHON names; else this one if it has them all; else that of
    `make convert-env`. Raises ConversionError when there is none.
    """
    named = os.environ.get(CONVERT_PYTHON)
    if named:
        found = shutil.which(named)
        if found is None:
            raise ConversionError(
                f"{CONVERT_PYTHON} names {named!r}, which is no program; "
                "name a Python interpreter or unset it."
            )
        return found
    missing = missing_packages(needs)
    if not missing:
        return sys.executable
    python = FOLDER / "bin" / "python"
    if not python.is_file():
        raise ConversionError(
            f"{', '.join(missing)} can't be imported here, and there is no conversion environment "
            f"({FOLDER if IS_CHECKOUT else CONVERT_PYTHON}); make it with `{_command(missing)}`"
            f"{_beside(missing)}."
        )
    return str(python)


def missing_packages(needs: Sequence[str]) -> list[str]:
    """Those of `needs` that this interpreter lacks; none of them is imported."""
    return [name for name in needs if not _is_package(name)]


def _is_package(name: str) -> bool:
    """A plain folder of that name, which the current one may well have, is a package without origin.

    compat's `paddlenlp` has PaddleNLP's tokenizers alone, which convert nothing.
    """
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and SHIMS not in Path(spec.origin).parts


def require_packages(needs: Sequence[str]) -> None:
    """Raise ConversionError unless this interpreter, chosen by `conversion_python`, has them all."""
    missing = missing_packages(needs)
    if missing:
        raise ConversionError(
            f"{sys.executable} lacks {', '.join(missing)}, which this conversion needs; run "
            f"`{_command(missing)}`{_beside(missing)}."
        )


def _command(missing: Sequence[str]) -> str:
    """Return the command that adds these packages: of a checkout its Makefile's, else ours."""
    torch = "torch" in missing
    if IS_CHECKOUT:
        return "make convert-env TORCH_INDEX=pip" if torch else "make convert-env"
    return "paddlewheel convert-env DIR --torch" if torch else "paddlewheel convert-env DIR"


def _beside(missing: Sequence[str]) -> str:
    return f" ({TORCH_REMARK})" if "torch" in missing else ""


@dataclass(frozen=True)
class OlderPaddle:
    """A Paddle that still writes .pdmodel programs, in a folder of its own."""

    folder: Path
    version: str

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a process that imports it in place of the installed one."""
        path = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "FLAGS_enable_pir_api": "0"}


def pdmodel_paddle() -> OlderPaddle:
    """The one that PADDLEWHEEL_PDMODEL_PADDLE names, else that of `make pdmodel-env`.

    Raises ConversionError when there is none.
    """
    named = os.environ.get(PDMODEL_PADDLE)
    folder = Path(named).absolute() if named else PDMODEL_FOLDER
    for distribution in metadata.distributions(name="paddlepaddle", path=[str(folder)]):
        return OlderPaddle(folder, distribution.version)
    if named:
        raise ConversionError(
            f"{PDMODEL_PADDLE} names {folder}, which holds no paddlepaddle; name a folder that "
            "`pip install --target` made, or unset it."
        )
    raise ConversionError(
        f"a .pdmodel program is written by an older Paddle, which is not there ({folder}); get it with "
        "`make pdmodel-env` (187 MB to fetch, 0.7 GB on the disk)."
    )
