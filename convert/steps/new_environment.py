"""`paddlewheel convert-env DIR`: creates a virtual environment with tested versions of the converters."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from client.options import add_options, argument, option, parse_options
from convert.steps.conversion_environment import CONVERT_PYTHON, TORCH_REMARK
from pipeline.errors import ConversionError
from pipeline.launch.commands import EXIT_MISTAKE, OneLineParser

LOCKS = Path(__file__).resolve().parents[1] / "requirements"
PIP_INDEX = "pip"
_TABLE_PACKAGES = ("scikit-learn", "skl2onnx", "onnx", "onnxruntime", "joblib", "pandas")
_BOOSTERS = {"lightgbm", "xgboost"}
_TESTED = {"skl2onnx", "onnx", "onnxruntime", "onnxmltools", *_BOOSTERS}  # installed in the tested version
_FIRST_FOR_NUMPY_2 = (1, 4, 2)


@dataclass(frozen=True, kw_only=True)
class EnvironmentOptions:
    """Command-line options of `paddlewheel convert-env`."""

    folder: Path = argument(metavar="DIR", help="folder of the environment")
    torch: str | None = option(
        nargs="?",
        const=PIP_INDEX,
        metavar="INDEX",
        help=f"add PyTorch, from this package index. {TORCH_REMARK}",
    )
    tables: tuple[str, ...] | None = option(
        nargs="*",
        metavar="PACKAGE",
        help="only what converts models of scikit-learn, 0.6 GB, with these packages: scikit-learn==1.5.2, "
        "lightgbm, xgboost",
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Create the environment that the arguments name.

    Exit codes: 0 if it was created, 2 if it can't be created.
    """
    parser = OneLineParser(
        prog="paddlewheel convert-env",
        description="Make the environment with the converters, 2.3 GB, in a folder.",
        epilog="Example: paddlewheel convert-env ~/convert-env --torch",
    )
    add_options(parser, EnvironmentOptions)
    options = parse_options(EnvironmentOptions, parser.parse_args(argv))
    try:
        if options.tables is not None and options.torch is not None:
            raise ConversionError("--tables makes an environment without PyTorch; give it or --torch.")
        if options.tables is None:
            python = make_environment(options.folder, options.torch)
        else:
            python = make_table_environment(options.folder, options.tables)
    except ConversionError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return EXIT_MISTAKE
    sys.stdout.write(
        f"{options.folder} holds the conversion environment. Name it to the conversions:\n\n"
        f"  export {CONVERT_PYTHON}={shlex.quote(str(python))}\n"
    )
    return 0


def make_environment(folder: Path, torch_index: str | None = None) -> Path:
    """Create or complete a virtual environment with the converters in `folder`; return its interpreter.

    torch_index: the package index from which PyTorch is added; None adds no PyTorch. Raises ConversionError
    if the folder has other files, or if a package can't be installed.
    """
    python, pip = _create(folder)
    _run_program([*pip, "--requirement", str(LOCKS / "convert.txt")])
    if torch_index is not None:
        # The environment has the requirements of PyTorch already; an index of PyTorch's may lack them.
        place = [] if torch_index == PIP_INDEX else ["--no-deps", "--index-url", torch_index]
        _run_program([*pip, *place, "--requirement", str(LOCKS / "torch.txt")])
    return python


def make_table_environment(folder: Path, packages: Sequence[str]) -> Path:
    """Create a virtual environment for scikit-learn models in `folder`; return its interpreter.

    packages: pip requirements to add, such as lightgbm or scikit-learn==1.5.2. Raises ConversionError as
    `make_environment`.
    """
    names = {re.split("[=<>!~ ]", package, maxsplit=1)[0].lower() for package in packages}
    needed = [*packages, *(name for name in _TABLE_PACKAGES if name not in names)]
    if names & _BOOSTERS:
        needed.append("onnxmltools")
    if any(_is_for_numpy_1(package) for package in packages):
        needed.append("numpy<2")
    lines = (LOCKS / "convert.txt").read_text("utf-8").splitlines()
    tested = [line for line in lines if line.partition("==")[0].lower() in _TESTED - names]
    python, pip = _create(folder)
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as constraints:
        constraints.write("\n".join(tested))
        constraints.flush()
        _run_program([*pip, "--only-binary", ":all:", "--constraint", constraints.name, *needed])
    return python


def _is_for_numpy_1(package: str) -> bool:
    """Return whether a requirement names a release of scikit-learn whose binaries need NumPy 1."""
    match = re.fullmatch(r"scikit-learn *== *(\d+)\.(\d+)\.?(\d*)\w*", package, re.IGNORECASE)
    return match is not None and tuple(int(number or 0) for number in match.groups()) < _FIRST_FOR_NUMPY_2


def _create(folder: Path) -> tuple[Path, list[str]]:
    """Create a virtual environment; return its interpreter, and the pip command that installs packages.

    Raises ConversionError if the folder has other files.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and not _is_empty_folder(folder):
        raise ConversionError(f"{folder} is not an environment, and not empty; name another folder.")
    python = folder / "bin" / "python"
    if not python.is_file():
        _run_program([sys.executable, "-m", "venv", str(folder)])
    return python, [str(python), "-m", "pip", "--disable-pip-version-check", "install"]


def _is_empty_folder(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _run_program(command: Sequence[str]) -> None:
    """Run a program with its output on the terminal; raise ConversionError if it fails."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise ConversionError(
            f"`{shlex.join(command)}` left with exit code {done.returncode}; see its lines above."
        )


if __name__ == "__main__":
    sys.exit(main())
