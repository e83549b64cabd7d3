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
def cards() -> int:
    """GPUs of this machine whose driver is loaded."""
    names = (path.name for path in Path("/dev").glob("nvidia*"))
    return sum(re.fullmatch(r"nvidia\d+", name) is not None for name in names)


def asks_for_gpu(config: ModelConfig) -> bool:
    return any(group.kind == ModelInstanceGroup.KIND_GPU for group in config.instance_group)


def why_not(backend: str) -> str:
    """Why a model of this backend runs on the CPU; empty where it can run on a GPU."""
    if not cards():
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
    """Have all instances run on the CPU. The model's code reads the groups, and then asks for no GPU."""
    for group in config.instance_group:
        if group.kind == ModelInstanceGroup.KIND_GPU:
            group.kind = ModelInstanceGroup.KIND_CPU
            del group.gpus[:]


def get_device_keys(config: ModelConfig, backend: str) -> dict[str, Any]:
    """What `local_service_conf` says of the device; nothing for the CPU."""
    if not asks_for_gpu(config) or why_not(backend):
        return {}
    named = [gpu for group in config.instance_group for gpu in group.gpus]
    return {"device_type": _GPU, "devices": ",".join(map(str, named or range(cards())))}
