"""Packages that single tokenizers need. They are imported by the tokenizer that needs them."""

from __future__ import annotations

import importlib
from typing import Any


def import_package(name: str, purpose: str, command: str = "") -> Any:
    """Return a module of an optional package.

    Raises ImportError with the command that installs the package.
    """
    try:
        return importlib.import_module(name)
    except ImportError as exc:
        package = name.partition(".")[0]
        raise ImportError(
            f"this tokenizer needs the package {package}, which {purpose}; install it: "
            f"{command or f'pip install {package}'}"
        ) from exc
