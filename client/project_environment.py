"""Restarts a client script in the project's virtual environment if packages are missing."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def use_project_environment(*modules: str) -> None:
    """Restart this script in the project's .venv if a module can't be imported; else return.

    Exits with a message if there is no .venv. `python3 client/rpc_client.py` thus works without activating
    the environment.
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
