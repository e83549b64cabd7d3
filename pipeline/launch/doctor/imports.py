"""Whether what is installed can be imported, tried in a child process; as a module, that child."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from collections.abc import Collection

from pipeline.launch.doctor.finding import REINSTALL, Finding, miss, ok
from pipeline.process.processes import python_module

TIMEOUT_S = 120.0
MODULE_OF = {"grpcio": "grpc", "pillow": "PIL", "protobuf": "google.protobuf", "pyyaml": "yaml"}
OWN_FINDING = ("paddlepaddle", "paddlepaddle-gpu")  # imported by the trial, which takes seconds
REMEDY = f"{REINSTALL}, and run its own Python."


def check_imports(direct: Collection[str]) -> Finding:
    """`direct`: names of distributions. A module that is there and does not load is a miss."""
    modules = sorted(get_module_name(name) for name in direct if name not in OWN_FINDING)
    try:
        done = subprocess.run(
            [*python_module("pipeline.launch.doctor.imports"), *modules],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return miss("Imports", f"no end within {TIMEOUT_S:g} s", REMEDY)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    failed = [f"{module}: {reason}" for module, reason in told if reason]
    if len(told) < len(modules):
        failed.append(f"{modules[len(told)]}: the process ended with {done.returncode}")
    if failed:
        return miss("Imports", "; ".join(failed), REMEDY)
    return ok("Imports", f"{len(modules)} packages load")


def get_module_name(distribution: str) -> str:
    return MODULE_OF.get(distribution) or re.sub(r"[-.]", "_", distribution)


def main(modules: list[str]) -> None:
    """A JSON line [module, why it can't be imported or ""] for each."""
    for module in modules:
        reason = ""
        try:
            importlib.import_module(module)
        except BaseException as exc:  # a broken package may also raise SystemExit
            reason = f"{type(exc).__name__}: {exc}"[:200]
        sys.stdout.write(json.dumps([module, reason]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
