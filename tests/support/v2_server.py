"""A KServe v2 gRPC service in the test's own process: real messages over a real connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt

from client.protos.kserve_v2_pb2 import (
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelMetadataRequest,
    ModelMetadataResponse,
)
from tests.support.free_ports import free_port

Array = npt.NDArray[Any]
Tensors = dict[str, tuple[str, list[int]]]  # name -> datatype and shape

NUMBERS = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1", "BOOL": "?"}


@dataclass
class V2Model:
    """`run` takes and returns arrays by name, of BYTES lists of bytes. `typed`: answers in contents."""

    inputs: Tensors
    outputs: Tensors
    run: Callable[[dict[str, Any]], Mapping[str, Any]]
    typed: bool = False
    requests: list[ModelInferRequest] = field(default_factory=list)


class V2Server:
    """Serves models by name until the `with` block is left. Unknown ones are NOT_FOUND."""

    def __init__(self, models: Mapping[str, V2Model], port: int | None = None) -> None:
        self.port = port or free_port()
        self._models = models
        self._server = grpc.server(ThreadPoolExecutor(16), options=[("grpc.so_reuseport", 0)])
        methods = {
            "ModelMetadata": (ModelMetadataRequest, self._metadata),
            "ModelInfer": (ModelInferRequest, self._infer),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                handler, request_type.FromString, lambda answer: answer.SerializeToString()
            )
            for name, (request_type, handler) in methods.items()
        }
        service = grpc.method_handlers_generic_handler("inference.GRPCInferenceService", handlers)
        self._server.add_generic_rpc_handlers((service,))
        self._server.add_insecure_port(f"127.0.0.1:{self.port}")

    def __enter__(self) -> V2Server:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(0).wait()

    def _model(self, name: str, context: grpc.ServicerContext) -> V2Model:
        if name not in self._models:
            context.abort(grpc.StatusCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        return self._models[name]

    def _metadata(
        self, request: ModelMetadataRequest, context: grpc.ServicerContext
    ) -> ModelMetadataResponse:
        model = self._model(request.name, context)
        answer = ModelMetadataResponse(name=request.name, versions=["1"], platform="test")
        for tensors, given in ((answer.inputs, model.inputs), (answer.outputs, model.outputs)):
            for name, (datatype, shape) in given.items():
                tensors.add(name=name, datatype=datatype, shape=shape)
        return answer

    def _infer(self, request: ModelInferRequest, context: grpc.ServicerContext) -> ModelInferResponse:
        model = self._model(request.model_name, context)
        model.requests.append(request)
        feeds = {
            tensor.name: _read(raw, tensor)
            for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        try:
            outputs = model.run(feeds)
        except ValueError as exc:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(exc))
        answer = ModelInferResponse(model_name=request.model_name)
        for wanted in request.outputs:
            value = outputs[wanted.name]
            datatype = model.outputs[wanted.name][0]
            shape = value.shape if isinstance(value, np.ndarray) else [len(value)]
            tensor = answer.outputs.add(name=wanted.name, datatype=datatype, shape=shape)
            if model.typed:
                tensor.contents.CopyFrom(_contents(value, datatype))
            else:
                answer.raw_output_contents.append(_raw(value, datatype))
        return answer


def _read(raw: bytes, tensor: ModelInferRequest.InferInputTensor) -> Any:
    if tensor.datatype != "BYTES":
        return np.frombuffer(raw, NUMBERS[tensor.datatype]).reshape(tensor.shape)
    elements = []
    while raw:
        end = 4 + int.from_bytes(raw[:4], "little")
        elements.append(raw[4:end])
        raw = raw[end:]
    return elements


def _raw(value: Any, datatype: str) -> bytes:
    if datatype == "BYTES":
        return b"".join(len(element).to_bytes(4, "little") + element for element in value)
    return np.asarray(value, NUMBERS[datatype]).tobytes()


def _contents(value: Any, datatype: str) -> InferTensorContents:
    fields = {"FP32": "fp32_contents", "INT64": "int64_contents", "BYTES": "bytes_contents"}
    elements = value if datatype == "BYTES" else value.ravel().tolist()
    return InferTensorContents(**{fields[datatype]: elements})
