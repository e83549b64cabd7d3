"""Converts ONNX models to fp16 or int8 by onnxruntime, in a process with the converters' packages."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.program_feeds import Feeds
from convert.result import ConversionOptions
from convert.steps.isolation import run_isolated
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

_DYNAMIC = ("Attention", "EmbedLayerNormalization", "Gather", "LSTM", "MatMul")
_CALIBRATED = ("Conv", "Gather", "Gemm", "MatMul")  # other operators lose accuracy and save nothing
_QUANTISED = ("DequantizeLinear", "DynamicQuantizeLinear", "MatMulInteger")


def fp16_step(steps: Steps, model: str, out: str) -> None:
    """Write an ONNX model with fp16 weights and arithmetic to `out`. Inputs and outputs keep their dtypes."""
    steps.step("To fp16")
    import onnx
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(model), keep_io_types=True), out)


def int8_dynamic_step(steps: Steps, model: str, out: str) -> None:
    """Write an ONNX model with int8 weights to `out`. Activations are quantised at run time.

    Weights have a scale per channel, activations per tensor. Raises ConversionError if no operator can be
    converted to int8.
    """
    prepared = _prepare(steps, model, out)
    steps.step("To int8")
    from onnxruntime.quantization import QuantType, quantize_dynamic

    quantize_dynamic(
        str(prepared),
        out,
        list(_DYNAMIC),
        per_channel=True,
        reduce_range=True,  # as in int8_calibrated_step
        weight_type=QuantType.QInt8,
    )
    _require_quantised(model, out, _DYNAMIC, "int8-calibrated, which takes Conv, or serve it as it is")


def int8_calibrated_step(steps: Steps, model: str, out: str, calibration: str, feeds: list[str]) -> None:
    """Write an ONNX model with int8 weights and fixed activation scales, found by calibration batches.

    The folder `calibration` has .npz files with an array for each of `feeds`. The model has QuantizeLinear
    and DequantizeLinear, which ONNX Runtime fuses with `ir_optim` and TensorRT reads as well. Activations are
    uint8: x86 CPUs have no fast multiplication of int8 with int8.
    """
    prepared = _prepare(steps, model, out)
    files = sorted(Path(calibration).iterdir())
    steps.step("Calibration and int8", total=len(files))
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Batches(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._batches = _read_batches(steps, files, feeds)

        def get_next(self) -> Feeds | None:
            return next(self._batches, None)

    quantize_static(
        str(prepared),
        out,
        Batches(),
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=list(_CALIBRATED),
        per_channel=True,
        # 7 bits: CPUs without VNNI add pairs of products in 16 bits, which 8 would overflow.
        reduce_range=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    _require_quantised(model, out, _CALIBRATED, "fp16, or serve it as it is")


def _prepare(steps: Steps, model: str, out: str) -> Path:
    """Infer shapes and fold batch normalisations, as quantisation requires. Return the new model's path."""
    steps.step("Preparing")
    from onnxruntime.quantization.shape_inference import quant_pre_process

    logging.disable(logging.WARNING)  # it advises this very step
    preprocessed = Path(out).with_name("prepared.onnx")
    quant_pre_process(model, str(preprocessed), skip_symbolic_shape=True)
    return preprocessed


def _read_batches(steps: Steps, files: list[Path], feeds: list[str]) -> Iterator[Feeds]:
    for file in files:
        with np.load(file, allow_pickle=False) as arrays:
            yield {name: arrays[f"arr_{place}"] for place, name in enumerate(feeds)}
        steps.advance()


def _require_quantised(model: str, out: str, operators: tuple[str, ...], remedy: str) -> None:
    import onnx

    graph: Any = onnx.load(out, load_external_data=False).graph
    if not any(node.op_type in _QUANTISED for node in graph.node):
        raise ConversionError(
            f"{model} has no {', '.join(operators)} with weights that could be int8; name {remedy}."
        )


NEEDS = ("onnx", "onnxruntime", "ml_dtypes")  # the last is imported by onnxruntime.quantization


def quantise(
    step: str,
    fp32: Path,
    out: Path,
    options: ConversionOptions,
    calibrating: Sequence[Feeds] = (),
    scratch: Path | None = None,
) -> None:
    """Write the ONNX model `fp32` to `out` in fp16 or int8.

    step: fp16, int8-dynamic or int8-calibrated. calibrating: batches of arrays by input name, which are
    stored in the folder `scratch`. Raises ConversionError if the conversion fails.
    """
    arguments: dict[str, object] = {"model": str(fp32), "out": str(out)}
    if calibrating and scratch is not None:
        folder = scratch / "calibration"
        folder.mkdir()
        for number, batch in enumerate(
            calibrating
        ):  # sorted names keep the order; arrays are in the order of feeds
            np.savez(folder / f"{number:06}.npz", *batch.values())
        arguments |= {"calibration": str(folder), "feeds": list(calibrating[0])}
    run_isolated(
        f"convert.precision.onnx_steps:{step.replace('-', '_')}_step",
        arguments,
        converter=f"onnxruntime to {step}",
        needs=NEEDS,
        steps=options.steps,
        timeout_s=options.step_timeout_s,
    )
