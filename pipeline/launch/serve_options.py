"""The options of `paddlewheel serve`: Triton's flags, by their names."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.launch.commands import add_command

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


def add_serve(commands: Commands, command: Callable[[argparse.Namespace], None]) -> None:
    """Adds the command, which `command` runs."""
    parser = add_command(
        commands,
        "serve",
        command,
        "serve a Triton model repository, with Triton's flags",
        "paddlewheel serve --model-repository models",
    )
    parser.add_argument(
        "--model-repository",
        "--model-store",
        type=Path,
        action="append",
        required=True,
        metavar="DIR",
        help="folder with a folder for each model; may be given several times",
    )
    parser.add_argument("--id", default="triton", help="the server's name (%(default)s)")
    for name, port in (("http", 8000), ("grpc", 8001), ("metrics", 8002)):
        parser.add_argument(f"--{name}-port", type=int, default=port, metavar="PORT", help="(%(default)s)")
        parser.add_argument(
            f"--allow-{name}", type=yes_or_no, default=True, metavar="BOOL", help=f"open it (true): {name}"
        )
    parser.add_argument(
        "--model-control-mode",
        choices=("none", "explicit"),
        default="none",
        help="explicit: clients may load and unload models (%(default)s)",
    )
    parser.add_argument(
        "--load-model",
        action="append",
        default=[],
        metavar="NAME",
        help="with --model-control-mode=explicit: load it at the start; * for all",
    )
    parser.add_argument(
        "--exit-on-error",
        type=yes_or_no,
        default=False,
        metavar="BOOL",
        help="end where a model can't be served; false: serve the others (false)",
    )
    parser.add_argument(
        "--strict-model-config",
        type=yes_or_no,
        default=False,
        metavar="BOOL",
        help="a config.pbtxt may leave nothing out (false)",
    )
    parser.add_argument(
        "--disable-auto-complete-config", action="store_true", help="the same as --strict-model-config=true"
    )


def yes_or_no(text: str) -> bool:
    """A bool as Triton's flags have it."""
    told = text.lower()
    if told not in ("true", "false", "1", "0", "on", "off"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return told in ("true", "1", "on")
