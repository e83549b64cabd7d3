"""The gRPC stub and servicer of PipelineService, with the names that protoc's plugin generates."""

from __future__ import annotations

from typing import Any

import grpc

from client.protos.pipeline_service_pb2 import Request, Response

SERVICE = "baidu.paddle_serving.pipeline_serving.PipelineService"


class PipelineServiceStub:
    """gRPC client stub: `PipelineServiceStub(channel).inference(Request(...), timeout=5)` -> Response."""

    def __init__(self, channel: grpc.Channel) -> None:
        self.inference: Any = channel.unary_unary(
            f"/{SERVICE}/inference",
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )


class PipelineServiceServicer:
    """Base class for a gRPC server that implements PipelineService."""

    def inference(self, request: Request, context: grpc.ServicerContext) -> Response:
        """Answer a request. Subclasses override this method; the base class answers UNIMPLEMENTED."""
        context.abort(grpc.StatusCode.UNIMPLEMENTED, "inference is not overridden")


def add_PipelineServiceServicer_to_server(servicer: PipelineServiceServicer, server: grpc.Server) -> None:
    """Register an implementation of PipelineService with a gRPC server."""
    handler = grpc.unary_unary_rpc_method_handler(
        servicer.inference,
        request_deserializer=Request.FromString,
        response_serializer=Response.SerializeToString,
    )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"inference": handler}),))
