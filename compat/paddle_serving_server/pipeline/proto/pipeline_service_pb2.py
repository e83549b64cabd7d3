"""`from paddle_serving_server.pipeline.proto.pipeline_service_pb2 import Request, Response, Tensor`."""

from client.protos.pipeline_service_pb2 import DESCRIPTOR, Request, Response, Tensor

__all__ = ["DESCRIPTOR", "Request", "Response", "Tensor"]
