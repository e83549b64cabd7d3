"""Response bodies of Paddle Serving's key/value protocol, in JSON and protobuf.

The worker encodes responses, and the front encodes errors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.json_format import MessageToDict

from client.protos.pipeline_service_pb2 import Response
from pipeline.api.request_options import Answer
from pipeline.errors import ServingError
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import TensorSpec
from pipeline.wire.value_texts import build_message, format_outputs, format_value, unencodable

JSON, PROTO = "key_value.json", "key_value.proto"  # names of the response forms
_INT32 = range(-(1 << 31), 1 << 31)
_UNKNOWN_ERROR = 10000
_json = msgspec.json.encode


def render(outputs: Mapping[str, Any], form: str) -> bytes:
    """Encode the outputs of an inference as the body of a key/value response, in the order of `outputs`.

    form: JSON or PROTO. Raises UnprintableAnswer with err_no 7000 for a value that can't be converted to
    text, and with err_no 8000 for an invalid key.
    """
    if isinstance(outputs, Answer) and outputs.key_values is not None:
        outputs = outputs.key_values
    keys, texts = list(outputs), list(outputs.values())
    if set(map(type, keys + texts)) != {str}:
        keys, texts = format_outputs(outputs)
    if form == JSON:
        try:
            body = b'{"err_no":0,"err_msg":"","key":%b,"value":%b,"tensors":[]}'
            return body % (_json(keys), _json(texts))
        except UnicodeEncodeError as exc:
            raise unencodable(exc) from None
    return build_message(keys, texts).SerializeToString()


def render_outputs(
    form: str,
    outputs: Mapping[str, Any],
    declared_tensors: bool | None,
    version: str,
    declared: Sequence[TensorSpec],
) -> list[Part]:
    """Encode the outputs of an inference as the body of a key/value response.

    This is the `render` function of a `Form`, see `pipeline.dialects.dialect`. form: JSON or PROTO.
    declared_tensors: whether the outputs are declared tensors of a model in a repository, to be sent as
    texts.
    """
    if declared_tensors:
        outputs = {name: _format_tensor(value) for name, value in outputs.items()}
    return [render(outputs, form)]


def _format_tensor(value: Any) -> str:
    """Return the text of an output tensor for a key/value response.

    A BYTES tensor becomes its only element, or a list of its elements. Other tensors are formatted like
    NumPy's `repr`.
    """
    if isinstance(value, np.ndarray) and value.dtype.kind in "OSU":
        texts = [e.decode("utf-8", "replace") if isinstance(e, bytes) else str(e) for e in value.ravel()]
        value = texts[0] if len(texts) == 1 else texts
    if isinstance(value, str):
        return value
    return format_value(value)


def render_message(form: str, message: Response) -> list[Part]:
    """Encode a protobuf `Response` that the app's own ResponseOp has built. form: JSON or PROTO."""
    if form == PROTO:
        return [message.SerializeToString()]
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
    return [_json(body)]


def render_error(error: ServingError | tuple[int, str], form: str) -> bytes:
    """Encode the body of an error response: `err_no` and `err_msg`, without values.

    error: an error, or its err_no and message. form: JSON or PROTO.
    """
    err_no, message = (error.err_no, error.message) if isinstance(error, ServingError) else error
    if err_no not in _INT32:  # the field is an int32; an app may use any number
        err_no, message = _UNKNOWN_ERROR, f"{message} (err_no {err_no})"
    if not message.isascii():
        message = message.encode(errors="replace").decode()
    if form == JSON:
        return b'{"err_no":%d,"err_msg":%b,"key":[],"value":[],"tensors":[]}' % (err_no, _json(message))
    return Response(err_no=err_no, err_msg=message).SerializeToString()
