"""What Paddle Serving's Ops know of their section of config.yml, by the names it had on `self` there."""

from __future__ import annotations

from typing import Any

from pipeline.config.config_file import LocalServiceConf, OpConfig
from pipeline.paddle_serving.local_client import LocalClient

_OF_MODEL = (
    "workdir",
    "thread_num",
    "device_type",
    "devices",
    "mem_optim",
    "ir_optim",
    "precision",
    "use_calib",
    "use_mkldnn",
    "mkldnn_cache_capacity",
    "mkldnn_op_list",
    "mkldnn_bf16_op_list",
    "min_subgraph_size",
)


def get_op_settings(config: OpConfig, client: LocalClient | None) -> dict[str, Any]:
    """The attributes by name: where the model is, on what it runs; `with_serving`: whether there is one.

    client: of a model in this process, which is its `local_predictor` as well.
    """
    conf = config.local_service_conf or LocalServiceConf()
    client_type = config.client_type if config.server_endpoints else conf.client_type
    return {
        "concurrency": config.concurrency,
        "with_serving": config.has_model,
        "client_type": client_type if config.has_model else None,
        "model_config": conf.model_dir or None,
        **{name: getattr(conf, name) for name in _OF_MODEL},
        "local_predictor": client,
        "right_feed_names": client.feed_names_ if client else [],
        "right_fetch_names": client.fetch_names_ if client else [],
    }
