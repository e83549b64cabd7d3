"""`from paddle_serving_server.pipeline.operator import Op, RequestOp, ResponseOp`."""

from pipeline import Op, RequestOp, ResponseOp

__all__ = ["Op", "RequestOp", "ResponseOp"]
