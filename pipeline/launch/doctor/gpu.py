"""NVIDIA's driver, CUDA and TensorRT, as far as config.yml asks for them."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pipeline.launch.doctor.finding import Finding, miss, note, ok

if TYPE_CHECKING:
    from pipeline.config.config_file import ServiceConfig

TENSORRT_LIBRARIES = ("libnvinfer.so.10", "libnvinfer.so.8", "libnvinfer.so")
SMI_TIMEOUT_S = 30
CPU_INSTEAD = "or set device_type: 0"
GPU_TYPES, TENSORRT_TYPE = (1, 2), 2


def check_gpu(paddle: Mapping[str, Any] | None, config: ServiceConfig | None) -> list[Finding]:
    """`paddle` is what the trial told, None where it is not installed. What config.yml does not ask for is at
    most a note."""
    gpu, tensorrt = wanted_devices(config)
    cards = list_cards()
    if paddle is None:
        return [check_driver(cards, gpu)]
    return [
        check_driver(cards, gpu),
        check_cuda(paddle, gpu, bool(cards)),
        check_tensorrt(paddle, tensorrt, find_tensorrt()),
    ]


def wanted_devices(config: ServiceConfig | None) -> tuple[bool, bool]:
    """Whether any Op of the configuration runs on a GPU, and whether any with TensorRT."""
    confs = [op.local_service_conf for op in config.op.values() if op.local_service_conf] if config else []
    types = {1 if conf.device_type == -1 and conf.devices else conf.device_type for conf in confs}
    return not types.isdisjoint(GPU_TYPES), TENSORRT_TYPE in types


def check_driver(cards: list[str], wanted: bool) -> Finding:
    if cards:
        return ok("NVIDIA driver", "; ".join(cards))
    if wanted:
        remedy = f"Install the driver, or start the container with --gpus all, {CPU_INSTEAD}."
        return miss("NVIDIA driver", "nvidia-smi shows no card", remedy)
    return note("NVIDIA driver", "no card; models run on the CPU")


def check_cuda(paddle: Mapping[str, Any], wanted: bool, cards: bool) -> Finding:
    cuda, seen = paddle.get("cuda", ""), paddle.get("cards", 0)
    if cuda and seen:
        return ok("CUDA", f"{cuda} in Paddle, which sees {seen} card{'s' if seen > 1 else ''}")
    if cuda:
        found, remedy = f"{cuda} in Paddle, which sees no card", "Install a driver that is new enough for it"
    else:
        found, remedy = "Paddle is a CPU build", "Install a GPU build of Paddle (docker/Dockerfile.gpu)"
    if wanted:
        return miss("CUDA", found, f"{remedy}, {CPU_INSTEAD}.")
    return note("CUDA", found, f"{remedy} to use the card." if cards else "")


def check_tensorrt(paddle: Mapping[str, Any], wanted: bool, library: str) -> Finding:
    """`library` is the libnvinfer that the loader finds, or empty."""
    built_with = paddle.get("tensorrt", "")
    loaded = paddle.get("tensorrt_found", "") or library
    if built_with and loaded:
        return ok("TensorRT", f"{loaded}; Paddle is built with {built_with}")
    if built_with:
        found = f"Paddle is built with {built_with}, libnvinfer is not found"
        remedy = "Install that TensorRT and name its folder in LD_LIBRARY_PATH"
    else:
        found = f"{library or 'no libnvinfer'}; Paddle is built without it"
        remedy = "Install a build of Paddle with TensorRT (docker/Dockerfile.gpu)"
    if wanted:
        return miss("TensorRT", found, f"{remedy}, or set device_type: 1 or 0.")
    return note("TensorRT", found)


def list_cards() -> list[str]:
    """Name, driver and memory of each card that nvidia-smi shows."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.returncode == 0 else []


def find_tensorrt() -> str:
    """The libnvinfer the loader finds, or empty."""
    for name in TENSORRT_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ""
