"""Paddle Serving's import path of `Op`, `RequestOp` and `ResponseOp`."""

from pipeline import Op, RequestOp, ResponseOp

__all__ = ["Op", "RequestOp", "ResponseOp"]
