"""Helpers for the subcommands of `paddlewheel` and `paddlewheel convert`; see also `client.options`."""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from pipeline.errors import ConfigError

EXIT_MISTAKE = 2

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["OneLineParser"]


class OneLineParser(argparse.ArgumentParser):
    """An argparse parser that reports a wrong command line in one sentence, and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MISTAKE, f"{self.prog}: {message}; --help shows an example.\n")


def add_command(
    commands: Commands, name: str, command: object, help_text: str, example: str
) -> argparse.ArgumentParser:
    """Add a subcommand to a command line, and return its parser.

    command: the function that runs the subcommand; stored as `command` in the parsed namespace. help_text:
    the subcommand's line in --help. example: a command line shown by the subcommand's --help.
    """
    description = f"{help_text[0].upper()}{help_text[1:]}."
    parser = commands.add_parser(name, help=help_text, description=description, epilog=f"Example: {example}")
    parser.set_defaults(command=command)
    return parser


def require_place(option: str, file: Path) -> None:
    """Raise ConfigError if `file` can't be created because its folder is missing or not writable.

    This check runs before long work. option: the command-line option that named the file, for the message.
    """
    folder = file.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        why = "can't be written" if folder.is_dir() else "is no folder"
        raise ConfigError(f"{option} {file}: {folder} {why}; name a file in one that can be written")


def find_service_files(service: Path, config: Path | None) -> tuple[Path, Path]:
    """Return the paths of a service's script and of its config.yml. Raise ConfigError if either is missing.

    service: folder or script of a service. config: path to use instead of the config.yml beside the script.
    """
    script = service / "web_service.py" if service.is_dir() else service
    if not script.is_file():
        raise ConfigError(f"{script} is not a file; name a service's folder or its script")
    config = config or script.parent / "config.yml"
    if not config.is_file():
        raise ConfigError(f"{config} is not a file; name the configuration with --config")
    return script, config


def interpreter() -> str:
    """Return the shell command for the running Python: `python3` if that is first on PATH, else its path."""
    this_python, path_python = Path(sys.executable), shutil.which("python3")
    if path_python is not None and Path(path_python).parent == this_python.parent:
        return "python3"
    return _typed(this_python)


def _typed(program: Path) -> str:
    here = program.is_relative_to(Path.cwd())
    return shlex.quote(str(program.relative_to(Path.cwd()) if here else program))


def paddlewheel() -> str:
    """Return the shell command that runs `paddlewheel` in this environment, for printed instructions.

    The command is `paddlewheel`, a path to that program, or `PYTHON -m pipeline`.
    """
    python = interpreter()
    if python == "python3":
        return "paddlewheel"
    program = Path(sys.executable).with_name("paddlewheel")
    return _typed(program) if program.is_file() else f"{python} -m pipeline"
