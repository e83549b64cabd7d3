"""`from paddle_serving_server.pipeline.operator import Op, RequestOp, ResponseOp`."""

from typing import Any

import pipeline as _ours
from pipeline import Op, RequestOp

__all__ = ["Op", "RequestOp"]


def __getattr__(name: str) -> Any:
    if name == "ResponseOp":
        return getattr(_ours, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
