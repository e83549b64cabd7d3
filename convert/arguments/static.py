"""The commands that begin with a model in a file: `serving`, `onnx` and `to-onnx`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from convert import command_calls as run
from convert.arguments.shared import add_served, add_writing
from convert.paddle_onnx.paddle2onnx_step import OPSET, OPSETS

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


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
