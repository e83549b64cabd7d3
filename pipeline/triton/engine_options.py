"""What a model's `parameters` and `optimization` say of its engine, as keys of `local_service_conf`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig

_THREADS = {  # by backend: the parameters that tell the threads of a run
    "onnxruntime": ("intra_op_thread_count",),
    "openvino": ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM"),
}
_OF_ACCELERATOR = "cpu_threads"  # the same among the parameters of Paddle's accelerators
_BASIC_LEVELS = (-1, 2)  # of `optimization.graph`: basic ones, and none, which no engine here is told
_PARALLEL = "1"  # of `execution_mode`


def get_engine_options(config: ModelConfig, backend: str, threads: int) -> dict[str, Any]:
    """threads: of a run, where the configuration does not say how many."""
    parameters = {key: config.parameters[key].string_value for key in config.parameters}
    named = [parameters.get(key, "") for key in _THREADS.get(backend, ())]
    named += [
        one.parameters[_OF_ACCELERATOR] for one in _accelerators(config) if _OF_ACCELERATOR in one.parameters
    ]
    options: dict[str, Any] = {
        "thread_num": next((int(told) for told in named if _is_count(told)), threads),
        "ir_optim": config.optimization.graph.level not in _BASIC_LEVELS,
    }
    if backend == "onnxruntime" and parameters.get("execution_mode") == _PARALLEL:
        told = parameters.get("inter_op_thread_count", "")
        options["inter_op_thread_num"] = int(told) if _is_count(told) else os.cpu_count() or 1
    if backend == "openvino" and parameters.get("HINT_BF16", "").lower() in ("yes", "true"):
        options["precision"] = "bf16"
    return options


def without_effect(config: ModelConfig, backend: str) -> Iterator[str]:
    """A line for each accelerator that is not used here."""
    for one in _accelerators(config):
        if (backend, one.name) not in (("paddle", "mkldnn"), ("paddle", "paddle"), ("openvino", "openvino")):
            way = ' (backend: "openvino" runs it by OpenVINO)' if one.name == "openvino" else ""
            yield (
                f"Model {config.name}: its execution accelerator {one.name!r} has no effect: {backend} runs "
                f"the model by itself{way}"
            )


def _accelerators(config: ModelConfig) -> list[Any]:
    told = config.optimization.execution_accelerators
    return [*told.cpu_execution_accelerator, *told.gpu_execution_accelerator]


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0
