"""`from paddle_serving_server.pipeline.pipeline_server import PipelineServer`."""

from typing import Any

import pipeline as _ours


def __getattr__(name: str) -> Any:
    if name == "PipelineServer":
        return getattr(_ours, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
