"""Import path of `PipelineClient` in Paddle Serving up to 0.5."""

from client.pipeline_client import PipelineClient

__all__ = ["PipelineClient"]
