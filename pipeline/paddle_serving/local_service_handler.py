"""LocalServiceHandler: settings of an Op's model in the script instead of config.yml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LocalServiceHandler:
    """The model of an Op, for `Op(local_service_handler=...)`.

    Every argument is the key of that name in `local_service_conf`, and is validated with config.yml;
    `fetch_names` is `fetch_list`. `dynamic_shape_info` is the value that the Op's hook would set.
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
