"""`from paddle_serving_server.pipeline.pipeline_server import PipelineServer`."""

from pipeline import PipelineServer

__all__ = ["PipelineServer"]
