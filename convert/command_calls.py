"""The calls of the commands of `paddlewheel convert`."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from convert.result import Conversion, ConversionOptions
from pipeline.errors import ConfigError, ConversionError

Command = Callable[[argparse.Namespace, ConversionOptions], Conversion]


def demo(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.demo.convert_demo import convert_demo

    return convert_demo(arguments.out, train_into=arguments.train, options=options)


def paddle(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    if ":" not in arguments.source:
        from convert.from_paddlenlp.convert_paddlenlp import convert_paddlenlp

        if arguments.params:
            raise ConversionError("--params is for module:factory; a folder has its weights with it.")
        return convert_paddlenlp(
            arguments.source,
            arguments.out,
            task=arguments.task,
            labels=_labels(arguments),
            num_labels=arguments.num_labels,
            input_spec=arguments.input_spec,
            random_weights=arguments.random_weights,
            program_format=arguments.format,
            options=options,
        )
    from convert.from_paddle.convert_paddle import convert_paddle

    nlp_options = {
        "--task": arguments.task,
        "--labels": arguments.labels,
        "--num-labels": arguments.num_labels,
    }
    for option, value in {**nlp_options, "--random-weights": arguments.random_weights}.items():
        if value:
            raise ConversionError(f"{option} is for models of PaddleNLP; {arguments.source} decides itself.")
    return convert_paddle(
        arguments.source,
        arguments.input_spec,
        arguments.out,
        params=arguments.params,
        program_format=arguments.format,
        options=options,
    )


def torch(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.from_torch.convert_torch import convert_torch

    return convert_torch(
        arguments.source,
        arguments.out,
        to=arguments.to,
        input_spec=arguments.input_spec,
        opset=arguments.opset,
        program_format=arguments.format,
        options=options,
    )


def serving(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.to_serving.convert_serving import convert_serving
    from convert.to_serving.notes import read_notes

    source: Path = arguments.source
    return convert_serving(
        source,
        arguments.out,
        fetch_alias=arguments.fetch_alias,
        padding=arguments.padding,
        labels=_labels(arguments),
        files=arguments.file,
        notes=read_notes(source if source.is_dir() else source.parent) if arguments.with_notes else None,
        rebatch=arguments.rebatch,
        options=options,
    )


def onnx(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.paddle_onnx.to_paddle import convert_onnx

    return convert_onnx(arguments.source, arguments.out, fallback=not arguments.no_fallback, options=options)


def to_onnx(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.paddle_onnx.to_onnx import convert_to_onnx

    return convert_to_onnx(arguments.model_dir, arguments.out, opset=arguments.opset, options=options)


def precision(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.precision.convert_precision import convert_precision

    return convert_precision(
        arguments.source,
        arguments.out,
        to=arguments.to,
        engine=arguments.engine,
        calibration=arguments.calibration,
        generated_calibration=arguments.generated_calibration,
        tolerance=arguments.relative_tolerance,
        top1=arguments.top1,
        options=options,
    )


def shapes(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.inspection.shapes import convert_shapes

    return convert_shapes(arguments.model, arguments.out, batches=arguments.batches, options=options)


def check(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.inspection.check import check_models, check_serving

    if arguments.candidate is None:
        if arguments.padding or arguments.report:
            raise ConversionError("--padding and --report are for two models; a serving model has its own.")
        return check_serving(arguments.model, options=options)
    return check_models(
        arguments.model,
        arguments.candidate,
        padding=arguments.padding,
        report=arguments.report,
        options=options,
    )


def whole(arguments: argparse.Namespace, options: ConversionOptions) -> Conversion:
    from convert.result import FORMATS, TRITON
    from convert.whole.convert_all import convert_all
    from convert.whole.step_arguments import StepArguments
    from convert.whole.to_triton import convert_to_triton

    to_triton = arguments.format == TRITON
    step_arguments = StepArguments(
        engine=arguments.engine,
        input_spec=arguments.input_spec,
        params=arguments.params,
        task=arguments.task,
        labels=_labels(arguments),
        num_labels=arguments.num_labels,
        random_weights=arguments.random_weights,
        program_format=FORMATS[0] if to_triton else arguments.format,
        fetch_alias=tuple(arguments.fetch_alias),
        padding=arguments.padding,
        files=tuple(arguments.file),
        rebatch=arguments.rebatch,
        int8=arguments.int8,
        trusted=arguments.trust,
    )
    convert = convert_to_triton if to_triton else convert_all
    return convert(arguments.source, arguments.out, step_arguments, options=options)


def _labels(arguments: argparse.Namespace) -> tuple[str, ...]:
    from pipeline.models.label_names import given_labels

    try:
        return given_labels(arguments.labels)
    except ConfigError as exc:
        raise ConversionError(f"{exc.message}.") from exc
