"""`from paddle_serving_server.pipeline.pipeline_client import PipelineClient`."""

from client.pipeline_client import PipelineClient

__all__ = ["PipelineClient"]
