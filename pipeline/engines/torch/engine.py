"""The engine plugin `pytorch`: finds TorchScript and torch.export files and loads them in PyTorch.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.base import Predictor, PredictorConf
from pipeline.engines.torch.archive import EXPORTED, TORCHSCRIPT, read_signature_in
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable
from pipeline.plugins import Library


class PyTorchEngine:
    """Engine plugin that runs TorchScript (.pt) and programs of torch.export (.pt2) with PyTorch."""

    name = "pytorch"  # as Triton's backend
    title = "PyTorch"
    files = "*.pt, *.pt2"
    holds_gil = False  # 2.13: another thread got 930 of 1,800 expected ticks while it ran
    any_shape = True
    takes_turns = False
    self_described = True  # torch.export; TorchScript with signature.prototxt inside
    library = Library("torch", "paddlewheel[torch]")
    only_named = False

    def format_of(self, file: Path) -> str:
        return {".pt": TORCHSCRIPT, ".pt2": EXPORTED}.get(file.suffix, "")

    def params_of(self, program: Path, files: Sequence[Path]) -> Path | None:
        """Return None: a PyTorch model file contains its weights."""
        return None

    def signature_of(self, program: Path) -> tuple[Sequence[Variable], Sequence[Variable]]:
        return read_signature_in(program)

    def load(self, model: ServingModel, conf: PredictorConf, **placed: Any) -> Predictor:
        from pipeline.engines.torch.torch_predictor import TorchPredictor  # takes seconds

        return TorchPredictor(model, conf, **placed)


ENGINE = PyTorchEngine()
