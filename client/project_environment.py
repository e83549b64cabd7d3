"""Finds the project's own interpreter when a script was started with one that lacks its dependencies."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def use_project_environment(*modules: str) -> None:
    """Goes on as it is when `modules` can be imported, in the project's .venv when that exists, else exits.

    So `python3 client/rpc_client.py` works beside `make serve` without activating anything.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    interpreter = ROOT / ".venv" / "bin" / "python"
    if interpreter.exists() and Path(sys.executable).parent != interpreter.parent:
        os.execv(interpreter, [str(interpreter), *sys.orig_argv[1:]])
    sys.exit(
        f"{sys.executable} has no module {', '.join(missing)}. Run `make setup` in {ROOT}, or install "
        "grpcio, protobuf and rich for this interpreter."
    )
