"""The engines that run models; importing this imports none, `create_predictor` imports the one it needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pipeline.engines.base import Array, Predictor, PredictorConf, input_examples
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.remote.remote_predictor import RemoteConf, RemotePredictor
from pipeline.models.serving_model import ServingModel

if TYPE_CHECKING:
    from pipeline.api.op import Op
    from pipeline.config.config_file import OpConfig

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
            from pipeline.engines.paddle.paddle_predictor import (
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
            from pipeline.engines.onnxruntime.onnx_predictor import OnnxPredictor

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
        from pipeline.engines.remote.remote_v2 import V2Predictor  # imports gRPC: remote Ops alone pay for it

        return V2Predictor(conf, config.model_name or op.name, config.fetch_list)
    from pipeline.engines.remote.remote_pipeline import PipelinePredictor

    return PipelinePredictor(conf, op, config.fetch_list)
