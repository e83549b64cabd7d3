"""The step that writes a Paddle program as ONNX by paddle2onnx, in the conversion environment."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Any

from convert.paddle_onnx.paddle2onnx_gaps import name_outputs, restore_tanh_gelu, unsupported
from convert.steps.progress import Steps
from pipeline.errors import ConversionError

OPSETS = range(11, 22)
OPSET = 17  # the first with LayerNormalization as one operator


def export_step(
    steps: Steps,
    program: str,
    params: str,
    fetches: list[str],
    out: str,
    opset: int,
) -> int:
    """Write an ONNX file with outputs named `fetches` to `out`; return its opset."""
    steps.step("Paddle to ONNX")
    import onnx
    import paddle2onnx

    raw = Path(out).with_name("raw.onnx")
    # Its optimisers install packages, or leave duplicate names.
    paddle2onnx.export(
        program,
        params,
        str(raw),
        opset_version=opset,
        enable_optimize=False,
        optimize_tool="none",
    )
    if not raw.is_file():
        raise ConversionError(f"paddle2onnx wrote nothing of {program}; --debug shows what it said.")
    model = onnx.load(str(raw))
    restore_tanh_gelu(model, Path(program))
    name_outputs(model, fetches)
    onnx.save(model, str(raw))
    steps.step("Constant folding")
    _fold_constants(raw, Path(out))
    raw.unlink()
    return _check_and_clean(Path(out))


def unsupported_step(steps: Steps, program: str) -> dict[str, Any]:
    """Return the operators of the program that paddle2onnx lacks, and its version."""
    return {"version": metadata.version("paddle2onnx"), "operators": unsupported(Path(program))}


def _fold_constants(raw: Path, out: Path) -> None:
    """Fold constants by ONNX Runtime's basic level, which writes only standard operators."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    settings.optimized_model_filepath = str(out)
    settings.log_severity_level = 3
    onnxruntime.InferenceSession(str(raw), settings, providers=["CPUExecutionProvider"])


def _check_and_clean(file: Path) -> int:
    """Remove unused operator sets of ONNX Runtime and check the file; return the opset."""
    import onnx

    model = onnx.load(str(file))
    used = {node.domain for node in model.graph.node} | {""}
    opset_imports = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(opset_imports)
    onnx.save(model, str(file))
    onnx.checker.check_model(str(file), full_check=True)
    return next(int(entry.version) for entry in opset_imports if entry.domain == "")
