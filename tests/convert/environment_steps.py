"""Steps that tell what the conversion environment holds."""

from __future__ import annotations

import importlib
import sys
from importlib import metadata
from typing import Any

from convert.progress import Steps


def installed(steps: Steps) -> dict[str, Any]:
    packages = [(d.metadata["Name"], d.version) for d in metadata.distributions()]
    return {"prefix": sys.prefix, "packages": packages}


def imported(steps: Steps, module: str) -> str:
    return importlib.import_module(module).__name__
