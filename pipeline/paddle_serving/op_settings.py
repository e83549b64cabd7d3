"""Attributes of Paddle Serving's Ops for their config.yml section, by their names on `self`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.config.config_file import LocalServiceConf, OpConfig

if TYPE_CHECKING:  # the script's process needs no engine
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

_ARGUMENTS = (
    "server_endpoints",
    "client_config",
    "timeout",
    "retry",
    "batch_size",
    "auto_batching_timeout",
)


def get_argument_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of an Op in the script's process, which are its arguments."""
    settings = {f"_{name}": options[name] for name in _ARGUMENTS}
    settings["_retry"] = max(1, settings["_retry"] or 1)
    return settings | {name: options[name] for name in ("concurrency", "client_type")}


def get_op_settings(config: OpConfig, client: LocalClient | None) -> dict[str, Any]:
    """Return the attributes by name; `with_serving` says whether the Op has a model.

    `client` is the client of a model in this process, and also becomes `local_predictor`.
    """
    conf = config.local_service_conf or LocalServiceConf()
    client_type = config.client_type if config.server_endpoints else conf.client_type
    waits = config.auto_batching_timeout > 0 and config.batch_size > 1
    return {
        "concurrency": config.concurrency,
        "_server_endpoints": list(config.server_endpoints) or None,
        "_client_config": config.client_config or _get_client_config(conf),
        "_timeout": config.timeout / 1000 if config.timeout > 0 else -1,
        "_retry": max(1, config.retry),
        "_batch_size": config.batch_size,
        "_auto_batching_timeout": config.auto_batching_timeout / 1000 if waits else None,
        "with_serving": config.has_model,
        "client_type": client_type if config.has_model else None,
        "model_config": conf.model_dir or None,
        **{name: getattr(conf, name) for name in _MODEL_KEYS},
        "local_predictor": client,
        "right_feed_names": client.feed_names_ if client else [],
        "right_fetch_names": client.fetch_names_ if client else [],
    }


def _get_client_config(conf: LocalServiceConf) -> str | None:
    """Return the path that Paddle Serving gives the client of a local model."""
    return str(Path(conf.model_dir, "serving_server_conf.prototxt")) if conf.model_dir else None
