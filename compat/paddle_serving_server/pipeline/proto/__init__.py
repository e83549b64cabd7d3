"""The protobuf messages of the service's gRPC port, and a client stub."""

from client.protos import pipeline_service_pb2
from paddle_serving_server.pipeline.proto import pipeline_service_pb2_grpc

__all__ = ["pipeline_service_pb2", "pipeline_service_pb2_grpc"]
