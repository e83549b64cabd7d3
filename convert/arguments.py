"""The arguments of each command of `python -m convert`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from convert import commands as run
from convert.from_paddlenlp import TASKS
from convert.from_torch import OPSET as TORCH_OPSET
from convert.from_torch import OPSETS as TORCH_OPSETS
from convert.from_torch import ROUTES
from convert.isolation import STEP_TIMEOUT_S
from convert.parity import TOLERANCE
from convert.precision_routes import BOUNDS, PRECISIONS
from convert.route import ENGINES
from convert.sample_feeds import BATCHES, LENGTHS, SHAPE_LENGTHS
from convert.to_onnx import OPSET, OPSETS
from pipeline.commands import OneLineParser, add_command

if TYPE_CHECKING:
    from pipeline.commands import Commands


def create_parser() -> argparse.ArgumentParser:
    """Parses into options of which `command` is one of convert.commands."""
    parser = OneLineParser(
        prog="python -m convert",
        description="Convert models into serving models, with their outputs compared at each step.",
        epilog="Example: python -m convert demo",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_demo(commands)
    _add_paddle(commands)
    _add_torch(commands)
    _add_serving(commands)
    _add_onnx(commands)
    _add_to_onnx(commands)
    _add_precision(commands)
    _add_shapes(commands)
    _add_check(commands)
    _add_all(commands)
    return parser


def _add_demo(commands: Commands) -> None:
    parser = _add(
        commands,
        "demo",
        run.demo,
        "train the small BERT news classifier on the CPU and make its serving model",
        "python -m convert demo --out models/demo",
    )
    parser.add_argument("--out", type=Path, default=Path("models/demo"), help="folder to write (%(default)s)")


def _add_paddle(commands: Commands) -> None:
    parser = _add(
        commands,
        "paddle",
        run.paddle,
        "export a PaddleNLP model (needs `make convert-env`) or your own paddle.nn.Layer",
        "python -m convert paddle checkpoints/ernie-news build/inference; or "
        "python -m convert paddle my_model:create_model --params my_model.pdparams "
        '--input-spec "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]" build/inference',
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model (BERT, ERNIE, RoBERTa, XLM-R), or "
        "module:factory, a function or class that returns the Layer",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    _add_dynamic(parser)
    _add_labels(parser)


def _add_dynamic(parser: argparse.ArgumentParser) -> None:
    """What a model that isn't static yet may need."""
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


def _add_all(commands: Commands) -> None:
    parser = _add(
        commands,
        "all",
        run.whole,
        "make a serving model of any source, by the route that suits it",
        "python -m convert all ./bert-base-chinese models/mine",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model, Hugging Face directory, module:factory of "
        "Paddle or PyTorch, .onnx file, or folder of a Paddle program",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--engine", choices=tuple(ENGINES), default="", help="what shall run it (Paddle, where that goes)"
    )
    _add_dynamic(parser)
    _add_served(parser)


def _add_torch(commands: Commands) -> None:
    parser = _add(
        commands,
        "torch",
        run.torch,
        "convert a PyTorch model to Paddle, ONNX or TorchScript (needs `make convert-env`)",
        "python -m convert torch ./bert-base-chinese build/inference --to paddle",
    )
    parser.add_argument(
        "source", metavar="SOURCE", help="Hugging Face directory (config.json, weights), or module:factory"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--to", choices=tuple(ROUTES), help=f"what to make (the first of {', '.join(ROUTES)} that goes)"
    )
    parser.add_argument(
        "--input-spec",
        default="",
        metavar="SPEC",
        help="name:dtype[dims];... in the order of forward(); text models of transformers need none",
    )
    parser.add_argument(
        "--opset",
        type=int,
        default=TORCH_OPSET,
        metavar="N",
        help=f"operator set of ONNX, from {TORCH_OPSETS[0]} to {TORCH_OPSETS[-1]} (%(default)s)",
    )


def _add_serving(commands: Commands) -> None:
    parser = _add(
        commands,
        "serving",
        run.serving,
        "make a serving model of a Paddle inference model or an ONNX model",
        "python -m convert serving build/inference models/mine --fetch-alias logits "
        '--padding "input_ids=0,attention_mask=0" --labels bad,neutral,good --file vocab.txt',
    )
    parser.add_argument(
        "source", type=Path, metavar="MODEL", help="folder of a Paddle program or ONNX model, or a .onnx file"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    _add_served(parser)
    parser.add_argument(
        "--with-notes",
        action="store_true",
        help="take aliases, padding, labels, task, tokenizer from the notes beside the program",
    )


def _add_labels(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--labels", default="", metavar="A,B,...", help="names of the classes, in order")


def _add_served(parser: argparse.ArgumentParser) -> None:
    """What a serving model tells of its outputs and feeds, and takes along."""
    parser.add_argument(
        "--fetch-alias", action="append", default=[], metavar="NAME", help="name of an output, in their order"
    )
    parser.add_argument(
        "--padding", default=None, metavar="FEED=VALUE,...", help="feeds that may be padded; proven first"
    )
    _add_labels(parser)
    parser.add_argument(
        "--file", action="append", default=[], type=Path, metavar="FILE", help="file to copy beside the model"
    )


def _add_onnx(commands: Commands) -> None:
    parser = _add(
        commands,
        "onnx",
        run.onnx,
        "make a Paddle inference model of an ONNX model (needs `make convert-env`), or keep it to be served",
        "python -m convert onnx model.onnx build/inference",
    )
    parser.add_argument("source", type=Path, metavar="MODEL", help="a .onnx file or its folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--no-fallback", action="store_true", help="fail where it can't be a Paddle model with these outputs"
    )


def _add_to_onnx(commands: Commands) -> None:
    parser = _add(
        commands,
        "to-onnx",
        run.to_onnx,
        "make an ONNX model of an inference model or a serving model (needs `make convert-env`)",
        "python -m convert to-onnx models/demo build/onnx",
    )
    parser.add_argument("model_dir", type=Path, metavar="MODEL_DIR", help="folder of the program")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write (model.onnx)")
    parser.add_argument(
        "--opset",
        type=int,
        default=OPSET,
        metavar="N",
        help=f"operator set, from {OPSETS[0]} to {OPSETS[-1]} (%(default)s)",
    )


def _add_precision(commands: Commands) -> None:
    parser = _add(
        commands,
        "precision",
        run.precision,
        "make a serving model in fp16, bf16 or int8 of one in fp32, and tell how far it is off",
        "python -m convert precision models/mine models/mine-int8 --to int8-calibrated "
        "--calibration texts.txt --inputs held-out.txt",
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
        help="a text a line, or a .npz batch, to find the ranges for int8-calibrated; again for more",
    )
    parser.add_argument(
        "--generated-calibration", action="store_true", help="find them in random inputs, which is rough"
    )
    parser.add_argument(
        "--inputs",
        action="append",
        default=[],
        type=Path,
        metavar="FILE",
        help="the same, to compare on in place of random inputs",
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
        help=f"rows that must keep their top-1 class (with --inputs: {needed}; else 0)",
    )


def _add_shapes(commands: Commands) -> None:
    parser = _add(
        commands,
        "shapes",
        run.shapes,
        "find the shapes that TensorRT asks for, of inputs and inner tensors",
        "python -m convert shapes models/mine --lengths 16,64,128 --batches 1,8 models/mine/shapes.pbtxt",
        SHAPE_LENGTHS,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="serving model, or folder of the program")
    parser.add_argument("out", type=Path, metavar="OUT", help="file to write, for `tensorrt.shapes`")
    parser.add_argument(
        "--batches", type=_lengths, default=BATCHES, metavar="N,N,...", help="numbers of rows (1,8)"
    )
    parser.add_argument(
        "--inputs",
        action="append",
        default=[],
        type=Path,
        metavar="FILE.npz",
        help="a batch to run, an array for each input; again for more; in place of --lengths and --batches",
    )


def _add_check(commands: Commands) -> None:
    parser = add_command(
        commands,
        "check",
        run.check,
        "compare a serving model with its source, or two models",
        "python -m convert check models/mine",
    )
    parser.add_argument(
        "model", type=Path, metavar="A", help="serving model, or the model that B is compared with"
    )
    parser.add_argument(
        "candidate", type=Path, nargs="?", metavar="B", help="Paddle program, serving model or ONNX model"
    )
    parser.add_argument("--inputs", type=Path, metavar="FILE.npz", help="an array for each input of A")
    parser.add_argument(
        "--padding", default="", metavar="FEED=VALUE,...", help="feeds of B to try with padding"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE.json", help="where to store the report of two models"
    )
    _add_comparison(parser)
    parser.set_defaults(force=False, dry_run=False, step_timeout=STEP_TIMEOUT_S)


def _add(
    commands: Commands,
    name: str,
    command: run.Command,
    help_text: str,
    example: str,
    lengths: tuple[int, ...] = LENGTHS,
    *,
    tolerance: bool = True,
) -> argparse.ArgumentParser:
    """A command that writes, with the options that all such have."""
    parser = add_command(commands, name, command, help_text, example)
    _add_comparison(parser, lengths, tolerance=tolerance)
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


def _add_comparison(
    parser: argparse.ArgumentParser, lengths: tuple[int, ...] = LENGTHS, *, tolerance: bool = True
) -> None:
    parser.set_defaults(tolerance=TOLERANCE)
    if tolerance:
        parser.add_argument("--tolerance", type=float, default=TOLERANCE, help="largest |diff| (%(default)s)")
    parser.add_argument(
        "--lengths",
        type=_lengths,
        default=lengths,
        metavar="N,N,...",
        help=f"lengths tried on axes that vary ({','.join(map(str, lengths))})",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")


def _lengths(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of whole numbers like 5,16,33") from None
