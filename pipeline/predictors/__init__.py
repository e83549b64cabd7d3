"""The engines that run models; importing this imports none, `create_predictor` imports the one it needs."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.predictors.base import Array, Predictor, PredictorConf, input_examples
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.serving_model import ServingModel

__all__ = ["Array", "DynamicShapes", "Predictor", "PredictorConf", "create_predictor", "input_examples"]


def create_predictor(
    model: ServingModel,
    conf: PredictorConf,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
    fetch_list: Sequence[str] = (),
) -> Predictor:
    """Load the model with the engine its format asks for. Call it in the worker: it imports the framework.

    `instance_index` chooses among `devices`; `fetch_list` (aliases) goes before that of `conf`. Raises
    ConfigError, before anything is loaded, for a configuration this machine can't serve.
    """
    match model.format:
        case "pir" | "pdmodel":
            from pipeline.predictors.paddle_inference import (
                PaddlePredictor,
            )  # seconds to import: workers only

            return PaddlePredictor(
                model,
                conf,
                instance_index=instance_index,
                dynamic_shapes=dynamic_shapes,
                fetch_list=fetch_list,
            )
        case "onnx":
            from pipeline.predictors.onnx_runtime import OnnxPredictor

            return OnnxPredictor(
                model,
                conf,
                instance_index=instance_index,
                dynamic_shapes=dynamic_shapes,
                fetch_list=fetch_list,
            )
