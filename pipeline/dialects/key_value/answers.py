"""The response body of key/value routes, rendered in the worker.

Values have the text that Paddle Serving sent. A str is sent as it is, an ndarray as the full repr of NumPy 1,
a list of str as its repr. All values are arrays and lists, or all are str; nothing else is sent.
"""

from __future__ import annotations

import contextvars
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.json_format import MessageToDict

from client.protos.pipeline_service_pb2 import Response
from pipeline.api.request_options import Answer
from pipeline.dialects.key_value.array_text import array_repr
from pipeline.errors import ServingError, UnprintableAnswer
from pipeline.messages.values import Part
from pipeline.models.tensor_spec import TensorSpec

JSON, PROTO = "key_value.json", "key_value.proto"  # the forms of an answer
_INT32 = range(-(1 << 31), 1 << 31)
_UNKNOWN_ERROR = 10000
_json = msgspec.json.encode

# NumPy keeps print options in a context variable: a context of our own neither sees nor changes the app's.
# Copying and entering it costs 0.1 us, `np.printoptions` 10.
_numpy_1 = contextvars.Context()
_numpy_1.run(np.set_printoptions, legacy="1.25", threshold=sys.maxsize)


def render(outputs: Mapping[str, Any], form: str) -> bytes:
    """The complete body of a good answer, keys in the order of `outputs`.

    Raises UnprintableAnswer (err_no 7000) for a value that has no text, (8000) for a key that is none.
    """
    if isinstance(outputs, Answer) and outputs.key_values is not None:
        outputs = outputs.key_values
    keys, values = list(outputs), list(outputs.values())
    for value in values:
        if type(value) is not str:
            values = _numpy_1.copy().run(_texts, keys, values)
            break
    for key in keys:
        if type(key) is not str:
            keys = [_key_text(key) for key in keys]
            break
    try:
        if form == JSON:
            body = b'{"err_no":0,"err_msg":"","key":%b,"value":%b,"tensors":[]}'
            return body % (_json(keys), _json(values))
        return Response(key=keys, value=values).SerializeToString()
    except UnicodeEncodeError as exc:
        raise _bad_message(f"{exc}; decode the text with errors='replace'") from None


def rendered(
    form: str,
    outputs: Mapping[str, Any],
    declared_tensors: bool | None,
    version: str,
    declared: Sequence[TensorSpec],
) -> list[Part]:
    """`render`, as a `Form` calls it: an answer holds whatever postprocess returned.

    declared_tensors: whether the outputs are the tensors of a repository's model, each of which has a text.
    """
    if declared_tensors:
        texts_by_name = _as_texts(outputs)
        texts = _numpy_1.copy().run(lambda: [_printed(value) for value in texts_by_name.values()])
        outputs = dict(zip(texts_by_name, texts, strict=True))
    return [render(outputs, form)]


def _as_texts(outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return outputs with BYTES as text: one element as a str, several as a list of them."""
    return {name: _as_text(value) for name, value in outputs.items()}


def _as_text(value: Any) -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "OSU":
        return value
    texts = [e.decode("utf-8", "replace") if isinstance(e, bytes) else str(e) for e in value.ravel()]
    return texts[0] if len(texts) == 1 else texts


def _printed(value: Any) -> str:
    if isinstance(value, str):
        return value
    return array_repr(value) if isinstance(value, np.ndarray) else repr(value)


def rendered_message(form: str, message: Response) -> list[Part]:
    return [render_message(message, form)]


def render_message(message: Response, form: str) -> bytes:
    """The complete body of an answer that the app's own ResponseOp made, in either form."""
    if form == PROTO:
        return message.SerializeToString()
    body = {
        "err_no": message.err_no,
        "err_msg": message.err_msg,
        "key": list(message.key),
        "value": list(message.value),
        "tensors": [
            MessageToDict(tensor, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
            for tensor in message.tensors
        ],
    }
    return _json(body)


def render_error(error: ServingError | tuple[int, str], form: str) -> bytes:
    """The complete body of a refusal: `err_no` and `err_msg`, and no values."""
    err_no, message = (error.err_no, error.message) if isinstance(error, ServingError) else error
    if err_no not in _INT32:  # the field is an int32, and an app's own number may be anything
        err_no, message = _UNKNOWN_ERROR, f"{message} (err_no {err_no})"
    message = message.encode(errors="replace").decode()
    if form == JSON:
        return b'{"err_no":%d,"err_msg":%b,"key":[],"value":[],"tensors":[]}' % (err_no, _json(message))
    return Response(err_no=err_no, err_msg=message).SerializeToString()


def _texts(keys: list[Any], values: list[Any]) -> list[str]:
    """The text of each value; to be run in the context that prints as NumPy 1 did.

    Arrays and lists are what Paddle Serving took for outputs of a model; a list goes by its first element.
    """
    texts = []
    for value in values:
        if isinstance(value, np.ndarray):
            texts.append(array_repr(value))
        elif isinstance(value, list) and value and isinstance(value[0], str):
            texts.append(repr(value))
        else:
            return [_text(*pair) for pair in zip(keys, values, strict=True)]
    return texts


def _text(key: Any, value: Any) -> str:
    if isinstance(value, str):
        return str(value)  # np.str_ among them
    raise UnprintableAnswer(
        f"@DAGExecutor fetch var type must be str({type(value)}). An answer holds either str values "
        f"alone, or ndarray and list-of-str values alone; have postprocess make str(...) of {key!r}, say."
    )


def _key_text(key: Any) -> str:
    if isinstance(key, str):
        return str(key)
    raise _bad_message(
        f"{key!r} has type {type(key).__name__}, but expected one of: bytes, unicode; "
        "the keys of an answer are str"
    )


def _bad_message(reason: str) -> UnprintableAnswer:
    error = UnprintableAnswer(f"rpc package error: {reason}")
    error.err_no = 8000  # the original's number for a message that can't be built
    return error
