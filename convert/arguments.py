"""The command line of `paddlewheel convert`: its commands and their options."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from convert import command_calls as run
from convert.command_calls import Command
from convert.from_paddlenlp.paddlenlp_source import TASKS
from convert.from_torch.torch_routes import ROUTES, TORCH_OPSET, TORCH_OPSETS
from convert.paddle_onnx.paddle2onnx_step import OPSET, OPSETS
from convert.precision.precisions import BOUNDS, PRECISIONS
from convert.programs.engines import ENGINES
from convert.programs.program_feeds import BATCHES, LENGTHS, SHAPE_LENGTHS
from convert.proof.parity_report import TOLERANCE
from convert.result import FORMATS, TRITON
from convert.steps.isolation import STEP_TIMEOUT_S
from pipeline.launch.commands import OneLineParser, add_command

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


def add_serving(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "serving",
        run.serving,
        "make a serving model of a Paddle inference model or an ONNX model",
        "paddlewheel convert serving build/inference models/mine --fetch-alias logits "
        '--padding "input_ids=0,attention_mask=0" --labels bad,neutral,good --file vocab.txt',
    )
    parser.add_argument(
        "source", type=Path, metavar="MODEL", help="folder of a Paddle program or ONNX model, or a .onnx file"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    add_served(parser)
    parser.add_argument(
        "--with-notes",
        action="store_true",
        help="take aliases, padding, labels, task, tokenizer from the notes beside the program",
    )


def add_onnx(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "onnx",
        run.onnx,
        "make a Paddle inference model of an ONNX model (needs `make convert-env`), or keep it to be served",
        "paddlewheel convert onnx model.onnx build/inference",
    )
    parser.add_argument("source", type=Path, metavar="MODEL", help="a .onnx file or its folder")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--no-fallback", action="store_true", help="fail where it can't be a Paddle model with these outputs"
    )


def add_to_onnx(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "to-onnx",
        run.to_onnx,
        "make an ONNX model of an inference model or a serving model (needs `make convert-env`)",
        "paddlewheel convert to-onnx models/demo build/onnx",
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


def add_demo(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "demo",
        run.demo,
        "make the serving model of a small BERT news classifier",
        "paddlewheel convert demo --out models/demo",
    )
    parser.add_argument("--out", type=Path, default=Path("models/demo"), help="folder to write (%(default)s)")
    parser.add_argument(
        "--train",
        type=Path,
        metavar="FILE",
        help="train it first, on the CPU and in a minute or two, and keep its weights in FILE; without this "
        "the weights that come with the project are taken",
    )


def add_paddle(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "paddle",
        run.paddle,
        "export a PaddleNLP model (needs `make convert-env`) or your own paddle.nn.Layer",
        "paddlewheel convert paddle checkpoints/ernie-news build/inference; or "
        "paddlewheel convert paddle my_model:create_model --params my_model.pdparams "
        '--input-spec "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]" build/inference',
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model (BERT, ERNIE, RoBERTa, XLM-R), or "
        "module:factory, a function or class that returns the Layer",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    add_dynamic(parser)
    add_format(parser)
    add_labels(parser)


def add_torch(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "torch",
        run.torch,
        "convert a PyTorch model to Paddle, ONNX or TorchScript (needs `make convert-env TORCH_INDEX=...`)",
        "paddlewheel convert torch ./bert-base-chinese build/inference --to paddle",
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
    add_format(parser)


def add_all(commands: Commands) -> None:
    parser = add_writing(
        commands,
        "all",
        run.whole,
        "make a serving model of any source, by the route that suits it",
        "paddlewheel convert all ./bert-base-chinese models/mine",
    )
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model, Hugging Face directory, module:factory of "
        "Paddle or PyTorch, .onnx file, folder of a Paddle program, or a model of scikit-learn (.joblib, "
        ".pkl), LightGBM (.txt) or XGBoost (.json, .ubj)",
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to write")
    parser.add_argument(
        "--engine", choices=tuple(ENGINES), default="", help="what shall run it (Paddle, where that goes)"
    )
    parser.add_argument(
        "--int8",
        action="store_true",
        help="leave an int8 form beside it, too, calibrated on --sample; precision: auto may choose it",
    )
    add_dynamic(parser)
    add_format(parser, repository=True)
    add_served(parser)
    parser.add_argument(
        "--trust", action="store_true", help="load a .joblib or .pkl file, which runs whatever code is in it"
    )


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
