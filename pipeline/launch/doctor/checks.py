"""The checks of `paddlewheel doctor`: machine, packages, GPU, config.yml and running services.

As a script, imports the modules named on the command line and prints the errors: see `try_imports`.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import json
import platform
import re
import shutil
import socket
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.errors import ConfigError
from pipeline.launch.doctor import INSTALL, LOCK, REINSTALL, ROOT, Finding, miss, notice, ok
from pipeline.process.environment import REMEDY, cores, cpu_quota, flaw_of_numpy, limits
from pipeline.process.helper_process import HelperFailed, run_helper, run_program
from pipeline.process.processes import (
    SERVER,
    WORKER,
    RunningService,
    listeners,
    module_arguments,
    running_services,
    runs_module,
)

if TYPE_CHECKING:
    from pipeline.config.config_file import ServiceConfig


MIB, GIB = 1 << 20, 1 << 30
SMALL_MEMORY = 2 * GIB  # front process, one Paddle worker and a small model take about 1 GiB


def check_machine() -> list[Finding]:
    """Check CPU, cores and memory of this machine; return a finding for each."""
    return [check_cpu(cpu_flags()), check_cores(cores(), cpu_quota()), check_memory(*memory())]


def check_cpu(flags: Collection[str]) -> Finding:
    """Check the CPU flags of /proc/cpuinfo for AVX, which Paddle needs, and for bf16 instructions."""
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
    """Compare the number of usable cores with the CPU quota of the control group (None without a quota)."""
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
    """Check whether the memory is sufficient for a small service. All arguments are in bytes.

    limit: memory limit of the control group; None without a limit.
    """
    result = f"{available / GIB:.1f} GiB available of {total / GIB:.1f}"
    if limit is not None and limit < total:
        result += f", limited to {limit / GIB:.1f} GiB by the control group"
    if min(available, total if limit is None else limit) < SMALL_MEMORY:
        remedy = "Keep concurrency at 1: each instance of a Paddle model is a process with its own weights."
        return notice("Memory", result, remedy)
    return ok("Memory", result)


def cpu_flags() -> set[str]:
    """Return the flags of the first CPU in /proc/cpuinfo; empty if it lists no flags."""
    for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
        if line.startswith("flags"):
            return set(line.partition(":")[2].split())
    return set()


def memory() -> tuple[int, int, int | None]:
    """Return available memory, total memory, and the control group's limit (or None), in bytes."""
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
    """Check the NVIDIA driver, CUDA and TensorRT.

    A missing device is only a miss if config.yml names the device. paddle: facts about the installed Paddle,
    printed by the trial prediction; None if Paddle is not installed. config: the loaded config.yml, or None.
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
    """Return whether config.yml puts any model on a GPU, and whether any model runs with TensorRT."""
    confs = [op.local_service_conf for op in config.op.values() if op.local_service_conf] if config else []
    types = {1 if conf.device_type == -1 and conf.devices else conf.device_type for conf in confs}
    return not types.isdisjoint(GPU_TYPES), TENSORRT_TYPE in types


def check_driver(cards: list[str], required: bool) -> Finding:
    """Return the finding about the NVIDIA driver. cards: lines of nvidia-smi, one for each GPU."""
    if cards:
        return ok("NVIDIA driver", "; ".join(cards))
    if required:
        remedy = f"Install the driver, or start the container with --gpus all, {CPU_INSTEAD}."
        return miss("NVIDIA driver", "nvidia-smi shows no card", remedy)
    return notice("NVIDIA driver", "no card; models run on the CPU")


def check_cuda(paddle: Mapping[str, Any], required: bool, cards: bool) -> Finding:
    """Check whether the installed Paddle has CUDA and sees a GPU.

    paddle: facts printed by the trial prediction. required: whether a model needs a GPU. cards: whether
    nvidia-smi shows a GPU.
    """
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
    """Check whether Paddle is built with TensorRT, and the TensorRT library is found.

    paddle: facts printed by the trial prediction. required: whether a model runs with TensorRT. library: file
    name of the libnvinfer that the dynamic loader finds, or an empty text.
    """
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
    """Return a text with name, driver version and memory for each GPU that nvidia-smi shows."""
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
    """Return the file name of the TensorRT library that the dynamic loader finds, or an empty text."""
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
    """Load config.yml, and check its ports and the libraries of its models.

    Returns the configuration, or None if it can't be loaded, and the findings. Without `config_file`, checks
    the config.yml of the working directory if it exists.
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
    """Return a miss for each model of config.yml whose inference library is not installed.

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
    """Check whether a TCP port can be opened. name: key of config.yml that sets the port.

    A port in use is a note if a service of this project uses the port, else a miss.
    """
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


IMPORT_TIMEOUT_S = 120.0
MODULE_OF = {"grpcio": "grpc", "pillow": "PIL", "protobuf": "google.protobuf", "pyyaml": "yaml"}
OWN_FINDING = ("paddlepaddle", "paddlepaddle-gpu")  # imported by the trial, which takes seconds
IMPORT_HINT = f"{REINSTALL}, and run its own Python."


def check_imports(direct: Collection[str]) -> Finding:
    """Import packages in a child process, so that a crash does not end the doctor.

    direct: names of distributions. A failing import is a miss.
    """
    modules = sorted(get_module_name(name) for name in direct if name not in OWN_FINDING)
    try:
        done = run_helper("pipeline.launch.doctor.checks", *modules, timeout_s=IMPORT_TIMEOUT_S)
    except HelperFailed as exc:
        return miss("Imports", f"the process {exc.message}", IMPORT_HINT)
    attempts = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    failed = [f"{module}: {reason}" for module, reason in attempts if reason]
    if len(attempts) < len(modules):
        failed.append(f"{modules[len(attempts)]}: the process ended with {done.status}")
    if failed:
        return miss("Imports", "; ".join(failed), IMPORT_HINT)
    return ok("Imports", f"{len(modules)} packages load")


def get_module_name(distribution: str) -> str:
    """Return the module to import for a distribution, such as `PIL` for pillow."""
    return MODULE_OF.get(distribution) or re.sub(r"[-.]", "_", distribution)


def try_imports(modules: list[str]) -> None:
    """Import modules, and print a JSON line [module, error] for each. An empty error means success."""
    for module in modules:
        reason = ""
        try:
            importlib.import_module(module)
        except BaseException as exc:  # a broken package may also raise SystemExit
            reason = f"{type(exc).__name__}: {exc}"[:200]
        sys.stdout.write(json.dumps([module, reason]) + "\n")
        sys.stdout.flush()


DISTRIBUTION = "paddlewheel"
OLDEST, NEWEST = (3, 11), (3, 13)
GPU_BUILD_OF = {"paddlepaddle": "paddlepaddle-gpu"}
ORIGINALS = re.compile(r"^paddle-serving-(app|client|server(-\w+)?)$")
NAMES_SHOWN = 4


def check_software() -> list[Finding]:
    """Check Python, the installed packages, NumPy and ONNX Runtime; return a finding for each check."""
    installed = installed_versions()
    direct = direct_requirements()
    extras = direct_requirements(extras=True)
    return [
        check_python(),
        check_packages(locked_versions(LOCK), direct, installed),
        check_imports(direct | (extras & installed.keys())),
        check_numpy(installed),
        check_originals(installed),
        check_onnx_runtime(installed),
        check_tritonserver(shutil.which("tritonserver")),
    ]


def check_python(version: tuple[int, int] | None = None, system: str | None = None) -> Finding:
    """Check the Python version and the platform, such as "Linux x86_64"; by default of this process."""
    version = version or sys.version_info[:2]
    system = system or f"{platform.system()} {platform.machine()}"
    result = f"{version[0]}.{version[1]} on {system}"
    if not OLDEST <= version <= NEWEST:
        return miss(
            "Python", result, "Make the environment with Python 3.11-3.13: make setup PYTHON=python3.12"
        )
    if system != "Linux x86_64":
        return miss("Python", result, "Use Linux on x86-64: workers and shared memory are Linux's.")
    return ok("Python", result)


def check_packages(
    locked: Mapping[str, str], direct: Collection[str], installed: Mapping[str, str]
) -> Finding:
    """Compare the installed package versions with the lock file. Keys are normalised package names.

    direct: packages that this distribution requires itself. An absent direct requirement is a miss, a version
    other than the locked one is a note.
    """
    present = {name: installed.get(name) or installed.get(GPU_BUILD_OF.get(name, "")) for name in locked}
    absent = sorted(name for name in direct if not (present.get(name) or installed.get(name)))
    if absent:
        remedy = f"{INSTALL}, and run its own Python."
        return miss("Packages", f"not installed: {_some(absent)}", remedy)
    mismatches = sorted(
        f"{name} {version} (locked: {locked[name]})"
        for name, version in present.items()
        if version and version.split("+")[0] != locked[name]
    )
    if mismatches:
        return notice(
            "Packages",
            f"other versions: {_some(mismatches)}",
            "The tests ran with the locked ones: make setup.",
        )
    if not locked:
        return notice("Packages", f"{len(direct)} there; no lock beside the code to compare them with")
    return ok(
        "Packages", f"{sum(map(bool, present.values()))} of the {len(locked)} locked, in their versions"
    )


def check_originals(installed: Collection[str]) -> Finding:
    """Report Paddle Serving's own packages, whose module names clash with the compatibility packages."""
    check = "Paddle Serving's packages"
    conflicting = sorted(name for name in installed if ORIGINALS.match(name))
    if conflicting:
        names = " ".join(conflicting)
        return miss(check, f"installed: {names}", f"Remove them: python -m pip uninstall {names}")
    return ok(check, "none, as it should be")


def check_numpy(installed: Mapping[str, str]) -> Finding:
    """Report NumPy 1, which older packages install in place of the required NumPy 2.

    installed: version by package name.
    """
    if "numpy" not in installed:
        return miss("NumPy", "not installed", f"{INSTALL}.")
    if flaw := flaw_of_numpy(installed["numpy"]):
        return miss("NumPy", flaw, f"{REMEDY}.")
    return ok("NumPy", installed["numpy"])


def check_onnx_runtime(installed: Mapping[str, str]) -> Finding:
    """Report the version of ONNX Runtime.

    If it is missing, the finding is only a note, because it is optional.
    """
    for name in ("onnxruntime-gpu", "onnxruntime"):
        if name in installed:
            return ok("ONNX Runtime", installed[name])
    return notice("ONNX Runtime", "not installed; Paddle models are served without it")


def locked_versions(lock: Path) -> dict[str, str]:
    """Read a requirements file with pinned versions; return the version by normalised package name.

    Returns an empty dict if the file does not exist, as in an installed package.
    """
    if not lock.is_file():
        return {}
    lines = lock.read_text("utf-8").splitlines()
    pins = (line.split()[0].split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normalised(name): version for name, version in pins}


def direct_requirements(*, extras: bool = False) -> set[str]:
    """Return the normalised names of the packages that `paddlewheel` requires.

    They come from the installed metadata, or from the pyproject.toml beside the code. extras: return the
    packages of the optional extras instead.
    """
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
        chosen = [text for text in requirements if ("extra ==" in text) is extras]
    except importlib.metadata.PackageNotFoundError:
        project = ROOT / "pyproject.toml"
        content = tomllib.loads(project.read_text("utf-8")) if project.is_file() else {}
        metadata = content.get("project", {})
        optional = [text for extra in metadata.get("optional-dependencies", {}).values() for text in extra]
        chosen = optional if extras else metadata.get("dependencies", [])
    names = {_normalised(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in chosen}
    return names - {DISTRIBUTION}  # an extra may name other extras of this distribution


def installed_versions() -> dict[str, str]:
    """Return the installed version by normalised package name.

    If a package is installed several times, the first on sys.path counts.
    """
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:
            versions.setdefault(_normalised(distribution.name), distribution.version)
    return versions


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")


_ENTRY_POINT = b"pipeline.__main__"  # in the programs that pip installs for this package


def check_tritonserver(program: str | None) -> Finding:
    """Report the program `tritonserver` that is first on the PATH.

    program: its path; None if there is none.
    """
    check = "tritonserver"
    if program is None:
        remedy = "Name the bin folder of this environment in PATH, where KServe or another host starts it."
        return notice(check, "not on the PATH", remedy)
    try:
        with Path(program).open("rb") as file:
            is_ours = _ENTRY_POINT in file.read(4096)
    except OSError as exc:
        return notice(check, f"first on the PATH: {program}, which can't be read ({exc.strerror})")
    if is_ours:
        return ok(check, f"first on the PATH: {program}, of this package")
    remedy = "Name the bin folder of this environment first in PATH, if hosts shall start this server."
    return notice(check, f"first on the PATH: {program}, of another package", remedy)


def check_running() -> list[Finding]:
    """Report each running service whose installed package has changed since the service started."""
    try:
        # Imported here: the doctor also runs without msgspec.
        from pipeline.messages.frames import PROTOCOL_VERSION
    except ImportError:
        return []
    remedy = "Restart the service: running workers serve on, but none of them can be replaced."
    return [
        notice("Running service", f"{service}: the installed package has changed since its start", remedy)
        for service in running_services()
        if not _get_versions(service) <= {PROTOCOL_VERSION}
    ]


def _get_versions(service: RunningService) -> set[str]:
    """Return the versions of the message protocol with which the service's workers were started.

    Empty if this user can see no workers.
    """
    return {arguments[0] for pid in service.worker_pids() if (arguments := module_arguments(pid, WORKER))}


if __name__ == "__main__":
    try_imports(sys.argv[1:])
