"""FRONT PROCESS: handlers of Paddle Serving's key/value protocol, over HTTP and gRPC.

The HTTP path is `/{service}/{method}`, the gRPC service is PipelineService.

Requests are accepted and rejected as by Paddle Serving's gateway. Unknown fields are ignored. The first JSON
value counts, and the rest of the body doesn't. null is the empty value of its type. Bytes that are no UTF-8
become U+FFFD. Only an empty message differs: the gateway passed it to the Op, and here it is rejected with an
example of a valid message.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
import msgspec

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from client.protos.pipeline_service_pb2 import Tensor
from pipeline.api.app import App
from pipeline.api.dag import MESSAGE
from pipeline.api.examples import KEY_VALUE_EXAMPLE, short_message
from pipeline.config.config_file import Limits
from pipeline.dialects.json_outline import Outline, ScanFirst, check_depth, check_objects
from pipeline.dialects.key_value.answers import JSON as JSON_FORM
from pipeline.dialects.key_value.answers import PROTO, render_error
from pipeline.dialects.key_value.repository_models import RepositoryModels, get_text_example
from pipeline.dialects.key_value.unread import (
    BYTE_DATA,
    INT64,
    LOD,
    Body,
    BodyTensor,
    JsonTensor,
    UnreadMessage,
    UnreadTensor,
    UnreadText,
    decode_leniently,
    make_message,
    parse_integer,
    parse_message,
    with_example,
)
from pipeline.dialects.message_fields import LargeMessage, check_field_count, check_nested
from pipeline.dialects.sequence_keys import pop_sequence_options
from pipeline.errors import (
    BadPackage,
    DeadlineExceeded,
    InvalidInput,
    MalformedBody,
    NotReady,
    Overloaded,
    ServingError,
    TooLarge,
    UnknownService,
)
from pipeline.front.dag_run import Answer, Request
from pipeline.front.grpc.rpc_handler import CallContext, RpcHandler
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import (
    JSON,
    SMALL_BYTES,
    HttpHandler,
    NotAllowed,
    raw_input,
    refusal_headers,
    sniff_format,
)
from pipeline.front.http.openapi import Schema, content, operation, refusals, upload_form
from pipeline.front.scheduler.admission import CALLER
from pipeline.front.scheduler.scheduler import TICKS_PER_S, Scheduler
from pipeline.messages.frames import Part
from pipeline.wire.paddle_tensors import (
    NUMERIC,
    STRING,
    TensorMessage,
    add_tensors,
    check_header,
    lod_name,
    read_lod,
)

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
STREAM_METHOD = f"{METHOD}_stream"
# Paddle Serving ends the call with a status for these errors. All others are messages with err_no.
_AS_STATUS = (Overloaded, NotReady)
_TIMEOUT = b"grpc-timeout"
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}  # units of grpc-timeout
_TENSORS = RequestMessage.TENSORS_FIELD_NUMBER
_NOTHING_CUT: Mapping[int, LargeMessage] = {}
_decoder = msgspec.json.Decoder(Body)
_SHAPE_BYTES = 1024  # maximum JSON size of a dimension, with white space
_CUT = {  # fields to cut from a large message, by number
    Tensor.DESCRIPTOR.fields_by_name[field].number: field
    for field in (LOD, *(field for field, _ in NUMERIC.values()))
}
_OTHER_SPELLING = {
    "int64_data": "int64Data",
    "float_data": "floatData",
    "int_data": "intData",
    "float64_data": "float64Data",
    "uint32_data": "uint32Data",
    "bool_data": "boolData",
    "str_data": "strData",
    BYTE_DATA: "byteData",
}

_NOT_FOUND = b'{"error":"Not Found"}'  # as Triton responds, for a service with a model repository
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_REQUEST: Schema = {
    "type": "object",
    "properties": {
        "key": _TEXTS,
        "value": _TEXTS,
        "logid": {"type": "integer"},
        "clientip": {"type": "string"},
    },
    "required": ["key", "value"],
}
_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "err_no": {"type": "integer", "description": "0: answered."},
        "err_msg": {"type": "string", "description": "What was wrong, and what to send."},
        "key": _TEXTS,
        "value": _TEXTS,
        "tensors": {"type": "array", "items": {}},
    },
}


class Framing(NamedTuple):
    """Format of one HTTP response with several answers, such as server-sent events."""

    head: bytes  # header line
    part: bytes  # of each answer, a JSON document


_FRAMINGS = {  # by the media type in the Accept header
    "text/event-stream": Framing(b"content-type: text/event-stream; charset=utf-8\r\n", b"data: %b\n\n"),
    "application/x-ndjson": Framing(b"content-type: application/x-ndjson\r\n", b"%b\n"),
}


def _find_framing(request: HttpRequest) -> Framing | None:
    """Return the framing for several answers that the client requests in its Accept header, else None."""
    accepted = request.headers.get(b"accept")
    if accepted is None or accepted == b"*/*":
        return None
    media = accepted.decode("latin-1").partition(",")[0].partition(";")[0].strip().lower()
    return _FRAMINGS.get(media)


class KeyValueHttp(ScanFirst, HttpHandler):
    """HTTP handler of Paddle Serving's key/value protocol, `POST /{service}/{method}`.

    It also receives, and rejects, requests to all paths that no other protocol or page serves.
    """

    name = "http"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = short_message(scheduler.app.examples.key_values)
        self._models = RepositoryModels(scheduler) if scheduler.app.repository else None
        self._parse = pass_http_on if scheduler.takes_messages else parse_http
        self._raw_bodies = {} if scheduler.takes_messages else scheduler.app.raw_bodies
        self._statuses = scheduler.app.config.dag.http_errors == "status"
        self._overload: Overloaded | None = None  # error of the latest refusal for overload
        self._overload_head = self._overload_body = b""  # of its response

    def _read(self, request: HttpRequest, outline: Outline | None = None) -> Request | None:
        path = request.path
        named = _service_and_method(path)
        if named is None and self._models is not None:
            request.respond(404, JSON, _NOT_FOUND)
            return None
        if named is None:
            self._refuse_with(404, request, UnknownService(f"there is nothing at {path}; {self._usage()}"))
            return None
        if request.method != "POST":
            raise NotAllowed(request.method, path, "POST", hint=self._usage())
        service, method = named
        model = None if self._models is None else self._models.find_model(service)
        if model is None and service != self._service:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        deadline = self._scheduler.deadline(_timeout_s(request), request.began)
        overload = None if self._models is not None else self._scheduler.find_overload(request.client)
        if overload is not None:  # most requests at overload: refuse them without parsing
            request.reject_overload(partial(self._answer, request, None, overload), deadline)
            return None
        raw = None if request.body[:1] == b"{" else raw_input(request, self._raw_bodies)
        if raw is None:
            if outline is None and len(request.body) > SMALL_BYTES:
                kind = sniff_format(request.body) or "no JSON object"
                raise with_example(MalformedBody(f"the body is {kind}"), self._example)
            prediction = self._parse(request.body, service, method, self._limits, self._example, outline)
        else:
            prediction = Request(service, method, raw, form=JSON_FORM)
        if self._scheduler.keeps_sequences("" if model is None else model.key):
            prediction.options = pop_sequence_options(prediction.inputs)
        if model is not None and self._models is not None:
            self._models.address(prediction, model)
        prediction.deadline = deadline
        if (framing := _find_framing(request)) is not None:
            prediction.stream = partial(self._send_part, request, framing)
        return prediction

    def _send_part(
        self,
        request: HttpRequest,
        framing: Framing,
        answer: Answer,
        acknowledge: Callable[[], None] = lambda: None,
        head: bytes = b"",
    ) -> None:
        """Send one of several answers, or an error, as a chunk of the response."""
        if not request.has_begun:
            request.begin_chunks(200, head + framing.head)
        if answer:
            body = render_error(answer, JSON_FORM) if isinstance(answer, ServingError) else bytes(answer[0])
            request.send_chunk(framing.part % body, acknowledge)

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        framing = _find_framing(request)
        if framing is None:
            super()._send(request, parts, head)
            return
        self._send_part(request, framing, parts, head=head)
        request.end_chunks()

    def _read_outline(self, request: HttpRequest, outline: Outline) -> Request | None:
        return self._read(request, outline)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        framing = _find_framing(request)
        if framing is not None and request.has_begun:
            self._access_log.refused(self.name, error, request.peer)
            self._send_part(request, framing, error)
            request.end_chunks()
            return
        if type(error) is Overloaded and not head:
            self._refuse_overload(request, error)
            return
        # Paddle Serving's gateway responds 504 if the timeout was set by the client.
        always = error.always_status or (
            isinstance(error, DeadlineExceeded) and _timeout_s(request) < math.inf
        )
        status = error.http_status if self._statuses or always else 200
        self._refuse_with(status, request, error, head + refusal_headers(error))

    def _refuse_overload(self, request: HttpRequest, error: Overloaded) -> None:
        """Send an overload error as the response. The response to one shared error is encoded only once."""
        if error is not self._overload:
            self._overload = error
            self._overload_head = JSON + refusal_headers(error)
            self._overload_body = render_error(error, JSON_FORM)
        self._access_log.refused(self.name, error, request.peer)
        request.respond(error.http_status, self._overload_head, self._overload_body)

    def _refuse_with(self, status: int, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        request.respond(status, JSON + head, render_error(error, JSON_FORM))

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, render_error(error, JSON_FORM)

    def _usage(self) -> str:
        if self._models is not None:
            return self._models.usage()
        return f"POST /{self._service}/prediction with a body like {self._example}"


@functools.lru_cache(maxsize=64)  # most requests have one of a few paths
def _service_and_method(path: str) -> tuple[str, str] | None:
    """Return service and method of a path `/{service}/{method}`; None for any other path."""
    segments = path.split("/")
    if len(segments) != 3 or not segments[1] or not segments[2] or ":" in segments[2]:
        return None
    return segments[1], segments[2]


def _timeout_s(request: HttpRequest) -> float:
    """Return the client's timeout in seconds, from the header grpc-timeout; infinity without the header.

    Raises InvalidInput for an invalid header.
    """
    value = request.headers.get(_TIMEOUT)
    return math.inf if value is None else parse_grpc_timeout(value)


def parse_grpc_timeout(value: bytes) -> float:
    """Parse the value of a grpc-timeout header, such as 500m for 500 ms. Return seconds.

    A valid value has at most eight digits and a unit, as in gRPC over HTTP/2. Raises InvalidInput for others.
    """
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        shown = value[:32].decode("latin-1")
        raise InvalidInput(
            f"header grpc-timeout is {shown!r}; send digits and a unit of H M S m u n, like 500m"
        )
    return int(digits) * _UNITS[unit]


class KeyValueRpc(RpcHandler):
    """gRPC handler of Paddle Serving's protobuf service PipelineService.

    The method `inference_stream`, which sends several responses to a request, is not part of Paddle Serving.
    """

    name = "grpc"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = short_message(scheduler.app.examples.key_values)
        self._models = RepositoryModels(scheduler) if scheduler.app.repository else None
        self._parse = pass_proto_on if scheduler.takes_messages else parse_proto
        predict = partial(self._predict, METHOD, self._parse_request)
        self.methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            METHOD: grpc.unary_unary_rpc_method_handler(predict),
            STREAM_METHOD: grpc.stream_stream_rpc_method_handler(self._run_stream),
        }

    async def _run_stream(self, requests: Any, context: CallContext) -> None:
        await self._predict_stream(STREAM_METHOD, self._parse_request, context)

    def _encode(self, answer: Answer) -> bytes:
        return render_error(answer, PROTO) if isinstance(answer, ServingError) else bytes(answer[0])

    def _parse_request(self, data: bytes, context: CallContext) -> Request:
        request = self._parse(data, self._limits, self._example)
        model = None if self._models is None else self._models.find_model(request.service)
        if self._scheduler.keeps_sequences("" if model is None else model.key):
            request.options = pop_sequence_options(request.inputs)
        if model is not None and self._models is not None:
            self._models.address(request, model)
        elif request.service and request.service != self._service:
            raise UnknownService(
                f"Service name error: there is no service {request.service!r}; leave name empty or send "
                f"{self._service!r}, as in {self._example}"
            )
        request.client = CALLER.get() or self._scheduler.peers.find_client(context.peer())
        remaining_s = context.time_remaining()
        request.deadline = self._scheduler.deadline(math.inf if remaining_s is None else remaining_s)
        return request

    async def _refuse(self, context: CallContext, error: ServingError) -> bytes:
        if isinstance(error, _AS_STATUS):
            await self._end(context, error, error.grpc_code, error.message)
        if isinstance(error, DeadlineExceeded) and _is_over(context):
            await self._end(context, error, "DEADLINE_EXCEEDED", error.message)
        return render_error(error, PROTO)


def _is_over(context: CallContext) -> bool:
    """Return whether the client's deadline of a gRPC call has passed.

    A timeout of the service itself does not end the call, but is sent as a response message.
    """
    remaining_s = context.time_remaining()
    return remaining_s is not None and remaining_s <= 1 / TICKS_PER_S


def parse_http(
    body: bytes,
    service: str,
    method: str,
    limits: Limits,
    example: str = KEY_VALUE_EXAMPLE,
    outline: Outline | None = None,
) -> Request:
    """Parse a JSON body of the key/value protocol to a request with texts and tensors by name.

    service, method: from the path; those in the body are ignored. The caller sets `deadline`. outline: a
    large body with placeholders for its long arrays, see `json_outline`; None for a small body. Raises
    MalformedBody (always HTTP 400), BadPackage and TooLarge. Each error message contains `example`, a valid
    body.
    """
    try:
        message = _decode(body, limits) if outline is None else _decode_outline(outline, limits)
        inputs = _match_values(message.key, message.value, limits)
        if outline is not None:
            _leave_texts(inputs)
        if message.tensors:
            if outline is None:
                add_tensors(inputs, [JsonTensor(tensor) for tensor in message.tensors], limits)
            else:
                _LargeTensors(inputs, limits, example).add_outline(message.tensors, outline)
        if not inputs:
            _check_not_empty(message)
        log_id = 0 if message.logid is None else parse_integer(message.logid, INT64, "'logid'")
        client_ip = message.clientip or ""
    except (BadPackage, TooLarge) as error:
        raise with_example(error, example) from None
    return Request(service, method, inputs, log_id, client_ip, JSON_FORM)


def pass_http_on(
    body: bytes,
    service: str,
    method: str,
    limits: Limits,
    example: str = KEY_VALUE_EXAMPLE,
    outline: Outline | None = None,
) -> Request:
    """Convert a JSON body for an app that unpacks messages itself: the only input is a protobuf message.

    Raises errors like `parse_http`, except for BadPackage: the app itself checks keys and values.
    """
    try:
        decoded = _decode(body, limits) if outline is None else _decode_outline(outline, limits)
        for value in decoded.value or ():
            _check_text(value or "", limits)
        log_id = 0 if decoded.logid is None else parse_integer(decoded.logid, INT64, "'logid'")
        message: bytes | UnreadMessage
        if outline is None:
            message = make_message(decoded, service, method).SerializeToString()
        else:
            message = UnreadMessage(body, True, service, method, example)
    except (BadPackage, TooLarge) as error:
        raise with_example(error, example) from None
    return Request(service, method, {MESSAGE: message}, log_id, decoded.clientip or "", JSON_FORM)


def pass_proto_on(data: bytes, limits: Limits, example: str = KEY_VALUE_EXAMPLE) -> Request:
    """Pass a serialized protobuf `Request`, undecoded, to an app that unpacks messages itself.

    Raises MalformedBody if the bytes are no valid message, and TooLarge.
    """
    message, large = _parse_message(data, limits)
    try:
        for value in message.value:
            _check_text(value, limits)
    except TooLarge as error:
        raise with_example(error, example) from None
    passed_message = UnreadMessage(data, False, message.name, message.method, example) if large else data
    inputs = {MESSAGE: passed_message}
    return Request(message.name, message.method, inputs, message.logid, message.clientip, PROTO)


def _check_text(value: str, limits: Limits) -> None:
    if len(value) > limits.text_chars:
        raise TooLarge(f"a value has {len(value)} characters; limits.text_chars is {limits.text_chars}")


def parse_proto(data: bytes, limits: Limits, example: str = KEY_VALUE_EXAMPLE) -> Request:
    """Parse a serialized protobuf `Request` of PipelineService. Its `service` and `method` may be empty.

    The worker decodes the long tensors of a large message. Raises MalformedBody if the bytes are no valid
    message, BadPackage and TooLarge.
    """
    message, large = _parse_message(data, limits)
    try:
        inputs = _match_values(message.key, message.value, limits)
        if len(data) > SMALL_BYTES:
            _leave_texts(inputs)
        if large:
            _LargeTensors(inputs, limits, example).add_message(message.tensors, large)
        else:
            add_tensors(inputs, message.tensors, limits)
        if not inputs and not message.value:
            raise BadPackage("the message has neither key, value nor tensors")
    except (BadPackage, TooLarge) as error:
        raise with_example(error, example) from None
    return Request(message.name, message.method, inputs, message.logid, message.clientip, PROTO)


def _leave_texts(inputs: dict[str, Any]) -> None:
    """Replace the long texts of a large request by `UnreadText` objects, which the worker decodes."""
    for name, text in inputs.items():
        if len(text) > SMALL_BYTES:
            inputs[name] = UnreadText(text.encode("utf-8", "surrogatepass"))


class _LargeTensors:
    """Adds the tensors of a large request to its inputs.

    Tensors with long data become `UnreadTensor` objects, which the worker process decodes.
    """

    def __init__(self, inputs: dict[str, Any], limits: Limits, example: str) -> None:
        self._inputs = inputs
        self._limits = limits
        self._example = example

    def add_outline(self, tensors: Iterable[BodyTensor | None], outline: Outline) -> None:
        """Add the tensors of a large JSON body. Raises BadPackage and TooLarge.

        tensors: decoded from the outline, in which placeholders replace long arrays.
        """
        for index, tensor in enumerate(tensors):
            self._add_json(index, tensor or BodyTensor(), outline)

    def add_message(self, tensors: Iterable[Tensor], large: Mapping[int, LargeMessage]) -> None:
        """Add the tensors of a large protobuf message. Raises errors like `add_outline`.

        tensors: the tensors without their long fields. large: complete, undecoded tensors by index.
        """
        for index, tensor in enumerate(tensors):
            if index in large:
                self._add_message(index, tensor, large[index])
            else:
                add_tensors(self._inputs, [tensor], self._limits)

    def _add_json(self, index: int, json_tensor: BodyTensor, outline: Outline) -> None:
        cut = _cut_fields(json_tensor, outline, self._limits)
        tensor = JsonTensor(json_tensor)
        field = _data_field(tensor.elem_type)
        data = cut.get(field)
        if data is None and not len(getattr(tensor, field)):
            data = cut.get(_OTHER_SPELLING[field])
        if data is None:
            add_tensors(self._inputs, [tensor], self._limits)
        else:
            self._add(index, tensor, field, data)
        if LOD in cut:
            self._leave(index, tensor, LOD, cut[LOD], lod=True)

    def _add_message(self, index: int, tensor: Tensor, large: LargeMessage) -> None:
        cut = {_CUT[number] for number, _ in large.cut}
        if _data_field(tensor.elem_type) in cut:
            self._add(index, tensor, "", large.data)
        else:
            add_tensors(self._inputs, [tensor], self._limits)
        if LOD in cut:
            self._leave(index, tensor, "", large.data, lod=True)

    def _add(self, index: int, tensor: TensorMessage, field: str, data: Part) -> None:
        check_header(tensor, self._limits)
        self._leave(index, tensor, field, data)
        if tensor.lod:
            self._inputs[lod_name(tensor.name)] = read_lod(tensor)

    def _leave(self, index: int, tensor: TensorMessage, field: str, data: Part, *, lod: bool = False) -> None:
        name = lod_name(tensor.name) if lod else tensor.name
        limits = self._limits
        self._inputs[name] = UnreadTensor(
            data,
            field,
            tensor.name,
            index,
            tensor.elem_type,
            list(tensor.shape),
            limits.tensor_rank,
            limits.text_chars,
            self._example,
            lod,
        )


def _data_field(elem_type: int) -> str:
    """Return the name of the `Tensor` field with the data of an elem_type, for example int64_data."""
    if elem_type in NUMERIC:
        return NUMERIC[elem_type][0]
    return "str_data" if elem_type == STRING else BYTE_DATA


def _cut_fields(tensor: BodyTensor, outline: Outline, limits: Limits) -> dict[str, Part]:
    """Remove the long fields from a tensor of a JSON body. Return their JSON texts by field name.

    A long shape is decoded instead. Raises MalformedBody and TooLarge for a shape that is no short list of
    integers.
    """
    cut: dict[str, Part] = {}
    for field in BodyTensor.__struct_fields__:
        value = getattr(tensor, field)
        if field in (BYTE_DATA, _OTHER_SPELLING[BYTE_DATA]) and len(value or "") > SMALL_BYTES:
            cut[field] = value.encode("utf-8", "replace")
        elif (array := outline.find_array(value)) is not None:
            cut[field] = array
        else:
            continue
        setattr(tensor, field, None)
    if "shape" in cut:
        tensor.shape = _decode_shape(cut["shape"], tensor.name or "", limits)
    return cut


def _decode_shape(text: Part, name: str, limits: Limits) -> list[int | str | None]:
    if len(text) > _SHAPE_BYTES * limits.tensor_rank:
        raise TooLarge(
            f"the shape of tensor {name!r} is too long; limits.tensor_rank is {limits.tensor_rank}"
        )
    try:
        return msgspec.json.decode(text, type=list[int | str | None])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        raise MalformedBody(f"'shape' of tensor {name!r} is no list of integers") from None


def _parse_message(data: bytes, limits: Limits) -> tuple[RequestMessage, Mapping[int, LargeMessage]]:
    """Parse a serialized `Request` without the long data of its tensors. Return also these tensors by index.

    Raises MalformedBody and TooLarge.
    """
    check_field_count(data, limits)
    if len(data) <= SMALL_BYTES:
        check_nested(data, _TENSORS, limits, elements=limits.rows)
        return parse_message(data), _NOTHING_CUT
    short = Tensor.SHAPE_FIELD_NUMBER
    outline, large = check_nested(data, _TENSORS, limits, cut=_CUT, short=short, elements=limits.rows)
    return parse_message(outline), large


def _decode(body: bytes, limits: Limits) -> Body:
    """Decode a JSON body of the key/value protocol. Raises MalformedBody and TooLarge."""
    # Each level of nesting has a bracket: a body with few brackets needs no scan.
    if body.count(b"[") + body.count(b"{") > limits.json_depth:
        check_depth(body, limits.json_depth)
    if len(body) > 2 * limits.tensors:  # an object has at least two bytes
        check_objects(body, limits.tensors + 1)
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_slowly(body)


def _decode_outline(outline: Outline, limits: Limits) -> Body:
    """Decode the outline of a large JSON body: the body with placeholders for its long arrays.

    The depth and the number of values are already checked. Raises MalformedBody and TooLarge.
    """
    try:
        body = _decoder.decode(outline.text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        body = _decode_slowly(outline.text)
    count = len(body.tensors or ())
    if count > limits.tensors:
        raise TooLarge(f"the body has {count} tensors; limits.tensors is {limits.tensors}")
    return body


def _decode_slowly(text: bytes) -> Body:
    if kind := sniff_format(text):
        raise MalformedBody(f"the body is {kind}, no JSON")
    return decode_leniently(text, Body)


def _match_values(keys: Any, values: Any, limits: Limits) -> dict[str, Any]:
    """Return the texts of a request by key, from its parallel lists `key` and `value`.

    If a key is repeated, its last value is used. Values without a key are ignored. Raises BadPackage for a
    key without a value, and TooLarge.
    """
    if not keys:
        return {}
    values = values or ()
    count = len(values)
    if len(keys) > limits.tensors:
        raise TooLarge(f"'key' has {len(keys)} elements; limits.tensors is {limits.tensors}")
    if len(keys) > count:
        raise BadPackage(
            f"rpc package error: list index ({count}) out of range: 'key' has {len(keys)} elements and "
            f"'value' {count}; give each key its value"
        )
    inputs = {}
    for index, key in enumerate(keys):
        value = values[index]
        if value is None:
            value = ""
        elif len(value) > limits.text_chars:
            raise TooLarge(
                f"the value of key {key!r} has {len(value)} characters; limits.text_chars is "
                f"{limits.text_chars}"
            )
        inputs[key or ""] = value
    return inputs


def _check_not_empty(message: Body) -> None:
    """Raise BadPackage if 'key', 'value' and 'tensors' are all absent. Empty lists are valid."""
    if message.key is None and message.value is None and message.tensors is None:
        raise BadPackage("the body has neither 'key', 'value' nor 'tensors'")


def key_value_paths(app: App) -> dict[str, Any]:
    """Return the key/value paths for /openapi.json: one for the service, or for each model of a repository.

    Models in a repository are left out unless all their required inputs are single texts.
    """
    if app.repository is None:
        model = "" if app.default is None else app.default.name
        return {
            _prediction_path(app.name): {"post": _prediction_operation(app, model, app.examples.key_values)}
        }
    examples = {model.name: get_text_example(model) for model in app.models}
    return {
        _prediction_path(name): {"post": _prediction_operation(app, name, key_values)}
        for name, key_values in examples.items()
        if key_values
    }


def _prediction_path(name: str) -> str:
    return f"/{quote(name)}/prediction"


def _prediction_operation(app: App, model: str, key_values: Mapping[str, str]) -> dict[str, Any]:
    example = {"key": list(key_values), "value": list(key_values.values())} if key_values else None
    body = content(_REQUEST, example, app.examples.bodies, _upload_form(app))
    summary, zh = "Predict: a text under each key", "推理：每个键一条文本"
    description = operation("key/value", summary, zh, body, _ANSWER, model=model)
    if app.config.dag.http_errors == "status":
        description["responses"] |= refusals(_ANSWER)
    return description


def _upload_form(app: App) -> Schema | None:
    """Return the schema of an upload form, for /openapi.json; None if the service accepts no files.

    Models of a repository, and apps that unpack messages themselves, accept no files.
    """
    served = app.default
    if served is None or served.graph.source == MESSAGE:
        return None
    inputs = () if served.signature is None else served.signature.inputs
    return upload_form(app.raw_bodies, (spec.name for spec in inputs))
