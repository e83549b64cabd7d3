"""What a Python model's `exec` does: asks another model of the same server, over its own gRPC port."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pipeline.errors import ServingError

if TYPE_CHECKING:
    from pipeline.triton.python_backend.utils import InferenceRequest, InferenceResponse

_METHOD = "/inference.GRPCInferenceService/ModelInfer"
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class OtherModels:
    """Asks models by their names. Its connection is opened with the first question.

    address: of the server's gRPC; empty where it has none that a worker can ask.
    """

    def __init__(self, address: str = "") -> None:
        self._address = address
        self._call: Any = None

    def ask(self, request: InferenceRequest, timeout_s: float | None) -> InferenceResponse:
        """The answer, or one with the error in its place."""
        import grpc

        from client.protos.kserve_v2_pb2 import ModelInferResponse
        from pipeline.triton.python_backend.utils import InferenceResponse, TritonError

        if not self._address:
            told = "a model can ask others where the server has a gRPC port without TLS and API keys"
            return InferenceResponse(error=TritonError(told, TritonError.UNAVAILABLE))
        if self._call is None:
            channel = grpc.insecure_channel(self._address, _OPTIONS)
            self._call = channel.unary_unary(_METHOD, bytes, bytes)
        try:
            answer = self._call(_message_of(request), timeout=timeout_s)
            return InferenceResponse(_tensors_of(ModelInferResponse.FromString(answer)))
        except grpc.RpcError as exc:
            return InferenceResponse(error=TritonError(exc.details() or "", _CODES.get(exc.code().name, 1)))
        except (ServingError, ValueError) as exc:
            return InferenceResponse(error=TritonError(str(exc), TritonError.INVALID_ARG))


# Of a TritonError, by gRPC's.
_CODES = {
    "UNKNOWN": 0,
    "INTERNAL": 1,
    "NOT_FOUND": 2,
    "INVALID_ARGUMENT": 3,
    "UNAVAILABLE": 4,
    "UNIMPLEMENTED": 5,
    "ALREADY_EXISTS": 6,
    "CANCELLED": 7,
}


def _message_of(request: InferenceRequest) -> bytes:
    from client.protos.kserve_v2_pb2 import ModelInferRequest
    from pipeline.dialects.kserve.datatypes import to_raw

    name, version = request.named()
    message = ModelInferRequest(model_name=name, model_version=version, id=request.request_id())
    for tensor in request.inputs():
        array = tensor.as_numpy()
        datatype = tensor.triton_dtype().removeprefix("TYPE_")
        datatype = "BYTES" if datatype == "STRING" else datatype
        message.inputs.add(name=tensor.name(), datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(to_raw(array))
    for name in request.requested_output_names():
        message.outputs.add(name=name)
    return message.SerializeToString()


def _tensors_of(answer: Any) -> list[Any]:
    from pipeline.dialects.kserve.datatypes import from_raw
    from pipeline.triton.python_backend.utils import Tensor

    return [
        Tensor(one.name, from_raw(raw, one.datatype, list(one.shape)), one.datatype)
        for one, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    ]
