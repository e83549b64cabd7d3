"""Attributes of Paddle Serving's Ops for their config.yml section, by their names on `self`."""

from __future__ import annotations

from typing import Any

from pipeline.config.config_file import LocalServiceConf, OpConfig
from pipeline.paddle_serving.local_client import LocalClient

_MODEL_KEYS = (
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
    """Return the attributes by name; `with_serving` says whether the Op has a model.

    `client` is the client of a model in this process, and also becomes `local_predictor`.
    """
    conf = config.local_service_conf or LocalServiceConf()
    client_type = config.client_type if config.server_endpoints else conf.client_type
    return {
        "concurrency": config.concurrency,
        "with_serving": config.has_model,
        "client_type": client_type if config.has_model else None,
        "model_config": conf.model_dir or None,
        **{name: getattr(conf, name) for name in _MODEL_KEYS},
        "local_predictor": client,
        "right_feed_names": client.feed_names_ if client else [],
        "right_fetch_names": client.fetch_names_ if client else [],
    }
