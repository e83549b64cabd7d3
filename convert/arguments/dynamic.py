"""The commands that begin with a dynamic model: `demo`, `paddle`, `torch`, and `all`, which takes any."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from convert import command_calls as run
from convert.arguments.shared import add_dynamic, add_format, add_labels, add_served, add_writing
from convert.from_torch.torch_routes import OPSET, OPSETS, ROUTES
from convert.programs.engines import ENGINES

if TYPE_CHECKING:
    from pipeline.launch.commands import Commands


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
        default=OPSET,
        metavar="N",
        help=f"operator set of ONNX, from {OPSETS[0]} to {OPSETS[-1]} (%(default)s)",
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
