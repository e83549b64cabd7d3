"""`from paddle_serving_server.pipeline.local_service_handler import LocalServiceHandler`."""

from pipeline.paddle_serving.op_settings import LocalServiceHandler

__all__ = ["LocalServiceHandler"]
