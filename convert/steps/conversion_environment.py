"""Finds the conversion environment: a Python interpreter with the converters, which conflict with serving."""

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
    """Return the path of a Python interpreter that has the packages `needs`, by their import names.

    The candidates in order: PADDLEWHEEL_CONVERT_PYTHON; this interpreter, if it has all packages; the
    interpreter of `make convert-env`. Only this interpreter's packages are checked. Raises ConversionError if
    there is no candidate.
    """
    named = os.environ.get(CONVERT_PYTHON)
    if named:
        interpreter = shutil.which(named)
        if interpreter is None:
            raise ConversionError(
                f"{CONVERT_PYTHON} names {named!r}, which is no program; "
                "name a Python interpreter or unset it."
            )
        return interpreter
    missing = missing_packages(needs)
    if not missing:
        return sys.executable
    python = FOLDER / "bin" / "python"
    if not python.is_file():
        raise ConversionError(
            f"{', '.join(missing)} can't be imported here, and there is no conversion environment "
            f"({FOLDER if IS_CHECKOUT else CONVERT_PYTHON}); make it with `{_command(missing)}`"
            f"{_torch_remark(missing)}."
        )
    return str(python)


def missing_packages(needs: Sequence[str]) -> list[str]:
    """Return the import names of packages that this interpreter lacks. No package is imported."""
    return [name for name in needs if not _is_package(name)]


def _is_package(name: str) -> bool:
    """Return whether a package is installed. A plain folder with the package's name does not count.

    Neither does compat's `paddlenlp`, which has only PaddleNLP's tokenizers and can't convert models.
    """
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.origin is not None and SHIMS not in Path(spec.origin).parts


def require_packages(needs: Sequence[str]) -> None:
    """Raise ConversionError unless this interpreter, chosen by `conversion_python`, has all packages."""
    missing = missing_packages(needs)
    if missing:
        raise ConversionError(
            f"{sys.executable} lacks {', '.join(missing)}, which this conversion needs; run "
            f"`{_command(missing)}`{_torch_remark(missing)}."
        )


def _command(missing: Sequence[str]) -> str:
    """Return the shell command that installs these packages: `make` in a checkout, else `paddlewheel`."""
    torch = "torch" in missing
    if IS_CHECKOUT:
        return "make convert-env TORCH_INDEX=pip" if torch else "make convert-env"
    return "paddlewheel convert-env DIR --torch" if torch else "paddlewheel convert-env DIR"


def _torch_remark(missing: Sequence[str]) -> str:
    return f" ({TORCH_REMARK})" if "torch" in missing else ""


@dataclass(frozen=True)
class OlderPaddle:
    """An installed older Paddle that still writes .pdmodel files, in a folder of its own."""

    folder: Path
    version: str

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables for a process that imports the older Paddle instead of the installed one."""
        path = [str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {"PYTHONPATH": os.pathsep.join(path), "FLAGS_enable_pir_api": "0"}


def pdmodel_paddle() -> OlderPaddle:
    """Find the older Paddle that writes .pdmodel files.

    It is in the folder that PADDLEWHEEL_PDMODEL_PADDLE names; without that variable, in the folder of `make
    pdmodel-env`. Raises ConversionError if there is none.
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
