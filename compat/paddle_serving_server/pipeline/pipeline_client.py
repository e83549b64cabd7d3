"""Paddle Serving's import path of `PipelineClient`."""

from client.pipeline_client import PipelineClient

__all__ = ["PipelineClient"]
