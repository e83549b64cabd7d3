"""Paddle Serving's import path of `Op`, `RequestOp`, `ResponseOp`, `PipelineServer` and `PipelineClient`.

The client is imported on first use, because a service needs none.
"""

from typing import TYPE_CHECKING, Any

from pipeline import Op, PipelineServer, RequestOp, ResponseOp, WebService
from pipeline.paddle_serving.op_settings import LocalServiceHandler

if TYPE_CHECKING:
    from client.pipeline_client import PipelineClient

__all__ = [
    "LocalServiceHandler",
    "Op",
    "PipelineClient",
    "PipelineServer",
    "RequestOp",
    "ResponseOp",
    "WebService",
]


def __getattr__(name: str) -> Any:
    if name == "PipelineClient":
        from client.pipeline_client import PipelineClient

        return PipelineClient
    if name == "Analyst":
        raise ImportError(
            "Analyst read the profile in Paddle Serving's log; Paddlewheel writes none: timings of each Op "
            "are at /metrics, and with dag.use_profile in the header Server-Timing"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
