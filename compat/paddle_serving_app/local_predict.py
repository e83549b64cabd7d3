"""`LocalPredictor` of Paddle Serving: runs a model in the caller's process, without a server."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import DynamicShapes, create_predictor
from pipeline.errors import ConfigError, InvalidInput
from pipeline.models.serving_model import load_serving_model
from pipeline.paddle_serving.op_settings import LocalClient

CPU, GPU, TENSORRT = 0, 1, 2


class LocalPredictor:
    """Runs a model in this process: call `load_model_config(folder)`, then `predict(feed, fetch)`.

    Attributes: feed_names_ and fetch_names_ are the names of the model's input and output tensors.
    feed_shapes_ are the shapes of the inputs without the batch dimension.
    """

    def __init__(self) -> None:
        self._client: LocalClient | None = None
        self._running = threading.Lock()  # the threads of an Op's instances share what its init_op loads
        self.feed_names_: list[str] = []
        self.fetch_names_: list[str] = []
        self.feed_shapes_: dict[str, list[int]] = {}

    def load_model_config(
        self,
        model_path: str | Path,
        use_gpu: bool = False,
        gpu_id: int | str = 0,
        use_profile: bool = False,
        thread_num: int = 1,
        mem_optim: bool = True,
        ir_optim: bool = False,
        use_trt: bool = False,
        use_lite: bool = False,
        use_xpu: bool = False,
        precision: str = "fp32",
        use_mkldnn: bool = False,
        mkldnn_cache_capacity: int = 0,
        mkldnn_op_list: Sequence[str] | None = None,
        mkldnn_bf16_op_list: Sequence[str] | None = None,
        use_feed_fetch_ops: bool = False,
        use_ascend_cl: bool = False,
        min_subgraph_size: int = 3,
        dynamic_shape_info: Mapping[str, Mapping[str, Sequence[int]]] | None = None,
        use_calib: bool = False,
    ) -> None:
        """Load the model of a folder on the CPU, or on a GPU with `use_gpu`.

        `use_profile` and `use_feed_fetch_ops` have no effect. Raises ConfigError, including for Paddle Lite,
        XPU and Ascend, which are not supported.
        """
        for name, requested in (
            ("use_lite", use_lite),
            ("use_xpu", use_xpu),
            ("use_ascend_cl", use_ascend_cl),
        ):
            if requested:
                raise ConfigError(f"{name} is not supported; load the model on the CPU or with use_gpu")
        conf = {
            "model_config": str(model_path),
            "device_type": (TENSORRT if use_trt else GPU) if use_gpu else CPU,
            "devices": str(gpu_id) if use_gpu else "",
            "thread_num": thread_num,
            "mem_optim": mem_optim,
            "ir_optim": ir_optim,
            "precision": precision,
            "use_mkldnn": use_mkldnn or None,
            "mkldnn_cache_capacity": mkldnn_cache_capacity,
            "mkldnn_op_list": mkldnn_op_list,
            "mkldnn_bf16_op_list": mkldnn_bf16_op_list,
            "min_subgraph_size": min_subgraph_size,
            "use_calib": use_calib,
        }
        predictor = create_predictor(
            load_serving_model(Path(model_path)),
            LocalServiceConf.model_validate(conf),
            dynamic_shapes=DynamicShapes.from_info(dynamic_shape_info) if dynamic_shape_info else None,
        )
        client = self._client = LocalClient(predictor)
        self.feed_names_, self.fetch_names_ = client.feed_names_, client.fetch_names_
        self.feed_shapes_ = client.feed_shapes_

    def predict(
        self,
        feed: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        fetch: Sequence[str] | str | None = None,
        batch: bool = False,
        log_id: int = 0,
    ) -> dict[str, Any]:
        """Run the model once on input tensors by name, and return the output tensors by name.

        feed: a dict, or a list of dicts with one row each. fetch: names of outputs; None for all. batch:
        whether the inputs already have a batch dimension; otherwise rows are stacked. Raises InvalidInput,
        also if no model is loaded yet.
        """
        if self._client is None:
            raise InvalidInput("no model is loaded; call load_model_config('serving_server') first")
        with self._running:
            return self._client.predict(feed, fetch, batch, log_id)
