"""PaddleNLP's tokenizers, metrics and data functions, reimplemented on the `tokenizers` package.

It has no models.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "2.8.1"  # whose behaviour this is; who asks wants to know what the names mean

_PARTS = ("data", "datasets", "metrics", "transformers", "utils")


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"{__name__}.{name}")
    from paddlenlp_shims.places import sentence

    raise AttributeError(sentence(f"{__name__}.{name}"))
