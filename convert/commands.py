"""The commands of `paddlewheel convert`: the options of each, and the conversion that it runs."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

from client.options import add_options, argument, option, switch
from convert.from_paddlenlp.paddlenlp_source import TASKS
from convert.from_torch.torch_source import ROUTES, TORCH_OPSET, TORCH_OPSETS
from convert.paddle_onnx.paddle2onnx_step import OPSET, OPSETS
from convert.precision.precisions import BOUNDS, PRECISION_ENGINES, PRECISIONS
from convert.programs.engines import ENGINES
from convert.programs.program_feeds import BATCHES, SHAPE_LENGTHS
from convert.result import FORMATS, TRITON, Conversion, ConversionOptions, lengths_settings, parse_numbers
from pipeline.errors import ConfigError, ConversionError
from pipeline.launch.commands import OneLineParser, add_command

_OUT = {"metavar": "OUT", "help": "folder to write"}
_LABELS = {"metavar": "A,B|FILE", "help": "names of the classes, in order, or a file of them"}
_FORMAT_HELP = (
    "what a Paddle program is written as; pdmodel is for TensorRT, by an older Paddle "
    "(needs `make pdmodel-env`)"
)


@dataclass(frozen=True, kw_only=True)
class Command(ABC):
    """Base class of the commands of `paddlewheel convert`; the fields of a subclass are its options."""

    @abstractmethod
    def run(self, options: ConversionOptions) -> Conversion:
        """Run the conversion and return its result. Raises ConversionError or ParityError."""


@dataclass(frozen=True, kw_only=True)
class _DynamicModel(Command):
    """Command-line options for a model that is built by code: a Paddle Layer or a PaddleNLP model."""

    params: Path | None = option(metavar="FILE.pdparams", help="weights for module:factory")
    input_spec: str = option(
        default="",
        metavar="SPEC",
        help="name:dtype[dims];... in the order of forward(); of a PaddleNLP model those it is to have",
    )
    task: str = option(default="", choices=TASKS, help="head of a PaddleNLP model")
    num_labels: int = option(default=0, metavar="N", help="number of its classes")
    random_weights: bool = switch(help="its configuration alone, with random weights, for trials")


def _parse_labels(labels: str) -> tuple[str, ...]:
    from pipeline.models.label_names import given_labels

    try:
        return given_labels(labels)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message}.") from exc


@dataclass(frozen=True, kw_only=True)
class _ServedModel(Command):
    """Command-line options for the serving model (model with descriptions) that a command writes."""

    fetch_alias: tuple[str, ...] = option(
        default=(), metavar="NAME", help="name of an output, in their order"
    )
    padding: str | None = option(metavar="FEED=VALUE,...", help="feeds that may be padded; proven first")
    labels: str = option(default="", **_LABELS)
    rebatch: bool = switch(
        help="make an ONNX model for a fixed number of rows one for any, proven row by row"
    )
    file: tuple[Path, ...] = option(default=(), metavar="FILE", help="file to copy beside the model")


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """`paddlewheel convert demo`: writes the serving model of a small BERT news classifier."""

    out: Path = option(default=Path("models/demo"), help="folder to write (%(default)s)")
    train: Path | None = option(
        metavar="FILE",
        help="train it first, on the CPU and in a minute or two, and keep its weights in FILE; without this "
        "the weights that come with the project are taken",
    )

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.demo.convert_demo import convert_demo

        return convert_demo(self.out, train_into=self.train, options=options)


@dataclass(frozen=True, kw_only=True)
class Paddle(_DynamicModel):
    """`paddlewheel convert paddle`: exports a Paddle Layer or PaddleNLP model to a Paddle inference model."""

    source: str = argument(
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model (BERT, ERNIE, RoBERTa, XLM-R), or "
        "module:factory, a function or class that returns the Layer",
    )
    out: Path = argument(**_OUT)
    format: str = option(choices=FORMATS, default=FORMATS[0], help=f"{_FORMAT_HELP} (%(default)s)")
    labels: str = option(default="", **_LABELS)

    def run(self, options: ConversionOptions) -> Conversion:
        if ":" not in self.source:
            return self._convert_paddlenlp(options)
        from convert.from_paddle.convert_paddle import convert_paddle

        nlp_options = {
            "--task": self.task,
            "--labels": self.labels,
            "--num-labels": self.num_labels,
            "--random-weights": self.random_weights,
        }
        for name, value in nlp_options.items():
            if value:
                raise ConversionError(f"{name} is for models of PaddleNLP; {self.source} decides itself.")
        return convert_paddle(
            self.source,
            self.input_spec,
            self.out,
            params=self.params,
            program_format=self.format,
            options=options,
        )

    def _convert_paddlenlp(self, options: ConversionOptions) -> Conversion:
        from convert.from_paddlenlp.convert_paddlenlp import convert_paddlenlp

        if self.params:
            raise ConversionError("--params is for module:factory; a folder has its weights with it.")
        return convert_paddlenlp(
            self.source,
            self.out,
            task=self.task,
            labels=_parse_labels(self.labels),
            num_labels=self.num_labels,
            input_spec=self.input_spec,
            random_weights=self.random_weights,
            program_format=self.format,
            options=options,
        )


@dataclass(frozen=True, kw_only=True)
class Torch(Command):
    """`paddlewheel convert torch`: converts a PyTorch model to Paddle, ONNX or TorchScript."""

    source: str = argument(
        metavar="SOURCE",
        help="Hugging Face directory (config.json, weights), module:factory, TorchScript (.pt) or program of "
        "torch.export (.pt2)",
    )
    out: Path = argument(**_OUT)
    to: str | None = option(
        choices=tuple(ROUTES), help=f"what to make (the first of {', '.join(ROUTES)} that goes)"
    )
    input_spec: str = option(
        default="",
        metavar="SPEC",
        help="name:dtype[dims];... in the order of forward(); text models of transformers need none",
    )
    opset: int = option(
        default=TORCH_OPSET,
        metavar="N",
        help=f"operator set of ONNX, from {TORCH_OPSETS[0]} to {TORCH_OPSETS[-1]} (%(default)s)",
    )
    format: str = option(choices=FORMATS, default=FORMATS[0], help=f"{_FORMAT_HELP} (%(default)s)")

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.from_torch.convert_torch import convert_torch

        return convert_torch(
            self.source,
            self.out,
            to=self.to,
            input_spec=self.input_spec,
            opset=self.opset,
            program_format=self.format,
            options=options,
        )


@dataclass(frozen=True, kw_only=True)
class Serving(_ServedModel):
    """`paddlewheel convert serving`: makes a serving model from an exported Paddle, ONNX or PyTorch model."""

    source: Path = argument(
        metavar="MODEL", help="folder of a Paddle, ONNX or TorchScript model, or a .onnx, .pt or .pt2 file"
    )
    out: Path = argument(**_OUT)
    with_notes: bool = switch(
        help="take aliases, padding, labels, task, tokenizer from the notes beside the program"
    )

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.to_serving.convert_serving import convert_serving
        from convert.to_serving.notes import read_notes

        folder = self.source if self.source.is_dir() else self.source.parent
        return convert_serving(
            self.source,
            self.out,
            fetch_alias=self.fetch_alias,
            padding=self.padding,
            labels=_parse_labels(self.labels),
            files=self.file,
            notes=read_notes(folder) if self.with_notes else None,
            rebatch=self.rebatch,
            options=options,
        )


@dataclass(frozen=True, kw_only=True)
class Onnx(Command):
    """`paddlewheel convert onnx`: converts an ONNX model to a Paddle inference model."""

    source: Path = argument(metavar="MODEL", help="a .onnx file or its folder")
    out: Path = argument(**_OUT)
    no_fallback: bool = switch(help="fail where it can't be a Paddle model with these outputs")

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.paddle_onnx.to_paddle import convert_onnx

        return convert_onnx(self.source, self.out, fallback=not self.no_fallback, options=options)


@dataclass(frozen=True, kw_only=True)
class ToOnnx(Command):
    """`paddlewheel convert to-onnx`: converts a Paddle model to ONNX."""

    model_dir: Path = argument(metavar="MODEL_DIR", help="folder of the program")
    out: Path = argument(metavar="OUT", help="folder to write (model.onnx)")
    opset: int = option(
        default=OPSET, metavar="N", help=f"operator set, from {OPSETS[0]} to {OPSETS[-1]} (%(default)s)"
    )

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.paddle_onnx.to_onnx import convert_to_onnx

        return convert_to_onnx(self.model_dir, self.out, opset=self.opset, options=options)


def _describe_bounds(name: str) -> str:
    return ", ".join(f"{precision} {getattr(bounds, name):g}" for precision, bounds in BOUNDS.items())


@dataclass(frozen=True, kw_only=True)
class Precision(Command):
    """`paddlewheel convert precision`: converts an fp32 model to fp16, bf16 or int8."""

    source: Path = argument(
        metavar="MODEL", help="serving model (its description is kept) or inference model"
    )
    out: Path = argument(**_OUT)
    to: str = option(required=True, choices=PRECISIONS, help="precision to make")
    engine: str = option(
        choices=PRECISION_ENGINES, default="", help="what shall run it (onnxruntime; for bf16 paddle)"
    )
    calibration: tuple[Path, ...] = option(
        default=(),
        metavar="FILE",
        help="inputs to find the ranges for int8-calibrated, in a file as --sample has it; again for more",
    )
    generated_calibration: bool = switch(help="find them in random inputs, which is rough")
    relative_tolerance: float | None = option(
        "--tolerance",
        metavar="SHARE",
        help=f"largest |diff|, as a share of the output's largest value ({_describe_bounds('tolerance')})",
    )
    top1: float | None = option(
        metavar="SHARE",
        help="rows that must keep their top-1 class "
        f"(with --sample: {_describe_bounds('top1_needed')}; else 0)",
    )

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.precision.convert_precision import convert_precision

        return convert_precision(
            self.source,
            self.out,
            to=self.to,
            engine=self.engine,
            calibration=self.calibration,
            generated_calibration=self.generated_calibration,
            tolerance=self.relative_tolerance,
            top1=self.top1,
            options=options,
        )


@dataclass(frozen=True)
class ShapeOptions(ConversionOptions):
    """Command-line options that every conversion has, with the default lengths of `convert shapes`."""

    lengths: tuple[int, ...] = option(**lengths_settings(SHAPE_LENGTHS))


@dataclass(frozen=True, kw_only=True)
class Shapes(Command):
    """`paddlewheel convert shapes`: determines the shape ranges of a model for TensorRT."""

    model: Path = argument(metavar="MODEL", help="serving model, or folder of the program")
    out: Path = argument(metavar="OUT", help="file to write, for `tensorrt.shapes`")
    batches: tuple[int, ...] = option(
        type=parse_numbers, default=BATCHES, metavar="N,N,...", help="numbers of rows (1,8)"
    )

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.inspection.shapes import convert_shapes

        return convert_shapes(self.model, self.out, batches=self.batches, options=options)


@dataclass(frozen=True, kw_only=True)
class Check(Command):
    """`paddlewheel convert check`: compares a serving model with its source, or two models."""

    model: Path = argument(metavar="A", help="serving model, or the model that B is compared with")
    candidate: Path | None = argument(
        nargs="?", metavar="B", help="Paddle program, serving model or ONNX model"
    )
    padding: str = option(default="", metavar="FEED=VALUE,...", help="feeds of B to try with padding")
    report: Path | None = option(metavar="FILE.json", help="where to store the report of two models")

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.inspection.check import check_models, check_serving

        if self.candidate is None:
            if self.padding or self.report:
                raise ConversionError(
                    "--padding and --report are for two models; a serving model has its own."
                )
            return check_serving(self.model, options=options)
        return check_models(
            self.model, self.candidate, padding=self.padding, report=self.report, options=options
        )


@dataclass(frozen=True, kw_only=True)
class AnySource(_ServedModel, _DynamicModel):
    """`paddlewheel convert all`: makes a serving model from any supported source."""

    source: str = argument(
        metavar="SOURCE",
        help="folder, config.json or name of a PaddleNLP model, Hugging Face directory, module:factory of "
        "Paddle or PyTorch, TorchScript (.pt), program of torch.export (.pt2), .onnx file, folder of a "
        "Paddle program, or a model of scikit-learn (.joblib, "
        ".pkl), LightGBM (.txt) or XGBoost (.json, .ubj)",
    )
    out: Path = argument(**_OUT)
    engine: str = option(
        choices=tuple(ENGINES), default="", help="what shall run it (Paddle, where that goes)"
    )
    int8: bool = switch(
        help="leave an int8 form beside it, too, calibrated on --sample; precision: auto may choose it"
    )
    format: str = option(
        choices=(*FORMATS, TRITON),
        default=FORMATS[0],
        help=f"{_FORMAT_HELP}; triton: a model repository of a model of texts, in place of a serving model "
        "(%(default)s)",
    )
    trust: bool = switch(help="load a .joblib or .pkl file, which runs whatever code is in it")

    def run(self, options: ConversionOptions) -> Conversion:
        from convert.whole.convert_all import convert_all, convert_to_triton
        from convert.whole.step_arguments import StepArguments

        to_triton = self.format == TRITON
        step_arguments = StepArguments(
            engine=self.engine,
            input_spec=self.input_spec,
            params=self.params,
            task=self.task,
            labels=_parse_labels(self.labels),
            num_labels=self.num_labels,
            random_weights=self.random_weights,
            program_format=FORMATS[0] if to_triton else self.format,
            fetch_alias=self.fetch_alias,
            padding=self.padding,
            files=self.file,
            rebatch=self.rebatch,
            int8=self.int8,
            trusted=self.trust,
        )
        convert = convert_to_triton if to_triton else convert_all
        return convert(self.source, self.out, step_arguments, options=options)


def create_parser() -> argparse.ArgumentParser:
    """Return the argument parser of `paddlewheel convert`.

    The parsed namespace has the classes to build from it, as `command` and `conversion_options`.
    """
    parser = OneLineParser(
        prog="paddlewheel convert",
        description="Convert models into serving models, with their outputs compared at each step.",
        epilog="Example: paddlewheel convert all ./bert-base-chinese models/mine",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (command, help_text, example) in COMMANDS.items():
        command_parser = add_command(commands, name, command, help_text, example)
        options = ShapeOptions if command is Shapes else ConversionOptions
        command_parser.set_defaults(conversion_options=options)
        add_options(command_parser, options, omit=_OMITTED.get(command, ()))
        add_options(command_parser, command)
    return parser


_OMITTED: dict[type[Command], tuple[str, ...]] = {
    Precision: ("tolerance",),  # its own is relative
    Check: ("force", "dry_run", "step_timeout_s"),  # it writes nothing
}
COMMANDS: dict[str, tuple[type[Command], str, str]] = {  # type, help and example
    "demo": (
        Demo,
        "make the serving model of a small BERT news classifier",
        "paddlewheel convert demo --out models/demo",
    ),
    "paddle": (
        Paddle,
        "export a PaddleNLP model (needs `make convert-env`) or your own paddle.nn.Layer",
        "paddlewheel convert paddle checkpoints/ernie-news build/inference; or "
        "paddlewheel convert paddle my_model:create_model --params my_model.pdparams "
        '--input-spec "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]" build/inference',
    ),
    "torch": (
        Torch,
        "convert a PyTorch model to Paddle, ONNX or TorchScript (needs `make convert-env TORCH_INDEX=...`)",
        "paddlewheel convert torch ./bert-base-chinese build/inference --to paddle",
    ),
    "serving": (
        Serving,
        "make a serving model of a Paddle inference model, an ONNX model or a model file of PyTorch",
        "paddlewheel convert serving build/inference models/mine --fetch-alias logits "
        '--padding "input_ids=0,attention_mask=0" --labels bad,neutral,good --file vocab.txt',
    ),
    "onnx": (
        Onnx,
        "make a Paddle inference model of an ONNX model (needs `make convert-env`), or keep it to be served",
        "paddlewheel convert onnx model.onnx build/inference",
    ),
    "to-onnx": (
        ToOnnx,
        "make an ONNX model of an inference model or a serving model (needs `make convert-env`)",
        "paddlewheel convert to-onnx models/demo build/onnx",
    ),
    "precision": (
        Precision,
        "make a serving model in fp16, bf16 or int8 of one in fp32, and tell how far it is off",
        "paddlewheel convert precision models/mine models/mine-int8 --to int8-calibrated "
        "--calibration texts.txt --sample held-out.txt",
    ),
    "shapes": (
        Shapes,
        "find the shapes that TensorRT asks for, of inputs and inner tensors",
        "paddlewheel convert shapes models/mine --lengths 16,64,128 --batches 1,8 models/mine/shapes.pbtxt",
    ),
    "check": (
        Check,
        "compare a serving model with its source, or two models",
        "paddlewheel convert check models/mine",
    ),
    "all": (
        AnySource,
        "make a serving model of any source, by the route that suits it",
        "paddlewheel convert all ./bert-base-chinese models/mine",
    ),
}
