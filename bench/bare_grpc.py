"""Baseline for KServe v2 over gRPC: a bare grpc.aio server that parses and answers the same messages.

Run as `python -m bench.bare_grpc PORT [fast]`: uvloop, one process, no batching, no checks, no worker. `fast`
selects the server of the service (pipeline/front/grpc/fast_server.py).
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from pipeline.config.config_file import Limits
from pipeline.front.grpc.fast_server import FastServer
from pipeline.front.grpc.rpc_handler import MethodHandlers
from pipeline.front.grpc.slow_clients import ClientBounds
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.metrics.metrics import Metrics

SERVICE = "inference.GRPCInferenceService"


async def infer(data: bytes, _: Any) -> bytes:
    """Return INPUT0 as OUTPUT0."""
    request = ModelInferRequest.FromString(data)
    answer = ModelInferResponse(model_name=request.model_name, model_version="1", id=request.id)
    for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True):
        answer.outputs.add(name="OUTPUT0", datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.append(raw)
    return answer.SerializeToString()


def create_server(fast: bool, port: int) -> grpc.aio.Server:
    options = [("grpc.max_receive_message_length", 64 << 20)]
    method = grpc.unary_unary_rpc_method_handler(infer)
    if fast:
        bounds = ClientBounds(Limits(), [port], AccessLog(Metrics("bare")))
        handlers = MethodHandlers({f"/{SERVICE}/ModelInfer": method}, None, bounds, lambda: False)
        return FastServer(handlers, options)
    server = grpc.aio.server(options=options)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": method})
    server.add_generic_rpc_handlers([handler])
    return server


async def main(port: str, *how: str) -> None:
    server = create_server("fast" in how, int(port))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
