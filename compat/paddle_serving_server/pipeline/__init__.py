"""`from paddle_serving_server.pipeline import Op, RequestOp, ResponseOp, PipelineServer, PipelineClient`.

The client is imported when it is asked for: a service needs none.
"""

from typing import TYPE_CHECKING, Any

import pipeline as _ours
from pipeline import Op, RequestOp, WebService

if TYPE_CHECKING:
    from client.pipeline_client import PipelineClient

__all__ = ["Op", "PipelineClient", "RequestOp", "WebService"]


def __getattr__(name: str) -> Any:
    if name == "PipelineClient":
        from client.pipeline_client import PipelineClient

        return PipelineClient
    if name in ("PipelineServer", "ResponseOp"):
        return getattr(_ours, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
