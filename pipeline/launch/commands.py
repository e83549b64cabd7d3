"""A command line of several commands, as `paddlewheel` and `python -m convert` have it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, NoReturn

EXIT_MISTAKE = 2

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction["OneLineParser"]


class OneLineParser(argparse.ArgumentParser):
    """Tells a mistake in one sentence instead of the whole usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_MISTAKE, f"{self.prog}: {message}; --help shows an example.\n")


def add_command(
    commands: Commands, name: str, command: object, help_text: str, example: str
) -> argparse.ArgumentParser:
    """Adds a command by name; its options have what runs it as `command`."""
    description = f"{help_text[0].upper()}{help_text[1:]}."
    parser = commands.add_parser(name, help=help_text, description=description, epilog=f"Example: {example}")
    parser.set_defaults(command=command)
    return parser
