"""The engines that run models; importing this imports none, `create_predictor` imports the one it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.predictors.base import Array, Predictor, PredictorConf, input_examples
from pipeline.predictors.dynamic_shape import DynamicShapes
from pipeline.predictors.remote import RemoteConf, RemotePredictor
from pipeline.serving_model import ServingModel

if TYPE_CHECKING:
    from pipeline.config import OpConfig
    from pipeline.op import Op

__all__ = [
    "Array",
    "DynamicShapes",
    "Predictor",
    "PredictorConf",
    "create_predictor",
    "create_remote_predictor",
    "input_examples",
]


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


def create_remote_predictor(op: Op, config: OpConfig, instance: int) -> RemotePredictor:
    """The predictor of an Op with `server_endpoints`, after `Service.resolve` has completed its section.

    Raises ConfigError when a server that can be reached does not have the model or its outputs.
    """
    conf = RemoteConf(
        op=op.name,
        endpoints=tuple(config.server_endpoints),
        timeout_s=config.timeout / 1000,
        tries=max(1, config.retry),
        first=instance,
        key_file=config.server_api_key_file,
    )
    if config.client_type == "grpc":
        from pipeline.predictors.remote_v2 import V2Predictor  # imports gRPC: remote Ops alone pay for it

        return V2Predictor(conf, config.model_name or op.name, config.fetch_list)
    from pipeline.predictors.remote_pipeline import PipelinePredictor

    return PipelinePredictor(conf, op, config.fetch_list)
