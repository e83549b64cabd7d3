"""gRPC client of a Python model for its own server: inference on other models, loads and unloads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.errors import ServingError

if TYPE_CHECKING:
    from pipeline.triton.python_backend.utils import InferenceRequest, InferenceResponse

SEQUENCE_START, SEQUENCE_END = 1, 2  # flags of a request
_SERVICE = "/inference.GRPCInferenceService/"
_NO_SERVER = "a model can ask its server where that has a gRPC port without TLS and API keys"
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class OtherModels:
    """gRPC client with which a Python model calls other models of its own server. Connects at the first call.

    address: of the server's gRPC port; empty if workers can't use it, and all calls fail. metadata: headers
    that the server's restricted protocols require.
    """

    def __init__(self, address: str = "", metadata: Sequence[tuple[str, str]] = ()) -> None:
        self._address = address
        self._metadata = tuple(metadata)
        self._channel: Any = None

    def infer(self, request: InferenceRequest, timeout_s: float | None) -> InferenceResponse:
        """Run a request on the model that it names, and return the response; failures are error responses.

        timeout_s: None: no limit.
        """
        from client.protos.kserve_v2_pb2 import ModelInferResponse
        from pipeline.triton.python_backend.utils import InferenceResponse, TritonError

        try:
            answer = ModelInferResponse.FromString(
                self._call_server("ModelInfer", _encode_request(request), timeout_s)
            )
            parameters = {
                name: _get_parameter_value(parameter) for name, parameter in answer.parameters.items()
            }
            return InferenceResponse(_decode_tensors(answer), parameters=parameters)
        except CallFailed as exc:
            return InferenceResponse(error=TritonError(exc.message, _CODES.get(exc.code, 1)))
        except (ServingError, ValueError) as exc:
            return InferenceResponse(error=TritonError(str(exc), TritonError.INVALID_ARG))

    def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load a model of this server, or load it again. Raises CallFailed.

        config: JSON that replaces config.pbtxt; empty: none. files: contents by "file:PATH", which replace
        the folder.
        """
        from client.protos.kserve_v2_pb2 import RepositoryModelLoadRequest

        message = RepositoryModelLoadRequest(model_name=name)
        if config:
            message.parameters["config"].string_param = config
        for path, content in files.items():
            message.parameters[path].bytes_param = content
        self._call_server("RepositoryModelLoad", message.SerializeToString())

    def unload(self, name: str, dependents: bool) -> None:
        """Unload a model of this server. dependents: also unload an ensemble's models. Raises CallFailed."""
        from client.protos.kserve_v2_pb2 import RepositoryModelUnloadRequest

        message = RepositoryModelUnloadRequest(model_name=name)
        message.parameters["unload_dependents"].bool_param = dependents
        self._call_server("RepositoryModelUnload", message.SerializeToString())

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model of this server is ready. Raises CallFailed.

        version: empty: the server chooses.
        """
        from client.protos.kserve_v2_pb2 import ModelReadyRequest, ModelReadyResponse

        message = ModelReadyRequest(name=name, version=version)
        answer = self._call_server("ModelReady", message.SerializeToString())
        return bool(ModelReadyResponse.FromString(answer).ready)

    def _call_server(self, method: str, message: bytes, timeout_s: float | None = None) -> bytes:
        import grpc

        if not self._address:
            raise CallFailed(_NO_SERVER, "UNAVAILABLE")
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._address, _OPTIONS)
        try:
            answer: bytes = self._channel.unary_unary(_SERVICE + method, bytes, bytes)(
                message, timeout=timeout_s, metadata=self._metadata
            )
        except grpc.RpcError as exc:
            raise CallFailed(exc.details() or "", exc.code().name) from exc
        return answer


class CallFailed(Exception):
    """Raised by `OtherModels` if a gRPC call to the own server fails, or the server can't be called.

    Models get a TritonModelException or an error response instead. message: the server's. code: the name of
    the gRPC status, such as "NOT_FOUND".
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.message, self.code = message, code


# Codes of TritonError by the name of the gRPC status.
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


def _encode_request(request: InferenceRequest) -> bytes:
    from client.protos.kserve_v2_pb2 import ModelInferRequest
    from pipeline.wire.v2_tensors import PARAMETERS, to_raw

    name, version = request.get_target_model()
    message = ModelInferRequest(model_name=name, model_version=version, id=request.request_id())
    for tensor in request.inputs():
        array = tensor.as_numpy()
        datatype = tensor.triton_dtype().removeprefix("TYPE_")
        datatype = "BYTES" if datatype == "STRING" else datatype
        message.inputs.add(name=tensor.name(), datatype=datatype, shape=array.shape)
        message.raw_input_contents.append(to_raw(array))
    for name in request.requested_output_names():
        message.outputs.add(name=name)
    for name, value in _collect_parameters(request).items():
        if type(value) not in PARAMETERS:
            raise ValueError(f"parameter {name!r} is a {type(value).__name__}: bool, int, str or float")
        setattr(message.parameters[name], PARAMETERS[type(value)], value)
    return message.SerializeToString()


def _collect_parameters(request: InferenceRequest) -> dict[str, Any]:
    """Return a request's parameters, plus its sequence, priority and timeout (microseconds) if set.

    KServe's protocol has no fields for these options, only parameters.
    """
    options = {
        "sequence_id": request.correlation_id(),
        "sequence_start": bool(request.flags() & SEQUENCE_START),
        "sequence_end": bool(request.flags() & SEQUENCE_END),
        "priority": request.priority(),
        "timeout": request.timeout(),
    }
    return {**request.get_parameters(), **{name: value for name, value in options.items() if value}}


def _get_parameter_value(parameter: Any) -> Any:
    return getattr(parameter, parameter.WhichOneof("parameter_choice"))


def _decode_tensors(answer: Any) -> list[Any]:
    from pipeline.triton.python_backend.utils import Tensor
    from pipeline.wire.v2_tensors import from_raw

    return [
        Tensor(output.name, from_raw(raw, output.datatype, list(output.shape)), output.datatype)
        for output, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
    ]
