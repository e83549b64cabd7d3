"""The front's part of key/value: `/{service}/{method}` over HTTP, PipelineService over gRPC, their messages.

What is accepted and what is refused is what Paddle Serving's gateway did: unknown fields are ignored, the
first JSON value counts and what follows it doesn't, null is the empty value of its type, bytes that are no
UTF-8 become U+FFFD. Only a message that gives nothing at all, which reached the Op there, is told what to
send.
"""

from __future__ import annotations

import functools
import math
from functools import partial
from typing import Any

import grpc
import msgspec
from google.protobuf.message import DecodeError

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from pipeline.api.dag import MESSAGE
from pipeline.api.examples import KEY_VALUE_EXAMPLE, short_message
from pipeline.config.config_file import Limits
from pipeline.dialects.json_nesting import check_depth, check_objects
from pipeline.dialects.json_outline import ScanFirst
from pipeline.dialects.key_value.answers import JSON as JSON_FORM
from pipeline.dialects.key_value.answers import PROTO, render_error
from pipeline.dialects.key_value.declared import DeclaredModels
from pipeline.dialects.key_value.key_value_json import (
    INT64,
    Body,
    JsonTensor,
    decode_leniently,
    integer,
)
from pipeline.dialects.key_value.tensors import add_tensors
from pipeline.dialects.message_fields import check_field_count, check_nested
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
from pipeline.front.grpc.rpc_handler import Context, RpcHandler
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, HttpHandler, NotAllowed, raw_input, refusal_headers
from pipeline.front.scheduler.admission import CALLER
from pipeline.front.scheduler.dag_run import Request
from pipeline.front.scheduler.scheduler import TICKS_PER_S, Scheduler

METHOD = "/baidu.paddle_serving.pipeline_serving.PipelineService/inference"
# These are the transport's own refusals; the original answers all others as a message with err_no.
_AS_STATUS = (Overloaded, NotReady)
_TIMEOUT = b"grpc-timeout"
_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}  # of that header
_decoder = msgspec.json.Decoder(Body)

_NOT_FOUND = b'{"error":"Not Found"}'  # Triton's words, where its repository is served


class KeyValueHttp(ScanFirst, HttpHandler):
    """Answers every request at a path that is no other dialect's and no page."""

    name = "http"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = short_message(scheduler.app.examples.key_values)
        self._models = DeclaredModels(scheduler) if scheduler.app.repository else None
        self._parse = pass_http_on if scheduler.takes_messages else parse_http
        self._raw_bodies = {} if scheduler.takes_messages else scheduler.app.raw_bodies
        self._statuses = scheduler.app.config.dag.http_errors == "status"

    def _read(self, request: HttpRequest) -> Request | None:
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
        model = None if self._models is None else self._models.named(service)
        if model is None and service != self._service:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        raw = None if request.body[:1] == b"{" else raw_input(request, self._raw_bodies)
        if raw is None:
            asked = self._parse(request.body, service, method, self._limits, self._example)
        else:
            asked = Request(service, method, raw, form=JSON_FORM)
        if model is not None and self._models is not None:
            self._models.address(asked, model)
        asked.deadline = self._scheduler.deadline(_timeout_s(request), request.began)
        return asked

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        # The original's gateway answered 504 for a time-out that it was given by the client.
        always = error.always_status or (
            isinstance(error, DeadlineExceeded) and _timeout_s(request) < math.inf
        )
        status = error.http_status if self._statuses or always else 200
        self._refuse_with(status, request, error, head + refusal_headers(error))

    def _refuse_with(self, status: int, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        request.respond(status, JSON + head, render_error(error, JSON_FORM))

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, render_error(error, JSON_FORM)

    def _usage(self) -> str:
        if self._models is not None:
            return self._models.usage()
        return f"POST /{self._service}/prediction with a body like {self._example}"


@functools.lru_cache(maxsize=64)
def _service_and_method(path: str) -> tuple[str, str] | None:
    """The two segments of a path for key/value requests; None for any other path."""
    segments = path.split("/")
    if len(segments) != 3 or not segments[1] or not segments[2] or ":" in segments[2]:
        return None
    return segments[1], segments[2]


def _timeout_s(request: HttpRequest) -> float:
    """How long the client waits, by the header that the original's gateway honoured."""
    given = request.headers.get(_TIMEOUT)
    return math.inf if given is None else parse_grpc_timeout(given)


def parse_grpc_timeout(value: bytes) -> float:
    """A Grpc-Timeout header as gRPC over HTTP/2 defines it: at most eight digits and a unit.

    Raises InvalidInput for any other.
    """
    digits, unit = value[:-1], value[-1:]
    if unit not in _UNITS or not digits.isdigit() or len(digits) > 8:
        shown = value[:32].decode("latin-1")
        raise InvalidInput(
            f"header grpc-timeout is {shown!r}; send digits and a unit of H M S m u n, like 500m"
        )
    return int(digits) * _UNITS[unit]


class KeyValueRpc(RpcHandler):
    """The one method of PipelineService. Messages are bytes for gRPC: they are parsed here."""

    name = "grpc"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = short_message(scheduler.app.examples.key_values)
        self._models = DeclaredModels(scheduler) if scheduler.app.repository else None
        self._parse = pass_proto_on if scheduler.takes_messages else parse_proto
        predict = partial(self._predict, METHOD, self._request)
        self.methods = {METHOD: grpc.unary_unary_rpc_method_handler(predict)}

    def _request(self, data: bytes, context: Context) -> Request:
        request = self._parse(data, self._limits, self._example)
        if self._models is not None:
            self._models.address(request, self._models.named(request.service))
        elif request.service and request.service != self._service:
            raise UnknownService(
                f"Service name error: there is no service {request.service!r}; leave name empty or send "
                f"{self._service!r}, as in {self._example}"
            )
        request.client = CALLER.get() or self._scheduler.peers.of(context.peer())
        remaining_s = context.time_remaining()
        request.deadline = self._scheduler.deadline(math.inf if remaining_s is None else remaining_s)
        return request

    async def _refuse(self, context: Context, error: ServingError) -> bytes:
        if isinstance(error, _AS_STATUS):
            await self._end(context, error, error.grpc_code, error.message)
        if isinstance(error, DeadlineExceeded) and _is_over(context):
            await self._end(context, error, "DEADLINE_EXCEEDED", error.message)
        return render_error(error, PROTO)


def _is_over(context: Context) -> bool:
    """Whether the caller's own deadline passed; a limit of the service's is answered as a message."""
    remaining_s = context.time_remaining()
    return remaining_s is not None and remaining_s <= 1 / TICKS_PER_S


def parse_http(
    body: bytes, service: str, method: str, limits: Limits, example: str = KEY_VALUE_EXAMPLE
) -> Request:
    """The request in an HTTP body; `deadline` and an empty `client_ip` are for the server to set.

    `service` and `method` are the path's and win over the body's. Raises MalformedBody (HTTP 400 always),
    BadPackage and TooLarge, each with a valid body in its message.
    """
    try:
        message = _decode(body, limits)
        inputs = _inputs(message.key, message.value, limits)
        if message.tensors:
            add_tensors(inputs, [JsonTensor.of(tensor) for tensor in message.tensors], limits)
        if not inputs:
            _refuse_nothing(message)
        log_id = 0 if message.logid is None else integer(message.logid, INT64, "'logid'")
        client_ip = message.clientip or ""
    except (BadPackage, TooLarge) as error:
        raise _with_example(error, example) from None
    return Request(service, method, inputs, log_id, client_ip, JSON_FORM)


def pass_http_on(
    body: bytes, service: str, method: str, limits: Limits, example: str = KEY_VALUE_EXAMPLE
) -> Request:
    """The request in an HTTP body for an app that unpacks messages itself: `inputs` holds the message alone.

    Raises as parse_http does, but nothing for a package that the app may judge otherwise.
    """
    given = _decode(body, limits)
    try:
        message = RequestMessage(
            key=[key or "" for key in given.key or ()],
            value=[value or "" for value in given.value or ()],
            tensors=[JsonTensor.of(tensor).to_message() for tensor in given.tensors or ()],
            name=service,
            method=method,
            logid=0 if given.logid is None else integer(given.logid, INT64, "'logid'"),
            clientip=given.clientip or "",
        )
        _check_texts(message, limits)
    except (BadPackage, TooLarge) as error:
        raise _with_example(error, example) from None
    return _passed_on(message, message.SerializeToString(), JSON_FORM)


def pass_proto_on(data: bytes, limits: Limits, example: str = KEY_VALUE_EXAMPLE) -> Request:
    """As `pass_http_on`, of a serialized `Request`. Raises MalformedBody and TooLarge."""
    message = _message(data, limits)
    try:
        _check_texts(message, limits)
    except TooLarge as error:
        raise _with_example(error, example) from None
    return _passed_on(message, data, PROTO)


def _passed_on(message: RequestMessage, data: bytes, form: str) -> Request:
    inputs = {MESSAGE: data}
    return Request(message.name, message.method, inputs, message.logid, message.clientip, form)


def _check_texts(message: RequestMessage, limits: Limits) -> None:
    for value in message.value:
        if len(value) > limits.text_chars:
            raise TooLarge(f"a value has {len(value)} characters; limits.text_chars is {limits.text_chars}")


def parse_proto(data: bytes, limits: Limits, example: str = KEY_VALUE_EXAMPLE) -> Request:
    """The request in a serialized `Request`; `service` and `method` are empty where the message names none.

    Raises MalformedBody for bytes that are no such message, BadPackage and TooLarge.
    """
    message = _message(data, limits)
    try:
        inputs = _inputs(message.key, message.value, limits)
        add_tensors(inputs, message.tensors, limits)
        if not inputs and not message.value:
            raise BadPackage("the message has neither key, value nor tensors")
    except (BadPackage, TooLarge) as error:
        raise _with_example(error, example) from None
    return Request(message.name, message.method, inputs, message.logid, message.clientip, PROTO)


def _message(data: bytes, limits: Limits) -> RequestMessage:
    check_field_count(data, limits)
    check_nested(data, RequestMessage.TENSORS_FIELD_NUMBER, limits, elements=limits.rows)
    message = RequestMessage()
    try:
        message.ParseFromString(data)
    except DecodeError as exc:
        raise MalformedBody(
            f"the {len(data)} bytes are no Request of baidu.paddle_serving.pipeline_serving ({exc}); "
            'send one with key: ["0"], value: ["..."]'
        ) from None
    return message


def _decode(body: bytes, limits: Limits) -> Body:
    # Every level of nesting has a bracket: few brackets are a shallow body, without a walk through it.
    if body.count(b"[") + body.count(b"{") > limits.json_depth:
        check_depth(body, limits.json_depth)
    if len(body) > 2 * limits.tensors:  # an object has two bytes at least
        check_objects(body, limits.tensors + 1)
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_leniently(body)


def _inputs(keys: Any, values: Any, limits: Limits) -> dict[str, Any]:
    """Each value under its key; of a key given twice the last counts, of values without a key none."""
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


def _refuse_nothing(message: Body) -> None:
    """Raises BadPackage where all three fields are absent; of an empty list the Op is to judge."""
    if message.key is None and message.value is None and message.tensors is None:
        raise BadPackage("the body has neither 'key', 'value' nor 'tensors'")


def _with_example(error: BadPackage | TooLarge, example: str) -> BadPackage | TooLarge:
    return type(error)(f"{error.message}. A valid message: {example}")
