"""Paddle Serving's import names for a script, from the checkout's compat/ where that is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parent.parent / "compat"


def offer_paddle_serving_names() -> None:
    """Put compat/ last on `sys.path` unless `paddle_serving_server` is found without it."""
    if COMPAT.is_dir() and importlib.util.find_spec("paddle_serving_server") is None:
        sys.path.append(str(COMPAT))
