"""The commands that tell of a model: `shapes` and `check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from convert import command_calls as run
from convert.arguments.shared import add_comparison, add_writing, whole_numbers
from convert.programs.program_feeds import BATCHES, SHAPE_LENGTHS
from convert.steps.isolation import STEP_TIMEOUT_S
from pipeline.launch.commands import add_command

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


def add_shapes(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "shapes",
        run.shapes,
        "find the shapes that TensorRT asks for, of inputs and inner tensors",
        "paddlewheel convert shapes models/mine --lengths 16,64,128 --batches 1,8 models/mine/shapes.pbtxt",
        SHAPE_LENGTHS,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="serving model, or folder of the program")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, for `tensorrt.shapes`")
    parser.add_argument(
        "--batches", type=whole_numbers, default=BATCHES, metavar="N,N,...", help="numbers of rows (1,8)"
    )


def add_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        run.check,
        "compare a serving model with its source, or two models",
        "paddlewheel convert check models/mine",
    )
    parser.add_argument(
        "model", type=Path, metavar="A", help="serving model, or the model that B is compared with"
    )
    parser.add_argument(
        "candidate", type=Path, nargs="?", metavar="B", help="Paddle program, serving model or ONNX model"
    )
    parser.add_argument(
        "--padding", default="", metavar="FEED=VALUE,...", help="feeds of B to try with padding"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.json", help="where to store the report of two models"
    )
    add_comparison(parser)
    parser.set_defaults(force=False, dry_run=False, step_timeout=STEP_TIMEOUT_S)
