"""Makes Paddle Serving's and PaddleNLP's import names available in a checkout without installed compat/."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path

COMPAT = Path(__file__).resolve().parents[2] / "compat"


def offer_paddle_serving_names() -> None:
    """Put compat/ last on `sys.path`, with its finder of `paddlenlp`, unless it is installed."""
    if COMPAT.is_dir() and importlib.util.find_spec("paddle_serving_server") is None:
        sys.path.append(str(COMPAT))
        importlib.import_module("paddlenlp_shims.finder")
