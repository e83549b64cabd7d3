"""GPUs that instance groups ask for: those of this machine, and whether the model's engine can use them."""

from __future__ import annotations

import importlib.metadata
import re
from functools import cache
from pathlib import Path
from typing import Any

from client.protos.kserve_v2_pb2 import ModelConfig, ModelInstanceGroup

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
