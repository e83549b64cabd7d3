"""Python, the installed packages against the lock, their imports, and the package of running services.

`python -m pipeline.launch.doctor.software MODULE ...` is the child process that imports them.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import platform
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from pipeline.launch.doctor import INSTALL, LOCK, REINSTALL, ROOT, Finding, miss, notice, ok
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.process.numpy_version import REMEDY, flaw_of_numpy
from pipeline.process.processes import (
    WORKER,
    RunningService,
    module_arguments,
    running_services,
)

IMPORT_TIMEOUT_S = 120.0
MODULE_OF = {"grpcio": "grpc", "pillow": "PIL", "protobuf": "google.protobuf", "pyyaml": "yaml"}
OWN_FINDING = ("paddlepaddle", "paddlepaddle-gpu")  # imported by the trial, which takes seconds
IMPORT_HINT = f"{REINSTALL}, and run its own Python."


def check_imports(direct: Collection[str]) -> Finding:
    """Import the modules of these distributions in a child process. A failing import is a miss."""
    modules = sorted(get_module_name(name) for name in direct if name not in OWN_FINDING)
    try:
        done = run_helper("pipeline.launch.doctor.software", *modules, timeout_s=IMPORT_TIMEOUT_S)
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
    return MODULE_OF.get(distribution) or re.sub(r"[-.]", "_", distribution)


def try_imports(modules: list[str]) -> None:
    """Print a JSON line [module, error] for each module; the error is empty if the import succeeds."""
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
    ]


def check_python(version: tuple[int, int] | None = None, system: str | None = None) -> Finding:
    """Check the Python version and the system; by default those of this process."""
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
    """Compare the installed versions with the lock; all keys are normalised names.

    An absent direct requirement is a miss, another version than the locked one is a note.
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
    """Check for Paddle Serving's packages, whose import names clash with the compatibility distribution."""
    check = "Paddle Serving's packages"
    conflicting = sorted(name for name in installed if ORIGINALS.match(name))
    if conflicting:
        names = " ".join(conflicting)
        return miss(check, f"installed: {names}", f"Remove them: python -m pip uninstall {names}")
    return ok(check, "none, as it should be")


def check_numpy(installed: Mapping[str, str]) -> Finding:
    """Check for NumPy 1, which packages written for it install in place of NumPy 2."""
    if "numpy" not in installed:
        return miss("NumPy", "not installed", f"{INSTALL}.")
    if flaw := flaw_of_numpy(installed["numpy"]):
        return miss("NumPy", flaw, f"{REMEDY}.")
    return ok("NumPy", installed["numpy"])


def check_onnx_runtime(installed: Mapping[str, str]) -> Finding:
    for name in ("onnxruntime-gpu", "onnxruntime"):
        if name in installed:
            return ok("ONNX Runtime", installed[name])
    return notice("ONNX Runtime", "not installed; Paddle models are served without it")


def locked_versions(lock: Path) -> dict[str, str]:
    """Return the locked version by normalised name; empty if the code was installed without its lock."""
    if not lock.is_file():
        return {}
    lines = lock.read_text("utf-8").splitlines()
    pins = (line.split()[0].split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normalised(name): version for name, version in pins}


def direct_requirements(*, extras: bool = False) -> set[str]:
    """Return the requirements of the distribution, or of the pyproject.toml beside the code.

    extras: return the requirements of the extras instead.
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
    """Return the installed version by normalised name. Of several versions Python imports the first."""
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


def check_running() -> list[Finding]:
    """Return a finding for each service whose package was changed since its start."""
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
    """Return the protocol versions of the service's workers; empty for a service of another package."""
    return {arguments[0] for pid in service.worker_pids() if (arguments := module_arguments(pid, WORKER))}


if __name__ == "__main__":
    try_imports(sys.argv[1:])
