"""Engine options from a model's `parameters` and `optimization`, as keys of `local_service_conf`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig

_THREADS = {  # by backend: the parameters for the number of threads of a run
    "onnxruntime": ("intra_op_thread_count",),
    "openvino": ("INFERENCE_NUM_THREADS", "CPU_THREADS_NUM"),
}
_ACCELERATOR_THREADS = "cpu_threads"  # the number of threads, as a parameter of Paddle's accelerators
_BASIC_LEVELS = (-1, 2)  # of `optimization.graph`: -1 basic, 2 none; no engine here can disable all
_PARALLEL = "1"  # of `execution_mode`


def get_engine_options(config: ModelConfig, backend: str, threads: int) -> dict[str, Any]:
    """Return the engine's keys of `local_service_conf`.

    threads: number of threads per run where the configuration does not set it.
    """
    parameters = {key: config.parameters[key].string_value for key in config.parameters}
    named = [parameters.get(key, "") for key in _THREADS.get(backend, ())]
    named += [
        accelerator.parameters[_ACCELERATOR_THREADS]
        for accelerator in _list_accelerators(config)
        if _ACCELERATOR_THREADS in accelerator.parameters
    ]
    options: dict[str, Any] = {
        "thread_num": next((int(value) for value in named if _is_count(value)), threads),
        "ir_optim": config.optimization.graph.level not in _BASIC_LEVELS,
    }
    if backend == "onnxruntime" and parameters.get("execution_mode") == _PARALLEL:
        count = parameters.get("inter_op_thread_count", "")
        options["inter_op_thread_num"] = int(count) if _is_count(count) else os.cpu_count() or 1
    if backend == "openvino" and parameters.get("HINT_BF16", "").lower() in ("yes", "true"):
        options["precision"] = "bf16"
    return options


def describe_ineffective_accelerators(config: ModelConfig, backend: str) -> Iterator[str]:
    """Yield a warning for each execution accelerator without effect."""
    for accelerator in _list_accelerators(config):
        if (backend, accelerator.name) not in (
            ("paddle", "mkldnn"),
            ("paddle", "paddle"),
            ("openvino", "openvino"),
        ):
            hint = ' (backend: "openvino" runs it by OpenVINO)' if accelerator.name == "openvino" else ""
            yield (
                f"Model {config.name}: its execution accelerator {accelerator.name!r} has no effect: "
                f"{backend} runs the model by itself{hint}"
            )


def _list_accelerators(config: ModelConfig) -> list[Any]:
    accelerators = config.optimization.execution_accelerators
    return [*accelerators.cpu_execution_accelerator, *accelerators.gpu_execution_accelerator]


def _is_count(text: str) -> bool:
    return text.isdecimal() and int(text) > 0
