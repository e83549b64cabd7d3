"""Paddle Serving's import path of `PipelineServer`."""

from pipeline import PipelineServer

__all__ = ["PipelineServer"]
