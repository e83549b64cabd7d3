"""The machine against config.yml: CPU, memory, GPUs, ports and the libraries of its models."""

from __future__ import annotations

import ctypes
import shutil
import socket
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.launch.doctor import Finding, miss, notice, ok
from pipeline.process.control_group import cores, cpu_quota, limits
from pipeline.process.helper_process import HelperFailed, run_program
from pipeline.process.processes import SERVER, listeners, runs_module

if TYPE_CHECKING:
    from pipeline.config.config_file import ServiceConfig


MIB, GIB = 1 << 20, 1 << 30
SMALL_MEMORY = 2 * GIB  # front, one Paddle worker and a small model take about 1 GiB


def check_machine() -> list[Finding]:
    return [check_cpu(cpu_flags()), check_cores(cores(), cpu_quota()), check_memory(*memory())]


def check_cpu(flags: Collection[str]) -> Finding:
    """Return the precisions that the CPU flags allow. Paddle's build needs AVX."""
    if "avx" not in flags:
        return miss(
            "CPU", "no AVX", "Use a CPU, or a virtual machine's CPU model, with AVX: Paddle needs it."
        )
    vectors = next((name for name in ("avx512f", "avx2", "avx") if name in flags), "avx")
    bf16 = [name for name in ("avx512_bf16", "amx_bf16") if name in flags]
    int8 = ["avx512_vnni"] if "avx512_vnni" in flags else []
    result = ", ".join([vectors, *bf16, *int8])
    if not bf16:
        return ok("CPU", f"{result}; no avx512_bf16 and no amx_bf16: precision fp32 only")
    return ok("CPU", f"{result}; precision bf16 is possible")


def check_cores(usable: int, quota: float | None) -> Finding:
    result = f"{usable} usable"
    if quota is not None and quota < usable:
        remedy = (
            f"Set thread_num x instances to about {max(1, int(quota))}: more threads wait for each other."
        )
        return notice("Cores", f"{result}, but the control group allows {quota:g}", remedy)
    if usable == 1:
        return notice("Cores", result, "Front and worker share it: a second core serves about twice as much.")
    return ok("Cores", result)


def check_memory(available: int, total: int, limit: int | None) -> Finding:
    """Compare the memory with SMALL_MEMORY. All arguments in bytes; limit: of the control group."""
    result = f"{available / GIB:.1f} GiB available of {total / GIB:.1f}"
    if limit is not None and limit < total:
        result += f", limited to {limit / GIB:.1f} GiB by the control group"
    if min(available, total if limit is None else limit) < SMALL_MEMORY:
        remedy = "Keep concurrency at 1: each instance of a Paddle model is a process with its own weights."
        return notice("Memory", result, remedy)
    return ok("Memory", result)


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def memory() -> tuple[int, int, int | None]:
    """Return (available, total, the control group's limit) in bytes."""
    fields = {}
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        name, _, value = line.partition(":")
        fields[name] = int(value.split()[0]) * 1024
    texts = [*limits("memory.max", "memory"), *limits("memory.limit_in_bytes", "memory")]
    limit = min((int(text) for text in texts if text.isdigit()), default=None)
    return fields["MemAvailable"], fields["MemTotal"], limit


TENSORRT_LIBRARIES = ("libnvinfer.so.10", "libnvinfer.so.8", "libnvinfer.so")
SMI_TIMEOUT_S = 30
CPU_INSTEAD = "or set device_type: 0"
GPU_TYPES, TENSORRT_TYPE = (1, 2), 2


def check_gpu(paddle: Mapping[str, Any] | None, config: ServiceConfig | None) -> list[Finding]:
    """Check driver, CUDA and TensorRT. A device that config.yml does not name is never a miss.

    paddle: build of Paddle as printed by the trial prediction, None if Paddle is not installed.
    """
    gpu, tensorrt = required_devices(config)
    cards = list_cards()
    if paddle is None:
        return [check_driver(cards, gpu)]
    return [
        check_driver(cards, gpu),
        check_cuda(paddle, gpu, bool(cards)),
        check_tensorrt(paddle, tensorrt, find_tensorrt()),
    ]


def required_devices(config: ServiceConfig | None) -> tuple[bool, bool]:
    """Return whether any Op runs on a GPU, and whether any Op runs with TensorRT."""
    confs = [op.local_service_conf for op in config.op.values() if op.local_service_conf] if config else []
    types = {1 if conf.device_type == -1 and conf.devices else conf.device_type for conf in confs}
    return not types.isdisjoint(GPU_TYPES), TENSORRT_TYPE in types


def check_driver(cards: list[str], required: bool) -> Finding:
    if cards:
        return ok("NVIDIA driver", "; ".join(cards))
    if required:
        remedy = f"Install the driver, or start the container with --gpus all, {CPU_INSTEAD}."
        return miss("NVIDIA driver", "nvidia-smi shows no card", remedy)
    return notice("NVIDIA driver", "no card; models run on the CPU")


def check_cuda(paddle: Mapping[str, Any], required: bool, cards: bool) -> Finding:
    cuda, visible_cards = paddle.get("cuda", ""), paddle.get("cards", 0)
    if cuda and visible_cards:
        return ok(
            "CUDA", f"{cuda} in Paddle, which sees {visible_cards} card{'s' if visible_cards > 1 else ''}"
        )
    if cuda:
        result, remedy = f"{cuda} in Paddle, which sees no card", "Install a driver that is new enough for it"
    else:
        result, remedy = "Paddle is a CPU build", "Install a GPU build of Paddle (docker/Dockerfile.gpu)"
    if required:
        return miss("CUDA", result, f"{remedy}, {CPU_INSTEAD}.")
    return notice("CUDA", result, f"{remedy} to use the card." if cards else "")


def check_tensorrt(paddle: Mapping[str, Any], required: bool, library: str) -> Finding:
    """Check TensorRT. library: name of the libnvinfer that the loader finds, or empty."""
    built_with = paddle.get("tensorrt", "")
    loaded = paddle.get("tensorrt_found", "") or library
    if built_with and loaded:
        return ok("TensorRT", f"{loaded}; Paddle is built with {built_with}")
    if built_with:
        result = f"Paddle is built with {built_with}, libnvinfer is not found"
        remedy = "Install that TensorRT and name its folder in LD_LIBRARY_PATH"
    else:
        result = f"{library or 'no libnvinfer'}; Paddle is built without it"
        remedy = "Install a build of Paddle with TensorRT (docker/Dockerfile.gpu)"
    if required:
        return miss("TensorRT", result, f"{remedy}, or set device_type: 1 or 0.")
    return notice("TensorRT", result)


def list_cards() -> list[str]:
    """Return name, driver and memory of each card that nvidia-smi shows."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    query = [smi, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = run_program(query, timeout_s=SMI_TIMEOUT_S)
    except (OSError, HelperFailed):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()] if done.status == 0 else []


def find_tensorrt() -> str:
    """Return the name of the libnvinfer that the loader finds, or an empty text."""
    for name in TENSORRT_LIBRARIES:
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return name
    return ""


USUAL = Path("config.yml")
COMMAND_CHARS = 120


def check_config(config_file: Path | None) -> tuple[ServiceConfig | None, list[Finding]]:
    """Load the configuration, and check its ports and models. The configuration is None if loading fails.

    Without `config_file` the config.yml of this folder is checked, if there is one.
    """
    path = config_file or USUAL
    if config_file is None and not path.exists():
        remedy = "Start the doctor in the service's folder, or name the file with --config."
        return None, [notice("Configuration", f"no {path} here; ports were not looked at", remedy)]
    try:
        from pipeline.config.config_file import (
            load_config,  # here: the doctor also runs where pydantic is missing
        )
    except ImportError as exc:
        remedy = "Mend the packages named under Imports first."
        return None, [miss("Configuration", f"{path} was not read: {exc}", remedy)]
    try:
        config = load_config(path)
    except ConfigError as exc:
        return None, [
            miss("Configuration", exc.message, "Mend the keys named there; docs/config.md has all.")
        ]
    findings = [check_port(name, port) for name, port in config.ports().items()]
    return config, [ok("Configuration", str(path)), *findings, *_missing_libraries(config, path)]


def _missing_libraries(config: ServiceConfig, path: Path) -> list[Finding]:
    """Return a miss for each Op whose model needs a library that is not installed.

    Other errors of a model are reported when the service starts.
    """
    try:
        from pipeline.config.value_types import AUTO
        from pipeline.models.serving_model import choose_version
        from pipeline.models.variants import load_for_engine
        from pipeline.tuning.auto import require_engine
    except ImportError:  # reported under Imports
        return []
    findings = []
    for name, op in config.op.items():
        conf = op.local_service_conf
        if conf is None or not conf.model_dir:
            continue
        folder = Path(conf.model_dir) if Path(conf.model_dir).exists() else path.parent / conf.model_dir
        try:
            directory = choose_version(folder, conf.model_version).directory
            model = load_for_engine(directory, None if conf.engine == AUTO else conf.engine)
        except ConfigError:
            continue
        try:
            require_engine(model, conf.engine)
        except ConfigError as exc:
            remedy = "Install it, or serve an ONNX model."
            findings.append(miss(f"Model of {name}", exc.message, remedy))
    return findings


def check_port(name: str, port: int) -> Finding:
    check = f"Port {port}"
    holders = list(listeners(port))
    for pid in (pid for pid, _ in holders if runs_module(pid, SERVER)):
        return notice(check, f"{name}: a service of this project listens there (process {pid})")
    if holders:
        pid, command = holders[0]
        return miss(
            check,
            f"{name}: used by process {pid}, {command[:COMMAND_CHARS]}",
            f"Stop it, or set another {name}.",
        )
    try:
        _try_port(port)
    except OSError as exc:
        remedy = f"Find its owner as root with `ss -ltnp`, or set another {name}."
        return miss(check, f"{name}: can't be opened ({exc.strerror}), owner unknown", remedy)
    return ok(check, f"{name}: free")


def _try_port(port: int) -> None:
    with socket.socket() as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do, for ports just closed
        trial.bind(("", port))
