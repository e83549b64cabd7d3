"""Key/value messages, `{"key": [...], "value": [...]}` over HTTP and `Request` over gRPC, to a Request.

What is accepted and what is refused is what Paddle Serving's gateway did: unknown fields are ignored, the
first JSON value counts and what follows it doesn't, null is the empty value of its type, bytes that are no
UTF-8 become U+FFFD. Only a message that gives nothing at all, which reached the Op there, is told what to
send.
"""

from __future__ import annotations

from typing import Any

import msgspec
from google.protobuf.message import DecodeError

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from pipeline.api.dag import MESSAGE
from pipeline.api.examples import KEY_VALUE_EXAMPLE
from pipeline.config.config_file import Limits
from pipeline.dialects.json_nesting import check_depth, check_objects
from pipeline.dialects.key_value.answers import JSON, PROTO
from pipeline.dialects.key_value.key_value_json import (
    INT64,
    Body,
    JsonTensor,
    decode_leniently,
    integer,
)
from pipeline.dialects.key_value.tensors import add_tensors
from pipeline.dialects.message_fields import check_field_count
from pipeline.errors import BadPackage, MalformedBody, TooLarge
from pipeline.front.scheduler.request import Request

_decoder = msgspec.json.Decoder(Body)


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
    return Request(service, method, inputs, log_id, client_ip, JSON)


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
    return _passed_on(message, message.SerializeToString(), JSON)


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
    return Request(
        message.name,
        message.method,
        inputs,
        message.logid,
        message.clientip,
        PROTO,
    )


def _message(data: bytes, limits: Limits) -> RequestMessage:
    check_field_count(data, limits)
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
    check_depth(body, limits.json_depth)
    if len(body) > 2 * limits.tensors:  # an object has two bytes at least
        check_objects(body, limits.tensors + 1)
    try:
        return _decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_leniently(body)


def _inputs(keys: Any, values: Any, limits: Limits) -> dict[str, Any]:
    """value i under key i; of a key given twice the last, of values without a key none."""
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
    """An empty list is a choice, and the Op's to judge; the absence of all three fields is a mistake."""
    if message.key is None and message.value is None and message.tensors is None:
        raise BadPackage("the body has neither 'key', 'value' nor 'tensors'")


def _with_example(error: BadPackage | TooLarge, example: str) -> BadPackage | TooLarge:
    return type(error)(f"{error.message}. A valid message: {example}")
