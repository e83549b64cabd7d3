"""`paddlewheel convert-env DIR`: creates a conversion environment with tested versions."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from convert.steps.conversion_environment import CONVERT_PYTHON, TORCH_REMARK
from pipeline.errors import ConversionError
from pipeline.launch.commands import EXIT_MISTAKE, OneLineParser

LOCKS = Path(__file__).resolve().parents[1] / "requirements"
PIP_INDEX = "pip"


def main(argv: Sequence[str] | None = None) -> int:
    """Make the environment that the arguments name. Exit codes: 0 made, 2 it can't be made."""
    parser = OneLineParser(
        prog="paddlewheel convert-env",
        description="Make the environment with the converters, 2.3 GB, in a folder.",
        epilog="Example: paddlewheel convert-env ~/convert-env --torch",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder of the environment")
    parser.add_argument(
        "--torch",
        nargs="?",
        const=PIP_INDEX,
        metavar="INDEX",
        help=f"add PyTorch, from this package index. {TORCH_REMARK}",
    )
    arguments = parser.parse_args(argv)
    try:
        python = make_environment(arguments.folder, arguments.torch)
    except ConversionError as exc:
        sys.stderr.write(f"{exc.message}\n")
        return EXIT_MISTAKE
    sys.stdout.write(
        f"{arguments.folder} holds the conversion environment. Name it to the conversions:\n\n"
        f"  export {CONVERT_PYTHON}={shlex.quote(str(python))}\n"
    )
    return 0


def make_environment(folder: Path, torch_index: str | None = None) -> Path:
    """Make an environment, or complete one. Return its interpreter.

    Raises ConversionError where the folder holds something else, and where a package can't be installed.
    """
    folder = folder.expanduser().absolute()
    if folder.exists() and not (folder / "pyvenv.cfg").is_file() and not _is_empty_folder(folder):
        raise ConversionError(f"{folder} is not an environment, and not empty; name another folder.")
    python = folder / "bin" / "python"
    if not python.is_file():
        _run_program([sys.executable, "-m", "venv", str(folder)])
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "install"]
    _run_program([*pip, "--requirement", str(LOCKS / "convert.txt")])
    if torch_index is not None:
        # The environment has the requirements of PyTorch already; an index of PyTorch's may lack them.
        place = [] if torch_index == PIP_INDEX else ["--no-deps", "--index-url", torch_index]
        _run_program([*pip, *place, "--requirement", str(LOCKS / "torch.txt")])
    return python


def _is_empty_folder(folder: Path) -> bool:
    return folder.is_dir() and not any(folder.iterdir())


def _run_program(command: Sequence[str]) -> None:
    """Run a program with its output on the terminal."""
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise ConversionError(
            f"`{shlex.join(command)}` left with exit code {done.returncode}; see its lines above."
        )


if __name__ == "__main__":
    sys.exit(main())
