"""Paddlewheel, a model server: serves a DAG of models over HTTP/JSON and gRPC. Imports no ML framework.

Public names are imported on first use. The diagnosis command also runs where a package that they need is
missing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pipeline.api.op import Op, OpRequest, RequestOp, ResponseOp
    from pipeline.api.service import PipelineServer, WebService
    from pipeline.errors import InvalidInput, ProductError, ServingError

__version__ = "0.1.0"

__all__ = [
    "InvalidInput",
    "Op",
    "OpRequest",
    "PipelineServer",
    "ProductError",
    "RequestOp",
    "ResponseOp",
    "ServingError",
    "WebService",
    "__version__",
]
_HOMES = {
    "pipeline.errors": ("InvalidInput", "ProductError", "ServingError"),
    "pipeline.api.op": ("Op", "OpRequest", "RequestOp", "ResponseOp"),
    "pipeline.api.service": ("PipelineServer", "WebService"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
