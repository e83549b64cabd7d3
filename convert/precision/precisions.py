"""The precisions of `convert precision`, their allowed output differences, and the engines that run them."""

from __future__ import annotations

from convert.programs.engines import paddle_version
from convert.programs.inference_program import InferenceProgram
from convert.proof.parity import Bounds
from pipeline.errors import ConversionError

FP16, BF16, DYNAMIC, CALIBRATED = "fp16", "bf16", "int8-dynamic", "int8-calibrated"
ONNX_RUNTIME, PADDLE = "onnxruntime", "paddle"
PRECISION_ENGINES = (PADDLE, ONNX_RUNTIME)

# Relative to an output's largest value: about three times the difference of classifiers and encoders. int8
# hidden states with outliers exceed the bounds.
BOUNDS = {
    FP16: Bounds(0.005, 0.0, 0.99),
    BF16: Bounds(0.1, 0.0, 0.98),
    DYNAMIC: Bounds(0.15, 0.0, 0.97),
    CALIBRATED: Bounds(0.2, 0.0, 0.97),
}
PRECISIONS = tuple(BOUNDS)
_ON_ONNX = (FP16, DYNAMIC, CALIBRATED)


def engine_for(to: str, engine: str, program: InferenceProgram) -> str:
    """Return the engine that runs the precision `to`: `engine`, or by default the engine for that precision.

    Raises ConversionError, which names an alternative, if the engine can't run the model in this precision.
    """
    if to not in PRECISIONS:
        raise ConversionError(f"there is no precision {to!r}; name one of {', '.join(PRECISIONS)}.")
    if engine and engine not in PRECISION_ENGINES:
        raise ConversionError(f"no engine {engine!r} here; name one of {', '.join(PRECISION_ENGINES)}.")
    engine = engine or (ONNX_RUNTIME if to in _ON_ONNX else PADDLE)
    if engine == ONNX_RUNTIME and to == BF16:
        raise ConversionError(
            "ONNX Runtime has no bf16 on the CPU; name --engine paddle, which has it by oneDNN, or --to fp16."
        )
    if engine == ONNX_RUNTIME:
        return engine
    if program.format == "onnx":
        raise ConversionError(
            f"{program.program} is an ONNX model, which Paddle doesn't run; make a Paddle model of it first "
            "(paddlewheel convert onnx), or name another precision of onnxruntime."
        )
    if to == FP16:
        raise ConversionError(
            f"Paddle {paddle_version()} runs fp16 on a GPU alone, where it converts a model as it loads: set "
            "local_service_conf.precision: fp16 and device_type: 1 there, or name --engine onnxruntime."
        )
    if to != BF16:
        raise ConversionError(
            f"Paddle {paddle_version()} has no int8 for inference models: its quantisation doesn't read "
            ".json programs and keeps fp32 weights in .pdmodel ones; name --engine onnxruntime."
        )
    return engine
