"""Inference engines (Paddle Inference, ONNX Runtime, OpenVINO, plugins), and clients of remote models.

Frameworks are imported by `create_predictor`, not by this package.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pipeline.engines.base import Engine, Predictor, PredictorConf, find_engine, load_engine
from pipeline.engines.dynamic_shape import DynamicShapes
from pipeline.engines.feeds import Array, check_feeds, check_forms, input_examples
from pipeline.engines.fetches import select_fetches
from pipeline.engines.remote_model import RemoteConf, RemotePredictor
from pipeline.models.serving_model import ServingModel, require_library

if TYPE_CHECKING:
    from pipeline.config.config_file import OpConfig

__all__ = [
    "Array",
    "DynamicShapes",
    "Engine",
    "Predictor",
    "PredictorConf",
    "check_feeds",
    "check_forms",
    "create_predictor",
    "create_remote_predictor",
    "find_engine",
    "input_examples",
    "load_engine",
    "select_fetches",
]


def create_predictor(
    model: ServingModel,
    conf: PredictorConf,
    *,
    instance_index: int = 0,
    dynamic_shapes: DynamicShapes | None = None,
    fetch_list: Sequence[str] = (),
) -> Predictor:
    """Load a model with its engine, and return the predictor that runs it.

    Call this function only in a worker, because it imports the framework. Parameters and errors are those of
    `Engine.load`.
    """
    require_library(model)
    return load_engine(model.engine).load(
        model,
        conf,
        instance_index=instance_index,
        dynamic_shapes=dynamic_shapes,
        fetch_list=fetch_list,
    )


def create_remote_predictor(
    op_name: str, config: OpConfig, instance: int, *, packs_tensors: Callable[[], bool]
) -> RemotePredictor:
    """Create the client of a model on other servers, for an Op with `server_endpoints` in config.yml.

    config: the Op's section, completed by `Service.resolve`. instance: number of the instance, which selects
    its first server. packs_tensors: called for each request; tells whether inputs for a Pipeline service are
    sent as tensors. Raises ConfigError if a reachable server lacks the model or its outputs.
    """
    conf = RemoteConf(
        op=op_name,
        endpoints=tuple(config.server_endpoints),
        timeout_s=config.timeout / 1000,
        tries=max(1, config.retry),
        first=instance,
        key_file=config.server_api_key_file,
    )
    if config.client_type == "grpc":
        from pipeline.engines.remote import V2Predictor  # imports gRPC, for remote Ops only

        return V2Predictor(conf, config.model_name or op_name, config.fetch_list)
    from pipeline.engines.remote import PipelinePredictor

    return PipelinePredictor(conf, config.fetch_list, packs_tensors)
