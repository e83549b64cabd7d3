"""The engine plugin `paddle`: finds Paddle's model files and loads them in Paddle Inference.

Importing this module imports no framework.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.engines.base import Predictor, PredictorConf
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable
from pipeline.plugins import Library

PIR, PDMODEL = "pir", "pdmodel"


class PaddleEngine:
    """Engine plugin that runs .pdmodel files and the .json model files of Paddle 3 with Paddle Inference."""

    name = "paddle"
    title = "Paddle Inference"
    files = "*.json or *.pdmodel with *.pdiparams, __model__"
    holds_gil = True  # 3.3.1: another thread got 8 of 300 expected ticks while it ran
    any_shape = False  # oneDNN keeps primitives for each shape
    takes_turns = False
    self_described = False
    library = Library("paddle", "paddlewheel[paddle]")
    only_named = False

    def format_of(self, file: Path) -> str:
        if file.suffix == ".pdmodel" or file.name == "__model__":
            return PDMODEL
        return PIR if file.suffix == ".json" and _is_pir(file) else ""

    def params_of(self, program: Path, files: Sequence[Path]) -> Path | None:
        """Return a model's weight file; None without weights, or if each weight has its own file.

        Raises ConfigError for several files that each may have all weights.
        """
        candidates = [path for path in files if path.suffix == ".pdiparams" or path.name == "__params__"]
        if len(candidates) > 1:
            names = ", ".join(path.name for path in candidates)
            raise ConfigError(
                f"{program.parent} holds several parameter files ({names}): leave that of {program.name}"
            )
        return candidates[0] if candidates else None

    def signature_of(self, program: Path) -> tuple[Sequence[Variable], Sequence[Variable]]:
        raise ConfigError(f"{program} does not tell its feeds: they stand in the prototxt beside it")

    def load(self, model: ServingModel, conf: PredictorConf, **placed: Any) -> Predictor:
        from pipeline.engines.paddle.paddle_predictor import PaddlePredictor  # takes seconds

        return PaddlePredictor(model, conf, **placed)


ENGINE = PaddleEngine()


def _is_pir(path: Path) -> bool:
    """Whether a .json file is a model file of Paddle 3.

    Files of tokenizers and configurations have that suffix, too.
    """
    with path.open("rb") as file:
        return b'"magic":"pir"' in file.read(512).replace(b" ", b"")
