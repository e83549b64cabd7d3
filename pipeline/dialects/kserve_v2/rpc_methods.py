"""FRONT PROCESS: gRPC handlers of KServe v2's GRPCInferenceService, and of gRPC's health check.

gRPC passes messages as bytes. Invalid bytes are rejected with Triton's message.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import grpc
import grpc.aio
from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from client.protos import kserve_v2_pb2 as messages
from client.protos.kserve_v2_pb2 import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)
from pipeline.api.restrictions import HEALTH as HEALTH_API
from pipeline.api.restrictions import (
    INFERENCE,
    LOGGING,
    METADATA,
    MODEL_CONFIG,
    MODEL_REPOSITORY,
    SHARED_MEMORY,
    STATISTICS,
    TRACE,
)
from pipeline.config.config_file import Limits
from pipeline.dialects.kserve.models import KServeModel, parse_version
from pipeline.dialects.kserve.refusals import KServeRefusal, describe_error
from pipeline.dialects.kserve.unread import Written
from pipeline.dialects.kserve_v2.answers import PROTO, RequestedOutput
from pipeline.dialects.kserve_v2.infer_request import ForwardedHeaders, InferRequest, InputTensor
from pipeline.dialects.message_fields import LargeMessage, check_nested, cut_fields, encode_varint
from pipeline.dialects.sequence_keys import FLAG_KEYS
from pipeline.dialects.triton_extensions.repository_api import build_index
from pipeline.dialects.triton_extensions.server import LOG_FORMATS, V2Server
from pipeline.dialects.triton_extensions.shared_memory import FindSpan, Span
from pipeline.errors import OUR_FAULT, DeadlineExceeded, ServingError, TooLarge
from pipeline.front.dag_run import Answer, DagRun, Request
from pipeline.front.grpc.outgoing import OutgoingMessages
from pipeline.front.grpc.rpc_handler import CallContext, RpcHandler
from pipeline.front.scheduler.admission import CALLER, name_caller
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.tracing.request_trace import describe_answer
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.wire.v2_tensors import BYTES, CONTENTS, LENGTH, from_contents

_PARAMETER_FIELDS = {  # types of the parameters that the protocol defines
    "priority": ("int64_param", "uint64_param"),
    "timeout": ("int64_param",),
    "sequence_id": ("int64_param", "string_param"),
    "sequence_start": ("bool_param",),
    "sequence_end": ("bool_param",),
    "triton_enable_empty_final_response": ("bool_param",),
}
_CONTENTS_TYPES = {  # names of typed contents in Triton's messages
    "bool_contents": "BOOL",
    "int_contents": "INT32",
    "int64_contents": "INT64",
    "uint_contents": "UINT32",
    "uint64_contents": "UINT64",
    "fp32_contents": "FP32",
    "fp64_contents": "FP64",
    "bytes_contents": "BYTES",
}
_SHARED_MEMORY = {  # parameters of a tensor in shared memory, with the fields of their values
    "shared_memory_region": "string_param",
    "shared_memory_offset": "int64_param",
    "shared_memory_byte_size": "int64_param",
}
_Tensor = ModelInferRequest.InferInputTensor
_RAWS = ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_INPUTS = ModelInferRequest.INPUTS_FIELD_NUMBER
_OUTPUTS = ModelInferRequest.OUTPUTS_FIELD_NUMBER
_SHAPE = _Tensor.SHAPE_FIELD_NUMBER
_CONTENTS = _Tensor.CONTENTS_FIELD_NUMBER
RpcPage = Callable[[Any], Message]  # converts the request message of a method to the response
SHARED_MEMORY_METHODS = tuple(
    f"{kind}SharedMemory{action}"
    for kind in ("System", "Cuda")
    for action in ("Status", "Register", "Unregister")
)
_SETTING_FIELDS = {
    bool: ("bool_param", "boolean"),
    int: ("uint32_param", "int32"),
    str: ("string_param", "string"),
}
SERVICE = "/inference.GRPCInferenceService/"
HEALTH = "/grpc.health.v1.Health/Check"
HEALTH_CALLS = (HEALTH, SERVICE + "ServerLive", SERVICE + "ServerReady")
_METHODS_BY_API = {
    HEALTH_API: ("ServerLive", "ServerReady", "ModelReady"),
    METADATA: ("ServerMetadata", "ModelMetadata"),
    INFERENCE: ("ModelInfer", "ModelStreamInfer"),
    MODEL_CONFIG: ("ModelConfig",),
    MODEL_REPOSITORY: ("RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"),
    STATISTICS: ("ModelStatistics",),
    TRACE: ("TraceSetting",),
    LOGGING: ("LogSettings",),
    SHARED_MEMORY: SHARED_MEMORY_METHODS,
}
APIS = {HEALTH: HEALTH_API} | {
    SERVICE + name: api for api, names in _METHODS_BY_API.items() for name in names
}
_SERVING, _NOT_SERVING = b"\x08\x01", b"\x08\x02"  # a HealthCheckResponse
log = logging.getLogger(__name__)
_STRICT = ("triton_grpc_error", "true")  # metadata of clients that want an error to end the stream
IN_FLIGHT = 256  # maximum number of unanswered requests of a stream
_INFER_RESPONSE = b"\x12"  # field 2 of ModelStreamInferResponse
_EMPTY_FINAL = "triton_enable_empty_final_response"


def _mark_final(response: ModelInferResponse, is_final: bool) -> ModelInferResponse:
    """Set the parameter that marks a response as the last of its request, or not. Return the response."""
    response.parameters["triton_final_response"].bool_param = is_final
    return response


# Appended to the bytes of a response.
_NOT_FINAL_BYTES, _FINAL_BYTES = (
    _mark_final(ModelInferResponse(), is_final).SerializeToString() for is_final in (False, True)
)


class InferMessage(NamedTuple):
    """A parsed ModelInferRequest. Raw and large contents of its inputs are kept separately, undecoded."""

    fields: ModelInferRequest
    raws: Sequence[Part]  # raw_input_contents; views of the received bytes for a large message
    contents: Mapping[int, Part] = {}  # large typed contents by index of the input; the worker parses them


def parse_message(data: bytes, limits: Limits) -> InferMessage:
    """Parse a serialized ModelInferRequest. The raw and large contents of its inputs stay undecoded.

    Raises KServeRefusal for invalid bytes, and TooLarge for too many fields.
    """
    rest, raws = cut_fields(data, _RAWS, limits)
    rest, large = check_nested(rest, _INPUTS, limits, cut=(_CONTENTS,), short=_SHAPE)
    check_nested(rest, _OUTPUTS, limits)
    try:
        fields = ModelInferRequest.FromString(rest)
    except DecodeError:
        raise KServeRefusal("Unable to parse request", "INTERNAL") from None
    contents = {index: _get_contents(tensor) for index, tensor in large.items()}
    return InferMessage(fields, raws or fields.raw_input_contents, contents)


def _get_contents(tensor: LargeMessage) -> memoryview:
    if len(tensor.cut) > 1:  # protobuf would merge them
        raise TooLarge("an input has two parts of contents; send one")
    return tensor.cut[0][1]


def parse_infer(infer_message: InferMessage, model: KServeModel, find: FindSpan) -> InferRequest:
    """Convert a ModelInferRequest to an inference request: inputs, outputs and parameters.

    find: returns the span of a tensor in shared memory. Raises KServeRefusal with Triton's message.
    """
    message, raws, contents = infer_message
    infer_request = InferRequest(message.id)
    if message.parameters:
        _set_parameters(infer_request, message)
    number = 0  # index among the inputs that are not in shared memory
    for index, tensor in enumerate(message.inputs):
        if tensor.parameters and (span := _find_shared_memory(tensor, find)) is not None:
            if index in contents or tensor.contents.ListFields():
                raise KServeRefusal(
                    "unexpected 'content' provided when using shared memory for input tensor "
                    f"'{tensor.name}' for model '{model.name}'"
                )
            infer_request.add_shared_input(tensor.name, tensor.datatype, list(tensor.shape), span)
            continue
        if not raws and index in contents:
            shape = list(tensor.shape)
            tensor_input = InputTensor(tensor.name, tensor.datatype, shape, contents[index], Written.CONTENTS)
        elif not raws:
            tensor_input = _parse_typed_input(tensor, model)
        elif index in contents or (tensor.HasField("contents") and tensor.contents.ListFields()):
            raise KServeRefusal(
                "contents field must not be specified when using raw_input_contents for "
                f"'{tensor.name}' for model '{model.name}'"
            )
        elif number >= len(raws):
            raise _missing_data(tensor, model)
        else:
            tensor_input = InputTensor(
                tensor.name, tensor.datatype, tensor.shape[:], raws[number], Written.RAW
            )
        number += 1
        infer_request.add_input(tensor_input)
    # Superfluous raw contents are ignored, as in Triton.
    for output in message.outputs:
        requested = _requested_output(output)
        if requested.classes and "shared_memory_region" in output.parameters:
            raise KServeRefusal("output can't set both 'shared_memory_region' and 'classification'")
        span = _find_shared_memory(output, find) if output.parameters else None
        infer_request.add_output(requested, span)
    return infer_request


def _set_parameters(infer_request: InferRequest, message: ModelInferRequest) -> None:
    for name, parameter in message.parameters.items():
        field = parameter.WhichOneof("parameter_choice")
        if name in _PARAMETER_FIELDS and field not in _PARAMETER_FIELDS[name]:
            raise _wrong_type(name, " or ".join(_PARAMETER_FIELDS[name]))
        if name == "priority":
            infer_request.priority = _get_value(parameter)
            if infer_request.priority < 0:
                raise KServeRefusal("invalid value for 'priority', expected value >= 0.")
        elif name == "timeout":
            infer_request.timeout_us = _get_value(parameter) % (1 << 64)
        elif name == "sequence_id":
            infer_request.correlation_id = _get_value(parameter)
        elif name in FLAG_KEYS:
            infer_request.flags |= FLAG_KEYS[name] * _get_value(parameter)
        elif field is None and not name.startswith("triton_"):
            raise _wrong_type(name, "int64_param, bool_param, or string_param")
        else:
            infer_request.add_parameter(name, _get_value(parameter))


def _get_value(parameter: InferParameter) -> Any:
    field = parameter.WhichOneof("parameter_choice")
    return None if field is None else getattr(parameter, field)


def _wrong_type(name: str, expected: str) -> KServeRefusal:
    return KServeRefusal(f"invalid value type for '{name}' parameter, expected {expected}.")


def _find_shared_memory(
    tensor: _Tensor | ModelInferRequest.InferRequestedOutputTensor, find: FindSpan
) -> Span | None:
    """Return the place of a tensor in shared memory; None if the message contains the tensor.

    Raises KServeRefusal for invalid parameters and unknown regions.
    """
    parameters = tensor.parameters
    shared = "shared_memory_region" in parameters
    values: dict[str, Any] = {}
    for name, kind in _SHARED_MEMORY.items():
        if name not in parameters:
            continue
        if not shared:
            raise KServeRefusal(
                f"'{name}' can not be specified without 'shared_memory_region' parameter for tensor "
                f"'{tensor.name}'"
            )
        if parameters[name].WhichOneof("parameter_choice") != kind:
            raise KServeRefusal(
                f"invalid value type for '{name}' parameter for tensor '{tensor.name}', expected {kind}."
            )
        values[name] = getattr(parameters[name], kind)
    if not shared:
        return None
    if "shared_memory_byte_size" not in values:
        raise KServeRefusal(
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for "
            f"tensor '{tensor.name}'"
        )
    return find(
        values["shared_memory_region"],
        values.get("shared_memory_offset", 0),
        values["shared_memory_byte_size"],
    )


def _parse_typed_input(tensor: _Tensor, model: KServeModel) -> InputTensor:
    fields = [descriptor.name for descriptor, _ in tensor.contents.ListFields()]
    shape = list(tensor.shape)
    if not fields:
        if 0 in shape and tensor.datatype in BY_DATATYPE:
            return InputTensor(tensor.name, tensor.datatype, shape, b"", Written.RAW)
        raise _missing_data(tensor, model)
    if fields != [CONTENTS.get(tensor.datatype)]:
        raise KServeRefusal(
            f"unexpected explicit tensor data for input tensor '{tensor.name}' for model '{model.name}' of "
            f"type '{_CONTENTS_TYPES[fields[0]]}', expected datatype "
            f"'{tensor.datatype if tensor.datatype in BY_DATATYPE else '<invalid>'}'"
        )
    return InputTensor(
        tensor.name, tensor.datatype, shape, _to_raw(tensor.contents, tensor.datatype), Written.RAW
    )


def _to_raw(contents: InferTensorContents, datatype: str) -> bytes | memoryview:
    if datatype == BYTES:
        return b"".join(part for text in contents.bytes_contents for part in (LENGTH.pack(len(text)), text))
    elements = getattr(contents, CONTENTS[datatype])
    try:
        return from_contents(contents, datatype, [len(elements)]).tobytes()
    except ValueError as exc:
        raise KServeRefusal(str(exc)) from None


def _missing_data(tensor: _Tensor, model: KServeModel) -> KServeRefusal:
    return KServeRefusal(
        f"unable to find data for input tensor '{tensor.name}' for model '{model.name}' in request."
    )


def _requested_output(output: ModelInferRequest.InferRequestedOutputTensor) -> RequestedOutput:
    classes = 0
    if "classification" in output.parameters:
        parameter = output.parameters["classification"]
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise KServeRefusal("invalid value type for 'classification' parameter, expected int64_param")
        classes = parameter.int64_param
        if classes <= 0:
            raise KServeRefusal("invalid value for 'classification' parameter, expected >= 0")
    return RequestedOutput(output.name, True, classes)


class RpcExtensions:
    """Handles the gRPC methods of Triton's extensions for shared memory, trace and log settings."""

    def __init__(self, server: V2Server) -> None:
        self._server = server
        self.settings: dict[str, RpcPage] = {
            "TraceSetting": self._trace_setting,
            "LogSettings": self._log_settings,
        }
        self.shared_memory: dict[str, RpcPage] = {
            "SystemSharedMemoryStatus": self._shared_memory_status,
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
            "CudaSharedMemoryStatus": self._cuda_status,
            "CudaSharedMemoryRegister": self._cuda_register,
            "CudaSharedMemoryUnregister": lambda _: messages.CudaSharedMemoryUnregisterResponse(),
        }

    def _shared_memory_status(self, request: messages.SystemSharedMemoryStatusRequest) -> Message:
        regions = {region["name"]: region for region in self._server.memory.status(request.name)}
        return ParseDict({"regions": regions}, messages.SystemSharedMemoryStatusResponse())

    def _register(self, request: messages.SystemSharedMemoryRegisterRequest) -> Message:
        self._server.memory.register(request.name, request.key, request.offset, request.byte_size)
        return messages.SystemSharedMemoryRegisterResponse()

    def _unregister(self, request: messages.SystemSharedMemoryUnregisterRequest) -> Message:
        self._server.memory.unregister(request.name)
        return messages.SystemSharedMemoryUnregisterResponse()

    def _cuda_status(self, request: messages.CudaSharedMemoryStatusRequest) -> Message:
        self._server.memory.cuda_status(request.name)
        return messages.CudaSharedMemoryStatusResponse()

    def _cuda_register(self, request: messages.CudaSharedMemoryRegisterRequest) -> Message:
        self._server.memory.refuse_cuda(request.name)
        return messages.CudaSharedMemoryRegisterResponse()

    def _trace_setting(self, request: messages.TraceSettingRequest) -> Message:
        model = request.model_name
        if model and not self._server.models.is_ready(model):
            raise KServeRefusal(f"Request for unknown model : {model}")
        if request.settings:
            settings = {name: list(setting.value) or None for name, setting in request.settings.items()}
            self._server.trace.update(settings, model)
        answer = messages.TraceSettingResponse()
        for name, value in self._server.trace.get_settings(model).items():
            answer.settings[name].value.extend(value if isinstance(value, list) else [value])
        return answer

    def _log_settings(self, request: messages.LogSettingsRequest) -> Message:
        kinds = self._server.logging.kinds()
        settings: dict[str, Any] = {}
        for name, setting in request.settings.items():
            if name not in kinds:
                continue
            field, type_name = _SETTING_FIELDS[kinds[name]]
            if setting.WhichOneof("parameter_choice") != field and name != "log_file":
                raise KServeRefusal(f"expect {type_name} for '{name}'")
            settings[name] = getattr(setting, field)
        if settings.get("log_format", LOG_FORMATS[0]) not in LOG_FORMATS:
            raise KServeRefusal(f"invalid argument for log_format, got: {settings['log_format'][:100]}")
        self._server.logging.update(settings)
        answer = messages.LogSettingsResponse()
        for name, value in self._server.logging.get_settings().items():
            setattr(answer.settings[name], _SETTING_FIELDS[type(value)][0], value)
        return answer


class V2Rpc(RpcHandler):
    """gRPC handler of KServe v2's GRPCInferenceService, and of the standard health check."""

    name = "v2-grpc"

    def __init__(self, server: V2Server) -> None:
        super().__init__(server.scheduler)
        self._server = server
        pattern = server.scheduler.app.header_patterns.grpc
        self._forwarded = ForwardedHeaders(pattern) if pattern else None
        extensions = RpcExtensions(server)
        pages: dict[str, RpcPage] = {
            "ServerLive": lambda _: messages.ServerLiveResponse(live=True),
            "ServerReady": lambda _: messages.ServerReadyResponse(ready=server.scheduler.server_ready),
            "ServerMetadata": lambda _: messages.ServerMetadataResponse(**server.metadata()),
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": self._statistics,
            "RepositoryIndex": self._index,
            **extensions.settings,
        }
        unary = grpc.unary_unary_rpc_method_handler
        self.methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            SERVICE + name: unary(self._page_handler(name, page)) for name, page in pages.items()
        }
        for name, page in extensions.shared_memory.items():
            self.methods[SERVICE + name] = unary(self._page_handler(name, page, admit=server.memory.admit))
        self.methods[SERVICE + "RepositoryModelLoad"] = unary(self._load_model)
        self.methods[SERVICE + "RepositoryModelUnload"] = unary(self._unload_model)
        predict = partial(self._predict, "ModelInfer", self._parse_request)
        self.methods[SERVICE + "ModelInfer"] = unary(predict)
        self.methods[SERVICE + "ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(self._run_stream)
        self.methods[HEALTH] = unary(self._health)

    def _page_handler(
        self, name: str, page: RpcPage, admit: Callable[[str], None] | None = None
    ) -> Callable[[bytes, CallContext], Awaitable[bytes]]:
        """Return the gRPC handler of a method without inference, such as model metadata.

        name: name of the method. page: converts the request message to the response message. admit: checks
        the address of the client, and raises KServeRefusal to reject the call.
        """
        kind = getattr(messages, f"{name}Request")

        async def handle_call(data: bytes, context: CallContext) -> bytes:
            try:
                if admit is not None:
                    admit(context.peer())
                return page(_decode_message(kind, data)).SerializeToString()
            except ServingError as exc:
                return await self._refuse_page(context, exc)

        return handle_call

    async def _health(self, data: bytes, context: CallContext) -> bytes:
        return _SERVING if self._scheduler.server_ready else _NOT_SERVING

    def _model_ready(self, request: messages.ModelReadyRequest) -> Message:
        if request.version:
            parse_version(request.version)
        return messages.ModelReadyResponse(ready=self._server.models.is_ready(request.name, request.version))

    def _model_metadata(self, request: messages.ModelMetadataRequest) -> Message:
        document = self._server.get_metadata(request.name, request.version)
        return ParseDict(document, messages.ModelMetadataResponse())

    def _model_config(self, request: messages.ModelConfigRequest) -> Message:
        document = {"config": self._server.config(request.name, request.version)}
        return ParseDict(document, messages.ModelConfigResponse())

    def _statistics(self, request: messages.ModelStatisticsRequest) -> Message:
        document = self._server.statistics(request.name, request.version)
        return ParseDict(document, messages.ModelStatisticsResponse())

    def _index(self, request: messages.RepositoryIndexRequest) -> Message:
        _refuse_named_repository(request)
        rows = build_index(self._server.models, ready_only=request.ready)
        return ParseDict({"models": rows}, messages.RepositoryIndexResponse())

    # A load or unload continues if the client disconnects.

    async def _load_model(self, data: bytes, context: CallContext) -> bytes:
        try:
            request = _decode_message(messages.RepositoryModelLoadRequest, data)
            _refuse_named_repository(request)
            await asyncio.shield(self._server.control.load(request.model_name, request.parameters))
        except ServingError as exc:
            return await self._refuse_page(context, exc)
        return messages.RepositoryModelLoadResponse().SerializeToString()

    async def _unload_model(self, data: bytes, context: CallContext) -> bytes:
        try:
            request = _decode_message(messages.RepositoryModelUnloadRequest, data)
            _refuse_named_repository(request)
            dependents = request.parameters.get("unload_dependents")
            if dependents is not None and dependents.WhichOneof("parameter_choice") != "bool_param":
                raise KServeRefusal(
                    "invalid value type for 'unload_dependents' parameter, expected bool_param."
                )
            await asyncio.shield(self._server.control.unload(request.model_name, request.parameters))
        except ServingError as exc:
            return await self._refuse_page(context, exc)
        return messages.RepositoryModelUnloadResponse().SerializeToString()

    # Inference:

    def _parse_request(self, data: bytes, context: CallContext) -> Request:
        request = self.build_request(parse_message(data, self._server.limits), context)
        if request.decoupled:
            raise KServeRefusal(
                "ModelInfer RPC doesn't support models with decoupled transaction policy", "UNIMPLEMENTED"
            )
        return request

    def build_request(self, message: InferMessage, context: CallContext) -> Request:
        """Convert a parsed ModelInferRequest to the request for the scheduler, with client and deadline.

        Raises ServingError, such as KServeRefusal for inputs that the model does not accept.
        """
        fields = message.fields
        model = self._server.models.find_model(fields.model_name, fields.model_version)
        infer_request = parse_infer(message, model, partial(self._find_span, context))
        if self._forwarded is not None:
            self._forwarded.add_to(infer_request, context.invocation_metadata() or ())
        request = infer_request.build_request(model, PROTO, self._scheduler)
        request.client = CALLER.get() or self._scheduler.peers.find_client(context.peer())
        remaining_s = context.time_remaining()
        timeout_s = math.inf if remaining_s is None else remaining_s
        if infer_request.timeout_us:
            timeout_s = min(timeout_s, infer_request.deadline_s(model))
        request.deadline = self._scheduler.deadline(timeout_s)
        request.version = fields.model_version and str(parse_version(fields.model_version))
        return request

    def _find_span(self, context: CallContext, region: str, offset: int, size: int) -> Span:
        return self._server.memory.span(context.peer(), region, offset, size)

    async def _run_stream(self, requests: Any, context: CallContext) -> None:
        await Stream(self._scheduler, self.build_request, context, self.name).run()

    async def _refuse_page(self, context: CallContext, error: ServingError) -> bytes:
        self._access_log.refused(self.name, error, name_caller(context.peer()))
        return await self._refuse(context, error)

    async def _refuse(self, context: CallContext, error: ServingError) -> bytes:
        _, code, message = describe_error(error)
        if isinstance(error, DeadlineExceeded) and context.time_remaining() == 0:
            code, message = (
                "DEADLINE_EXCEEDED",
                "Deadline Exceeded",
            )  # as gRPC reports the deadline of the call
        await self._end(context, error, code, message)


def _refuse_named_repository(request: Any) -> None:
    if request.repository_name:
        raise KServeRefusal("'repository_name' specification is not supported", "UNIMPLEMENTED")


def _decode_message(kind: Any, data: bytes) -> Any:
    """Parse bytes to a protobuf message of the class `kind`. Raises KServeRefusal for invalid bytes."""
    try:
        return kind.FromString(data)
    except DecodeError:
        raise KServeRefusal("Unable to parse request", "INTERNAL") from None


BuildRequest = Callable[[InferMessage, CallContext], Request]


class StreamRequest:
    """A request of a ModelStreamInfer call, until its last response is written."""

    def __init__(self) -> None:
        self.id = ""
        self.request: Request | None = None  # None for a message that is no valid request
        self.wants_empty_final = False  # of a decoupled model, when it has sent its last response before
        self.message: bytes | ServingError | None = None  # the only response, while earlier requests wait

    def parse(self, message: InferMessage) -> None:
        """Set the fields that responses repeat, from the message of the request."""
        self.id = message.fields.id
        parameter = message.fields.parameters.get(_EMPTY_FINAL)
        self.wants_empty_final = parameter is not None and parameter.bool_param

    def encode(self, answer: Answer, *, is_final: bool) -> bytes:
        """Encode a response or an error as a message of the stream."""
        if isinstance(answer, ServingError):
            refusal = ModelStreamInferResponse(error_message=describe_error(answer)[2])
            refusal.infer_response.id = self.id
            if not is_final and self.request is not None:
                refusal.infer_response.model_name = self.request.service
                _mark_final(refusal.infer_response, False)
            return refusal.SerializeToString()
        marks = _FINAL_BYTES if is_final else _NOT_FINAL_BYTES
        parts = [_INFER_RESPONSE, encode_varint(len(answer[0]) + len(marks)), answer[0], marks]
        return b"".join(parts)

    def encode_empty_final(self) -> bytes:
        """Encode the empty message that ends the responses of a decoupled model."""
        final = ModelStreamInferResponse()
        final.infer_response.id = self.id
        if self.request is not None:
            final.infer_response.model_name = self.request.service
            final.infer_response.model_version = self.request.model_version
        _mark_final(final.infer_response, True)
        return final.SerializeToString()


class Stream:
    """One ModelStreamInfer call: receives requests while earlier requests run.

    Responses have the order of the requests, except those of decoupled models, which are sent immediately. An
    error is sent as a message, and the stream stays open. A client may choose that an error ends the stream
    with its status code. When the server stops, the stream ends after the responses to all received requests.
    """

    def __init__(
        self, scheduler: Scheduler, build_request: BuildRequest, context: CallContext, endpoint: str
    ) -> None:
        self._scheduler = scheduler
        self._build_request = build_request
        self._context = context
        self._endpoint = endpoint
        self._dag_runs: set[DagRun] = set()
        self._strict = _STRICT in tuple(context.invocation_metadata() or ())
        self._in_order: deque[StreamRequest] = deque()  # requests with one response each
        self._outgoing = OutgoingMessages(context)
        self._failure: asyncio.Future[ServingError] = asyncio.get_running_loop().create_future()
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._reader: asyncio.Task[None] | None = None  # the task that waits for a message
        self._stopping = False
        self._stopped = False  # whether no message is read because the server stops
        context.call_on_stop(self._stop)

    def _stop(self) -> None:
        self._stopping = True
        if self._reader is not None:
            self._reader.cancel()

    async def run(self) -> None:
        """Handle all requests until the stream ends. If the client disconnects, cancel its requests."""
        reading = asyncio.create_task(self._receive_messages(), name="stream-reader")
        reading.add_done_callback(lambda _: self._failure.cancel())
        try:
            await self._outgoing.write_until(self._failure)
            if not self._failure.cancelled():
                _, code, message = describe_error(self._failure.result())
                await self._context.abort(getattr(grpc.StatusCode, code), message)
            reading.result()
            if self._stopped:
                await self._context.abort(grpc.StatusCode.UNAVAILABLE, "the service is stopping")
        finally:
            reading.cancel()
            for dag_run in list(self._dag_runs):
                dag_run.leave()

    async def _receive_messages(self) -> None:
        while (data := await self._next_message()) is not None:
            await self._slots.acquire()
            self._begin_request(data)
        for _ in range(IN_FLIGHT):  # wait until all responses are written
            await self._slots.acquire()

    async def _next_message(self) -> Any:
        """Return the next request message; None if the stream has ended or the server stops."""
        if not self._stopping:
            self._reader = asyncio.current_task()
            try:
                data = await self._context.read()
                return None if data is grpc.aio.EOF else data  # type: ignore[attr-defined]
            except asyncio.CancelledError:
                if self._reader is None or not self._stopping:
                    raise
                self._reader.uncancel()
            finally:
                self._reader = None
        self._stopped = True
        return None

    def _begin_request(self, data: Any) -> None:
        entry = StreamRequest()
        began = time.monotonic()
        try:
            message = parse_message(data, self._scheduler.app.config.limits)
            entry.parse(message)
            request = entry.request = self._build_request(message, self._context)
            request.endpoint = self._endpoint
            request.stream = partial(self._add_answer, entry)
            if not request.decoupled:
                self._in_order.append(entry)
            if self._scheduler.traces.is_on:
                self._scheduler.begin_trace(request, "GRPC", began, self._context.get_traceparent())
            dag_run = self._scheduler.begin_request(
                request, lambda answer: self._respond(entry, answer, dag_run)
            )
        except ServingError as exc:
            self._respond_early(entry, exc)
        except Exception:
            log.exception("A fault of ours in ModelStreamInfer")
            self._respond_early(entry, OUR_FAULT)
        else:
            self._dag_runs.add(dag_run)

    def _respond_early(self, entry: StreamRequest, error: ServingError) -> None:
        """Respond to a request that was not admitted, when its turn in the order of the requests comes."""
        if entry.request is None:
            self._in_order.append(entry)
        self._respond(entry, error)

    def _add_answer(self, entry: StreamRequest, answer: Answer, acknowledge: Callable[[], None]) -> None:
        """Send one of several answers to a request; the last answer goes to `_respond`."""
        if self._failure.done():
            return
        if isinstance(answer, ServingError) and self._strict:
            self._fail(answer)
        else:
            self._outgoing.add(entry.encode(answer, is_final=False), acknowledge)

    def _respond(self, entry: StreamRequest, answer: Answer, dag_run: DagRun | None = None) -> None:
        """Send the last or only answer to a request. answer: an empty list if all answers have been sent."""
        trace = None
        if dag_run is not None:
            self._dag_runs.discard(dag_run)
            trace = dag_run.request.trace
        if trace is not None:
            trace.begin_response(describe_answer(answer))
        if isinstance(answer, ServingError):
            self._scheduler.access_log.refused(self._endpoint, answer, name_caller(self._context.peer()))
            entry.message = answer if self._strict else entry.encode(answer, is_final=True)
        else:
            self._scheduler.access_log.answered(self._endpoint)
            if answer:
                entry.message = entry.encode(answer, is_final=True)
            elif entry.wants_empty_final:
                entry.message = entry.encode_empty_final()
            else:
                entry.message = b""
        if entry.request is not None and entry.request.decoupled:
            self._enqueue_last(entry.message)
        else:
            self._send_in_order()
        if trace is not None:
            trace.end_response()

    def _send_in_order(self) -> None:
        """Send the responses of the first requests, up to the first request without a response."""
        while self._in_order and (message := self._in_order[0].message) is not None:
            self._in_order.popleft()
            self._enqueue_last(message)

    def _enqueue_last(self, message: bytes | ServingError) -> None:
        if self._failure.done():
            return
        if isinstance(message, ServingError):
            self._fail(message)
        elif message:
            self._outgoing.add(message, self._slots.release)
        else:
            self._slots.release()

    def _fail(self, error: ServingError) -> None:
        """End the call with the status of an error, after all earlier messages have been sent."""
        if not self._failure.done():
            self._failure.set_result(error)
