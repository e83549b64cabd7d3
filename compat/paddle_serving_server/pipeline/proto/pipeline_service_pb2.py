"""Paddle Serving's import path of the messages `Request`, `Response` and `Tensor`."""

from client.protos.pipeline_service_pb2 import DESCRIPTOR, Request, Response, Tensor

__all__ = ["DESCRIPTOR", "Request", "Response", "Tensor"]
