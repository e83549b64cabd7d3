"""gRPC client of a Python model for its own server: inference on other models, loads and unloads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pipeline.errors import ServingError

if TYPE_CHECKING:
    from pipeline.triton.python_backend.utils import InferenceRequest, InferenceResponse

SEQUENCE_START, SEQUENCE_END = 1, 2  # flags of a request
_SERVICE = "/inference.GRPCInferenceService/"
_NO_SERVER = (
    "a model can call models of its server if the server has a gRPC port without TLS and API keys, and its "
    "workers run on the same machine"
)
_OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class OtherModels:
    """gRPC client with which a Python model calls other models of its own server. Connects at the first call.

    address: of the server's gRPC port; if empty, workers can't use the port and all calls fail. metadata:
    headers that the server's restricted protocols require. resolve: with `--model-namespacing`, returns the
    identifier of the model that a name stands for. None: names are used as they are.
    """

    def __init__(
        self,
        address: str = "",
        metadata: Sequence[tuple[str, str]] = (),
        resolve: Callable[[str], str] | None = None,
    ) -> None:
        self._address = address
        self._metadata = tuple(metadata)
        self._resolve = resolve or str
        self._channel: Any = None

    def infer(self, request: InferenceRequest, timeout_s: float | None) -> InferenceResponse:
        """Run a request on the model that the request names, and return the response.

        A failure is returned as an error response. timeout_s: None for no limit.
        """
        from client.protos.kserve_v2_pb2 import ModelInferResponse

        try:
            return _decode_response(
                ModelInferResponse.FromString(
                    self._call_server(
                        "ModelInfer", self._encode_resolved(request), timeout_s, _get_trace(request)
                    )
                )
            )
        except (CallFailed, ServingError, ValueError) as exc:
            return _as_error_response(exc, request.get_target_model()[0])

    def stream(self, request: InferenceRequest, timeout_s: float | None) -> ResponseIterator:
        """Run a request on a model that may be decoupled, and return an iterator over its responses.

        A failure is the last response, an error response. timeout_s: limit for all responses together; None
        for no limit.
        """
        from client.protos.kserve_v2_pb2 import ModelStreamInferResponse

        try:
            message = self._encode_resolved(request)
            method = self._connect().stream_stream(
                f"{_SERVICE}ModelStreamInfer", bytes, ModelStreamInferResponse.FromString
            )
            metadata = (*self._metadata, *_get_trace(request))
            call = method(iter([message]), timeout=timeout_s, metadata=metadata)
            return ResponseIterator(call, request.get_target_model()[0])
        except (CallFailed, ServingError, ValueError) as exc:
            model = request.get_target_model()[0]
            return ResponseIterator(None, model, [_as_error_response(exc, model)])

    def load(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        """Load or reload a model of this server. Raises CallFailed.

        config: JSON that replaces config.pbtxt; empty keeps the file. files: contents by "file:PATH", which
        replace the model's folder.
        """
        from client.protos.kserve_v2_pb2 import RepositoryModelLoadRequest

        message = RepositoryModelLoadRequest(model_name=name)
        if config:
            message.parameters["config"].string_param = config
        for path, content in files.items():
            message.parameters[path].bytes_param = content
        self._call_server("RepositoryModelLoad", message.SerializeToString())

    def unload(self, name: str, dependents: bool) -> None:
        """Unload a model of this server. Raises CallFailed.

        dependents: also unload the models that an ensemble uses.
        """
        from client.protos.kserve_v2_pb2 import RepositoryModelUnloadRequest

        message = RepositoryModelUnloadRequest(model_name=name)
        message.parameters["unload_dependents"].bool_param = dependents
        self._call_server("RepositoryModelUnload", message.SerializeToString())

    def is_ready(self, name: str, version: str) -> bool:
        """Return whether a model of this server is ready. Raises CallFailed.

        version: if empty, the server chooses the version.
        """
        from client.protos.kserve_v2_pb2 import ModelReadyRequest, ModelReadyResponse

        message = ModelReadyRequest(name=self._resolve(name), version=version)
        answer = self._call_server("ModelReady", message.SerializeToString())
        return bool(ModelReadyResponse.FromString(answer).ready)

    def _encode_resolved(self, request: InferenceRequest) -> bytes:
        return _encode_request(request, self._resolve(request.get_target_model()[0]))

    def _call_server(
        self,
        method: str,
        message: bytes,
        timeout_s: float | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> bytes:
        import grpc

        try:
            answer: bytes = self._connect().unary_unary(_SERVICE + method, bytes, bytes)(
                message, timeout=timeout_s, metadata=(*self._metadata, *metadata)
            )
        except grpc.RpcError as exc:
            raise CallFailed(exc.details() or "", exc.code().name) from exc
        return answer

    def _connect(self) -> Any:
        """Return the gRPC channel. Raises CallFailed if workers can't call the server."""
        import grpc

        if not self._address:
            raise CallFailed(_NO_SERVER, "UNAVAILABLE")
        if self._channel is None:
            self._channel = grpc.insecure_channel(self._address, _OPTIONS)
        return self._channel


class ResponseIterator:
    """The responses of a model to a request with `decoupled=True`, as they arrive.

    call: the gRPC call; None if the call could not begin. model: name of the called model. responses:
    returned before the responses of the call.
    """

    def __init__(self, call: Any, model: str, responses: Sequence[InferenceResponse] = ()) -> None:
        self._call = call
        self._responses = self._receive(call, model, responses)

    def __iter__(self) -> ResponseIterator:
        return self

    def __next__(self) -> InferenceResponse:
        return next(self._responses)

    def cancel(self) -> None:
        """Cancel the request: its model sends no further response."""
        if self._call is not None:
            self._call.cancel()

    @staticmethod
    def _receive(
        call: Any, model: str, responses: Sequence[InferenceResponse]
    ) -> Iterator[InferenceResponse]:
        import grpc

        from pipeline.triton.python_backend.utils import InferenceResponse, TritonError

        yield from responses
        try:
            for answer in call or ():
                if answer.error_message:
                    yield InferenceResponse(error=TritonError(answer.error_message))
                else:
                    yield _decode_response(answer.infer_response)
        except grpc.RpcError as exc:
            yield _as_error_response(CallFailed(exc.details() or "", exc.code().name), model)


def _decode_response(answer: Any) -> InferenceResponse:
    from pipeline.triton.python_backend.utils import InferenceResponse

    parameters = {name: _get_parameter_value(value) for name, value in answer.parameters.items()}
    parameters.pop("triton_final_response", None)
    response = InferenceResponse(_decode_tensors(answer))
    response.set_parameters(parameters)
    return response


def _as_error_response(exc: Exception, model: str) -> InferenceResponse:
    """Convert an exception of a call to another model into an error response.

    model: the name of the called model. As in Triton, the text tells whether the call failed before the model
    got the request.
    """
    from pipeline.triton.python_backend.utils import InferenceResponse, TritonError

    if not isinstance(exc, CallFailed):
        return InferenceResponse(error=TritonError(f"{_NOT_RUN.format(model)}{exc}", TritonError.INVALID_ARG))
    message = exc.message
    if exc.code in _BEFORE_THE_RUN:
        message = _NOT_RUN.format(model) + _BEFORE_THE_RUN[exc.code].format(model, message)
    return InferenceResponse(error=TritonError(message, _CODES.get(exc.code, 1)))


_NOT_RUN = "Model {} - Error when running inference: "
# By gRPC status: the rest of the error, from the model's name and the server's message.
_BEFORE_THE_RUN = {
    "NOT_FOUND": "Failed for execute the inference request. Model '{0}' is not ready. {1}",
    "INVALID_ARGUMENT": "{1}",
    "UNIMPLEMENTED": (
        "Model {0} is using the decoupled. The current BLS request call doesn't support models using the "
        "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
        "calls for decoupled models."
    ),
}


class CallFailed(Exception):
    """Raised by `OtherModels` if a gRPC call to the own server fails, or the server can't be called.

    Models get a TritonModelException or an error response instead. message: the server's error message. code:
    the name of the gRPC status, such as "NOT_FOUND".
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


def _get_trace(request: InferenceRequest) -> list[tuple[str, str]]:
    """Return the gRPC metadata that add a request to the trace which the model has set on the request."""
    traceparent = request.trace().traceparent
    return [("traceparent", traceparent)] if traceparent else []


def _encode_request(request: InferenceRequest, model: str) -> bytes:
    from client.protos.kserve_v2_pb2 import ModelInferRequest
    from pipeline.wire.v2_tensors import PARAMETERS, to_raw

    version = request.get_target_model()[1]
    message = ModelInferRequest(model_name=model, model_version=version, id=request.request_id())
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

    KServe's protocol has no fields for these options and passes them as parameters.
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
