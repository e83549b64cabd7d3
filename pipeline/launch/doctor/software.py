"""Python, the installed packages against the lock, and packages that must not be there."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path

from pipeline.launch.doctor.finding import INSTALL, LOCK, ROOT, Finding, miss, note, ok
from pipeline.launch.doctor.imports import check_imports
from pipeline.process.numpy_version import REMEDY, flaw_of_numpy

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
    """This interpreter and this system, unless others are given."""
    version = version or sys.version_info[:2]
    system = system or f"{platform.system()} {platform.machine()}"
    found = f"{version[0]}.{version[1]} on {system}"
    if not OLDEST <= version <= NEWEST:
        return miss(
            "Python", found, "Make the environment with Python 3.11-3.13: make setup PYTHON=python3.12"
        )
    if system != "Linux x86_64":
        return miss("Python", found, "Use Linux on x86-64: workers and shared memory are Linux's.")
    return ok("Python", found)


def check_packages(
    locked: Mapping[str, str], direct: Collection[str], installed: Mapping[str, str]
) -> Finding:
    """Versions by normalised name. A direct requirement that is absent is a miss, another version a note."""
    present = {name: installed.get(name) or installed.get(GPU_BUILD_OF.get(name, "")) for name in locked}
    absent = sorted(name for name in direct if not (present.get(name) or installed.get(name)))
    if absent:
        remedy = f"{INSTALL}, and run its own Python."
        return miss("Packages", f"not installed: {_some(absent)}", remedy)
    others = sorted(
        f"{name} {version} (locked: {locked[name]})"
        for name, version in present.items()
        if version and version.split("+")[0] != locked[name]
    )
    if others:
        return note(
            "Packages", f"other versions: {_some(others)}", "The tests ran with the locked ones: make setup."
        )
    if not locked:
        return note("Packages", f"{len(direct)} there; no lock beside the code to compare them with")
    return ok(
        "Packages", f"{sum(map(bool, present.values()))} of the {len(locked)} locked, in their versions"
    )


def check_originals(installed: Collection[str]) -> Finding:
    """Paddle Serving's own packages have the import names of the compatibility distribution."""
    check = "Paddle Serving's packages"
    there = sorted(name for name in installed if ORIGINALS.match(name))
    if there:
        names = " ".join(there)
        return miss(check, f"installed: {names}", f"Remove them: python -m pip uninstall {names}")
    return ok(check, "none, as it should be")


def check_numpy(installed: Mapping[str, str]) -> Finding:
    """Packages written for NumPy 1 put it in place of NumPy 2 as they are installed."""
    if "numpy" not in installed:
        return miss("NumPy", "not installed", f"{INSTALL}.")
    if flaw := flaw_of_numpy(installed["numpy"]):
        return miss("NumPy", flaw, f"{REMEDY}.")
    return ok("NumPy", installed["numpy"])


def check_onnx_runtime(installed: Mapping[str, str]) -> Finding:
    for name in ("onnxruntime-gpu", "onnxruntime"):
        if name in installed:
            return ok("ONNX Runtime", installed[name])
    return note("ONNX Runtime", "not installed; Paddle models are served without it")


def locked_versions(lock: Path) -> dict[str, str]:
    """Version by normalised name; empty where the code was installed without its lock."""
    if not lock.is_file():
        return {}
    lines = lock.read_text("utf-8").splitlines()
    pins = (line.split()[0].split("==") for line in lines if "==" in line and not line.startswith("#"))
    return {_normalised(name): version for name, version in pins}


def direct_requirements(*, extras: bool = False) -> set[str]:
    """What the code itself always imports, as the distribution or pyproject.toml beside the code says.

    extras: what only its extras bring, instead.
    """
    try:
        requirements = importlib.metadata.requires(DISTRIBUTION) or []
        chosen = [text for text in requirements if ("extra ==" in text) is extras]
    except importlib.metadata.PackageNotFoundError:
        project = ROOT / "pyproject.toml"
        content = tomllib.loads(project.read_text("utf-8")) if project.is_file() else {}
        own = content.get("project", {})
        of_extras = [text for extra in own.get("optional-dependencies", {}).values() for text in extra]
        chosen = of_extras if extras else own.get("dependencies", [])
    names = {_normalised(re.split(r"[^\w.-]", text, maxsplit=1)[0]) for text in chosen}
    return names - {DISTRIBUTION}  # an extra may name others of ours


def installed_versions() -> dict[str, str]:
    """Version by normalised name; of several that are found by one name the first, which is imported."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.name:
            found.setdefault(_normalised(distribution.name), distribution.version)
    return found


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _some(names: list[str]) -> str:
    more = len(names) - NAMES_SHOWN
    return ", ".join(names[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
