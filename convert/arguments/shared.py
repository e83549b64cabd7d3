"""Arguments that several commands have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from convert.command_calls import Command
from convert.from_paddlenlp.paddlenlp_source import TASKS
from convert.programs.program_feeds import LENGTHS
from convert.proof.parity_report import TOLERANCE
from convert.result import FORMATS, TRITON
from convert.steps.isolation import STEP_TIMEOUT_S
from pipeline.launch.commands import add_command

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands

_TOLERANCE_HELP = "largest |diff|, as a share of the output's largest value or of 1 (%(default)s)"


def add_writing(
    commands: Commands,
    name: str,
    command: Command,
    help_text: str,
    example: str,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    tolerance: bool = True,
) -> argparse.ArgumentParser:
    """Add a command that writes, with the options of all writing commands."""
    parser = add_command(commands, name, command, help_text, example)
    add_comparison(parser, lengths, tolerance=tolerance)
    parser.add_argument("--force", action="store_true", help="make it again although it is up to date")
    parser.add_argument("--dry-run", action="store_true", help="check the arguments, write nothing")
    parser.add_argument(
        "--step-timeout",
        type=float,
        default=STEP_TIMEOUT_S,
        metavar="SECONDS",
        help="longest run of a converter in the conversion environment (%(default)g)",
    )
    return parser


def add_comparison(
    parser: argparse.ArgumentParser, lengths: tuple[int, ...] = LENGTHS, *, tolerance: bool = True
) -> None:
    parser.set_defaults(tolerance=TOLERANCE)
    if tolerance:
        parser.add_argument("--tolerance", type=float, default=TOLERANCE, help=_TOLERANCE_HELP)
    parser.add_argument(
        "--lengths",
        type=whole_numbers,
        default=lengths,
        metavar="N,N,...",
        help=f"lengths tried on axes that vary ({','.join(map(str, lengths))})",
    )
    parser.add_argument(
        "--sample",
        "--inputs",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="inputs to try in place of random ones: .npz, .npy, .jsonl, .csv, an image, or a text a line; "
        "again for more",
    )
    parser.add_argument(
        "--debug", action="store_true", help="show the traceback of an error, and what libraries write"
    )


def add_format(parser: argparse.ArgumentParser, *, repository: bool = False) -> None:
    """Add --format. repository: whether a model repository may be written in place of a serving model."""
    repository_help = "; triton: a model repository of a model of texts, in place of a serving model"
    parser.add_argument(
        "--format",
        choices=(*FORMATS, TRITON) if repository else FORMATS,
        default=FORMATS[0],
        help="what a Paddle program is written as; pdmodel is for TensorRT, by an older Paddle (needs `make "
        f"pdmodel-env`){repository_help if repository else ''} (%(default)s)",
    )


def add_dynamic(parser: argparse.ArgumentParser) -> None:
    """Add the options of a dynamic model."""
    parser.add_argument("--params", type=Path, metavar="FILE.pdparams", help="weights for module:factory")
    parser.add_argument(
        "--input-spec",
        default="",
        metavar="SPEC",
        help="name:dtype[dims];... in the order of forward(); of a PaddleNLP model those it is to have",
    )
    parser.add_argument("--task", default="", choices=TASKS, help="head of a PaddleNLP model")
    parser.add_argument("--num-labels", type=int, default=0, metavar="N", help="number of its classes")
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="its configuration alone, with random weights, for trials",
    )


def add_served(parser: argparse.ArgumentParser) -> None:
    """Add the options of a serving model."""
    parser.add_argument(
        "--fetch-alias", action="append", default=[], metavar="NAME", help="name of an output, in their order"
    )
    parser.add_argument(
        "--padding", default=None, metavar="FEED=VALUE,...", help="feeds that may be padded; proven first"
    )
    add_labels(parser)
    parser.add_argument(
        "--rebatch",
        action="store_true",
        help="make an ONNX model for a fixed number of rows one for any, proven row by row",
    )
    parser.add_argument(
        "--file", action="append", default=[], type=Path, metavar="FILE", help="file to copy beside the model"
    )


def add_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--labels", default="", metavar="A,B|FILE", help="names of the classes, in order, or a file of them"
    )


def whole_numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 16,33,5") from None
