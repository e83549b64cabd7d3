"""LocalServiceHandler: an Op's model, given in the script in place of `local_service_conf` in config.yml."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class LocalServiceHandler:
    """What `Op(local_service_handler=...)` takes. Every argument is the key of that name, and is checked with
    config.yml; `fetch_names` is `fetch_list`.

    local_service_conf: the section they make. dynamic_shape_info: what the Op's hook would set.
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
        available_port_generator: object = None,  # of the brpc servers that were started for a model there
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
