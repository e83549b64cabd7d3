"""Paddle Serving's attributes and classes for the model of an Op (a step of the service), for user code.

`LocalServiceHandler` declares a model that runs in the Op's process; `LocalClient` runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.config.config_file import LocalServiceConf, OpConfig
from pipeline.engines.base import Predictor
from pipeline.engines.feeds import LOD_SUFFIX
from pipeline.engines.fetches import find_fetch
from pipeline.errors import InvalidInput

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
    """Return an Op's attributes in Paddle Serving's naming, by name, from the arguments of its constructor.

    These attributes are set in the process of the user's script. Worker processes use `get_op_settings`,
    which includes config.yml.
    """
    settings = {f"_{name}": options[name] for name in _ARGUMENTS}
    settings["_retry"] = max(1, settings["_retry"] or 1)
    return settings | {name: options[name] for name in ("concurrency", "client_type")}


def get_op_settings(config: OpConfig, client: LocalClient | None) -> dict[str, Any]:
    """Return an Op's attributes in Paddle Serving's naming, by name, for its worker process.

    The values come from the Op's section of config.yml. client: the client of a model that runs in this
    process; it is also set as `local_predictor`. The attribute `with_serving` says whether the Op has a
    model.
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
    """Return the prototxt path that Paddle Serving passes to a local model's client; None without a model."""
    return str(Path(conf.model_dir, "serving_server_conf.prototxt")) if conf.model_dir else None


class LocalServiceHandler:
    """Declares the model that an Op runs in its own process, for `Op(local_service_handler=...)`.

    Each argument sets the key of the same name in `local_service_conf` of config.yml, with the same
    validation. Only `fetch_names` sets the key `fetch_list`. `dynamic_shape_info` (TensorRT shape ranges)
    replaces the attribute of that name on the Op.
    """

    def __init__(
        self,
        model_config: str,
        client_type: str = "local_predictor",
        workdir: str = "",
        thread_num: int = 2,
        device_type: int = -1,
        devices: str = "",
        fetch_names: Sequence[str] | None = None,
        mem_optim: bool = True,
        ir_optim: bool = False,
        available_port_generator: object = None,  # unused: no brpc servers here
        use_profile: bool = False,
        dynamic_shape_info: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
        **keys: Any,
    ) -> None:
        self.dynamic_shape_info = dynamic_shape_info or {}
        self.local_service_conf = {
            "model_config": model_config,
            "client_type": client_type,
            "workdir": workdir,
            "thread_num": thread_num,
            "device_type": device_type,
            "devices": devices,
            "fetch_list": list(fetch_names or ()),
            "mem_optim": mem_optim,
            "ir_optim": ir_optim,
            **keys,
        }


class LocalClient:
    """Runs a model that is loaded in this process, with the interface of a Paddle Serving client.

    User code finds it as `self.client` of an Op. `feed_names_` and `fetch_names_` list the names (aliases) of
    the model's input and output tensors; `feed_shapes_` has the input shapes without the batch axis.
    """

    def __init__(self, predictor: Predictor) -> None:
        self._predictor = predictor
        self.feed_names_ = [variable.alias for variable in predictor.feeds]
        self.fetch_names_ = [variable.alias for variable in predictor.fetches]
        self.feed_shapes_ = {variable.alias: list(variable.shape[1:]) for variable in predictor.feeds}

    def predict(
        self,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        fetch: Sequence[str] | str | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """Run the model once, and return the output arrays named in `fetch` (by default all), by name.

        feed: input arrays by name. Without `batch`, each feed is one row, and gets a batch axis. A list of
        feeds is a list of rows of the same shape. A ragged input "x" needs `batch`, and its offsets as
        "x.lod". Raises InvalidInput for missing inputs and unknown outputs, and passes on the errors of the
        model's engine.
        """
        rows = [feed] if isinstance(feed, Mapping) else list(feed)
        if not rows:
            raise InvalidInput("feed is an empty list; give at least one row")
        arrays = {}
        for variable in self._predictor.feeds:
            missing = [row for row in rows if variable.alias not in row]
            if missing:
                raise InvalidInput(f"feed has no {variable.alias!r}, only {', '.join(map(repr, missing[0]))}")
            values = [np.asarray(row[variable.alias], variable.numpy_dtype) for row in rows]
            arrays[variable.alias] = np.concatenate(values) if batch else np.stack(values)
            lod = variable.alias + LOD_SUFFIX
            if len(rows) == 1 and lod in rows[0]:
                arrays[lod] = np.asarray(rows[0][lod])
        outputs = self._predictor.run(arrays)
        fetched: dict[str, Any] = {}
        for name in ([fetch] if isinstance(fetch, str) else fetch) or self.fetch_names_:
            selected = find_fetch(self._predictor.fetches, name)
            if selected is None:
                raise InvalidInput(f"fetch has {name!r}; the model has {', '.join(self.fetch_names_)}")
            fetched[name] = outputs[selected.alias]
            if selected.alias + LOD_SUFFIX in outputs:
                fetched[name + LOD_SUFFIX] = outputs[selected.alias + LOD_SUFFIX]
        return fetched
