"""The engine plugin `onnxruntime`: finds .onnx files and loads them in ONNX Runtime.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.base import Predictor, PredictorConf
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable
from pipeline.plugins import Library


class OnnxRuntimeEngine:
    """Engine plugin that runs .onnx files, which declare their inputs and outputs, with ONNX Runtime."""

    name = "onnxruntime"
    title = "ONNX Runtime"
    files = "*.onnx"
    holds_gil = False  # 1.31: another thread got 847 ticks while it ran
    any_shape = True
    takes_turns = False
    self_described = True
    library = Library("onnxruntime", "onnxruntime")
    only_named = False

    def format_of(self, file: Path) -> str:
        return "onnx" if file.suffix == ".onnx" else ""

    def params_of(self, program: Path, files: Sequence[Path]) -> Path | None:
        """Return None: an ONNX file holds its weights, or names the files that hold them."""
        return None

    def signature_of(self, program: Path) -> tuple[Sequence[Variable], Sequence[Variable]]:
        graph = inspect_onnx(program)
        return graph.feeds, graph.fetches

    def load(self, model: ServingModel, conf: PredictorConf, **placed: Any) -> Predictor:
        from pipeline.engines.onnxruntime.onnx_predictor import OnnxPredictor

        return OnnxPredictor(model, conf, **placed)


ENGINE = OnnxRuntimeEngine()
