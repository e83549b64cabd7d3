"""`paddlewheel convert` and `convert-env`: the commands of the package `convert`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.launch.commands import add_command

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands

CONVERSION_COMMANDS = {"convert": "convert", "convert-env": "convert.steps.new_environment"}
"""The module of each command, which parses its own arguments."""


def run_conversion(argv: Sequence[str]) -> int:
    """Run such a command by its module's name, for serving imports no conversion. Return its exit code."""
    command, *arguments = argv
    sys.argv = [f"paddlewheel {command}", *arguments]
    try:
        runpy.run_module(CONVERSION_COMMANDS[command], run_name="__main__", alter_sys=True)
    except SystemExit as exc:
        if not isinstance(exc.code, int):
            raise
        return exc.code
    return 0


def add_conversion(commands: Commands) -> None:
    """Add the commands to the list that --help prints; `run_conversion` runs them."""
    add_command(
        commands,
        "convert",
        run_conversion,
        "convert a model into a serving model, with its outputs compared at each step",
        "paddlewheel convert all ./bert-base-chinese models/mine",
    )
    add_command(
        commands,
        "convert-env",
        run_conversion,
        "make the environment with the converters, which conflict with the packages of a service",
        "paddlewheel convert-env ~/convert-env --torch",
    )
