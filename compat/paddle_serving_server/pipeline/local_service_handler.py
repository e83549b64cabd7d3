"""Paddle Serving's import path of `LocalServiceHandler`."""

from pipeline.paddle_serving.op_settings import LocalServiceHandler

__all__ = ["LocalServiceHandler"]
