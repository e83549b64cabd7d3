"""The command `precision`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from convert import command_calls as run
from convert.arguments.shared import add_writing
from convert.precision.precisions import BOUNDS, PRECISIONS
from convert.programs.engines import ENGINES

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


def add_precision(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "precision",
        run.precision,
        "make a serving model in fp16, bf16 or int8 of one in fp32, and tell how far it is off",
        "paddlewheel convert precision models/mine models/mine-int8 --to int8-calibrated "
        "--calibration texts.txt --sample held-out.txt",
        tolerance=False,  # its own is relative
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="MODEL",
        help="serving model (its description is kept) or inference model",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument("--to", required=True, choices=PRECISIONS, help="precision to make")
    parser.add_argument(
        "--engine",
        choices=tuple(ENGINES),
        default="",
        help="what shall run it (onnxruntime; for bf16 paddle)",
    )
    parser.add_argument(
        "--calibration",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="inputs to find the ranges for int8-calibrated, in a file as --sample has it; again for more",
    )
    parser.add_argument(
        "--generated-calibration", action="store_true", help="find them in random inputs, which is rough"
    )
    bounds = ", ".join(f"{to} {bounds.tolerance:g}" for to, bounds in BOUNDS.items())
    parser.add_argument(
        "--tolerance",
        dest="relative_tolerance",
        type=float,
        metavar="SHARE",
        help=f"largest |diff|, as a share of the output's largest value ({bounds})",
    )
    needed = ", ".join(f"{to} {bounds.top1_needed:g}" for to, bounds in BOUNDS.items())
    parser.add_argument(
        "--top1",
        type=float,
        metavar="SHARE",
        help=f"rows that must keep their top-1 class (with --sample: {needed}; else 0)",
    )
