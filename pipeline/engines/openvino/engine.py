"""The engine plugin `openvino`: finds model files that OpenVINO runs on the CPU, and loads them.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.base import Predictor, PredictorConf
from pipeline.engines.openvino.graph import inspect_ir
from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable
from pipeline.plugins import Library

ONNX, PDMODEL, IR = "onnx", "pdmodel", "ir"


class OpenVinoEngine:
    """Engine plugin that runs .onnx, .xml (OpenVINO IR) and .pdmodel files, only if config.yml names it."""

    name = "openvino"
    title = "OpenVINO"
    files = "*.onnx, *.xml with *.bin, or *.pdmodel with *.pdiparams"
    holds_gil = False
    takes_turns = True  # a compiled model has one stream, see openvino_predictor
    self_described = True
    any_shape = False  # OpenVINO caches kernels for each shape, up to a bound
    library = Library("openvino", "paddlewheel[openvino]")
    only_named = True  # ONNX Runtime and Paddle Inference run the same files

    def format_of(self, file: Path) -> str:
        return {".onnx": ONNX, ".pdmodel": PDMODEL, ".xml": IR}.get(file.suffix, "")

    def params_of(self, program: Path, files: Sequence[Path]) -> Path | None:
        """Return the weight file beside a model file; None if there is none, as for an ONNX file."""
        ending = {".pdmodel": ".pdiparams", ".xml": ".bin"}.get(program.suffix)
        params = ending and program.with_suffix(ending)
        return params if params and params in files else None

    def signature_of(self, program: Path) -> tuple[Sequence[Variable], Sequence[Variable]]:
        if self.format_of(program) == IR:
            return inspect_ir(program)
        if self.format_of(program) != ONNX:
            raise ConfigError(f"{program} does not tell its feeds: they stand in the prototxt beside it")
        graph = inspect_onnx(program)
        return graph.feeds, graph.fetches

    def load(self, model: ServingModel, conf: PredictorConf, **placed: Any) -> Predictor:
        from pipeline.engines.openvino.openvino_predictor import OpenVinoPredictor

        return OpenVinoPredictor(model, conf, **placed)


ENGINE = OpenVinoEngine()
