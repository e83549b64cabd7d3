"""The command line of `paddlewheel convert`: its commands and their options."""

from __future__ import annotations

import argparse

from convert.arguments.dynamic import add_all, add_demo, add_paddle, add_torch
from convert.arguments.inspection import add_check, add_shapes
from convert.arguments.precision import add_precision
from convert.arguments.static import add_onnx, add_serving, add_to_onnx
from pipeline.launch.commands import OneLineParser


def create_parser() -> argparse.ArgumentParser:
    """Return a parser; `command` of its result is a function of convert.command_calls."""
    parser = OneLineParser(
        prog="paddlewheel convert",
        description="Convert models into serving models, with their outputs compared at each step.",
        epilog="Example: paddlewheel convert all ./bert-base-chinese models/mine",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    add_demo(commands)
    add_paddle(commands)
    add_torch(commands)
    add_serving(commands)
    add_onnx(commands)
    add_to_onnx(commands)
    add_precision(commands)
    add_shapes(commands)
    add_check(commands)
    add_all(commands)
    return parser
