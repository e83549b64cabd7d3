"""Imports packages that only some tokenizers need, when such a tokenizer is created."""

from __future__ import annotations

import importlib
from typing import Any


def import_package(name: str, purpose: str, command: str = "") -> Any:
    """Import and return an optional package.

    purpose: use of the package, for the message. Raises ImportError with the command that installs it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        package = name.partition(".")[0]
        raise ImportError(
            f"this tokenizer needs the package {package}, which {purpose}; install it: "
            f"{command or f'pip install {package}'}"
        ) from exc
