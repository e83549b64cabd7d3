"""`from paddle_serving_client.pipeline import PipelineClient`, as up to 0.5."""

from client.pipeline_client import PipelineClient

__all__ = ["PipelineClient"]
