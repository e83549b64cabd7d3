"""Paddlewheel: a DAG of models behind key/value JSON and gRPC. Importing it imports no framework."""

from pipeline.errors import InvalidInput, ProductError, ServingError
from pipeline.op import Op, OpRequest, RequestOp, ResponseOp
from pipeline.service import PipelineServer, WebService

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
]
