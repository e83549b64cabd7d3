"""Options of config.pbtxt as keys of `local_service_conf`: engine options and GPUs of instance groups."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInstanceGroup

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


_BUILDS = {
    "onnxruntime": "onnxruntime-gpu",
    "paddle": "paddlepaddle-gpu",
}  # the distributions that run on GPUs
_GPU = 1  # of `device_type`


@cache
def count_gpus() -> int:
    """Return the number of GPUs of this machine whose driver is loaded."""
    names = (path.name for path in Path("/dev").glob("nvidia*"))
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)


def requests_gpu(config: ModelConfig) -> bool:
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def find_cpu_reason(backend: str) -> str:
    """Return why models of this backend run on the CPU; empty where a GPU can run them."""
    if not count_gpus():
        return "there is no GPU here"
    build = _BUILDS.get(backend)
    if build is None:
        return "" if backend == "python" else f"the backend {backend} runs on the CPU alone"
    try:
        importlib.metadata.version(build)
    except importlib.metadata.PackageNotFoundError:
        return f"{build} is not installed"
    return ""


def move_to_cpu(config: ModelConfig) -> None:
    """Change all GPU instance groups to CPU groups: the model's code reads them and must not use a GPU."""
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]


def get_device_keys(config: ModelConfig, backend: str) -> dict[str, Any]:
    """Return the keys of `local_service_conf` for the device; empty for the CPU."""
    if not requests_gpu(config) or find_cpu_reason(backend):
        return {}
    named = [gpu for group in config.instance_group for gpu in group.gpus]
    return {"device_type": _GPU, "devices": ",".join(map(str, named or range(count_gpus())))}
