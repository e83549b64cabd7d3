"""The baseline of KServe v2's gRPC door: a bare grpc.aio server that parses and answers the same messages.

Run as `python -m bench.bare_grpc PORT`: uvloop, one process, no batching, no checks, no worker. With `taken`
behind the port calls are taken and answered as the service does it (pipeline/front/grpc/private).
"""

from __future__ import annotations

import sys
from typing import Any

import grpc
import grpc.aio
import uvloop

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from pipeline.config.config_file import Limits
from pipeline.front.grpc.private.calls import RpcCalls
from pipeline.front.metrics.access_log import AccessLog
from pipeline.front.metrics.metrics import Metrics

SERVICE = "inference.GRPCInferenceService"


async def infer(data: bytes, _: Any) -> bytes:
    """INPUT0 comes back as OUTPUT0."""
    asked = ModelInferRequest.FromString(data)
    answer = ModelInferResponse(model_name=asked.model_name, model_version="1", id=asked.id)
    for tensor, raw in zip(asked.inputs, asked.raw_input_contents, strict=True):
        answer.outputs.add(name="OUTPUT0", datatype=tensor.datatype, shape=tensor.shape)
        answer.raw_output_contents.append(raw)
    return answer.SerializeToString()


def server_of(taken: bool, port: int) -> grpc.aio.Server:
    options = [("grpc.max_receive_message_length", 64 << 20)]
    method = grpc.unary_unary_rpc_method_handler(infer)
    if taken:
        log = AccessLog(Metrics("bare"))
        return RpcCalls({f"/{SERVICE}/ModelInfer": method}, None, Limits(), [port], log, options)
    server = grpc.aio.server(options=options)
    handler = grpc.method_handlers_generic_handler(SERVICE, {"ModelInfer": method})
    server.add_generic_rpc_handlers([handler])
    return server


async def main(port: str, *how: str) -> None:
    server = server_of("taken" in how, int(port))
    server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
