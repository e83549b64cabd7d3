"""Values of key/value requests that the front does not decode: the worker reads them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from google.protobuf.message import DecodeError

from client.protos.pipeline_service_pb2 import Request, Tensor
from pipeline.dialects.key_value.key_value_json import (
    INT64,
    Body,
    BodyTensor,
    JsonTensor,
    decode_base64_start,
    decode_leniently,
    integer,
)
from pipeline.errors import BadPackage, MalformedBody, TooLarge
from pipeline.messages.values import Unread
from pipeline.wire.paddle_tensors import (
    BYTES,
    NUMERIC,
    TensorLimits,
    TensorMessage,
    read_lod,
    read_npy_header,
    read_tensor,
)

BYTE_DATA, LOD = "byte_data", "lod"
_decoder = msgspec.json.Decoder(Body)
_tensor_decoder = msgspec.json.Decoder(BodyTensor)


class DeclaredTexts(Unread, eq=False):
    """Texts for a repository's model: `data` is a JSON array of them."""

    kind = "key_value.texts"
    shape: list[int]

    def decode(self) -> Any:
        """Return an array of `bytes` objects."""
        return _byte_objects(msgspec.json.decode(self.data, type=list[str]), self.shape)


class UnreadText(Unread, eq=False):
    """A long text: `data` is its UTF-8, which is passed on at the cost of one copy."""

    kind = "key_value.text"
    shape: list[int] | None = None  # of the array that a repository's model takes

    def decode(self) -> Any:
        """Return the text, or an array of one `bytes` object."""
        text = str(self.data, "utf-8", "surrogatepass")
        return text if self.shape is None else _byte_objects([text], self.shape)


class UnreadTensor(Unread, eq=False):
    """A tensor of a large request: `data` holds its elements as the client wrote them."""

    kind = "key_value.tensor"
    field: str  # of a JSON tensor that `data` is the value of; empty: `data` is a serialized Tensor
    name: str
    place: int  # among the tensors of the request, for error messages
    elem_type: int
    shape: list[int]
    tensor_rank: int  # limits.tensor_rank
    text_chars: int  # limits.text_chars
    example: str  # a valid message, for error messages
    is_lod: bool = False  # whether the value is the tensor's lod
    as_bytes: bool = False  # whether texts become an array of `bytes` objects

    def decode(self) -> Any:
        """Return an array, or a text. Raises BadPackage and TooLarge that name the tensor."""
        try:
            tensor = self._parse_json() if self.field else self._parse_message()
            value = read_lod(tensor) if self.is_lod else read_tensor(tensor, self)
            if self.as_bytes:
                return self._read_bytes(value)
        except (BadPackage, TooLarge) as error:
            raise with_example(error, self.example) from None
        if isinstance(value, np.ndarray) and not value.flags.writeable:
            return value.copy()
        return value

    def find_type(self, limits: TensorLimits) -> tuple[str, list[int]]:
        """Return the dtype's name, BYTES for texts, and the shape, without decoding elements.

        Raises BadPackage and TooLarge.
        """
        if self.elem_type in NUMERIC:
            return NUMERIC[self.elem_type][1].name, self.shape
        if self.elem_type != BYTES:
            return "BYTES", self.shape
        start = decode_base64_start(self.data, f"'byte_data' of tensor {self.name!r}")
        shape, _, dtype, _ = read_npy_header(start, self.name, limits)
        return ("BYTES" if dtype.kind in "SU" else dtype.name), list(shape)

    def _parse_message(self) -> TensorMessage:
        try:
            return Tensor.FromString(bytes(self.data))
        except DecodeError as exc:
            raise MalformedBody(
                f"the {len(self.data)} bytes of tensor {self.name!r} are no Tensor ({exc})"
            ) from None

    def _parse_json(self) -> TensorMessage:
        if self.field == BYTE_DATA:
            tensor = BodyTensor(byte_data=str(self.data, "utf-8", "replace"))
        else:
            text = b"".join([b'{"%b":' % self.field.encode(), self.data, b"}"])
            try:
                tensor = _tensor_decoder.decode(text)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                subject, path = f"tensor {self.name!r}", f"tensors[{self.place}]."
                tensor = decode_leniently(text, BodyTensor, subject, path)
        tensor.name, tensor.elem_type, tensor.shape = self.name, self.elem_type, list(self.shape)
        return JsonTensor.from_body(tensor)

    def _read_bytes(self, value: Any) -> Any:
        if isinstance(value, str):
            texts = [value]
        else:
            texts = [
                e if isinstance(e, str) else e.decode("utf-8", "replace") for e in value.ravel().tolist()
            ]
        if len(texts) != math.prod(self.shape):
            raise BadPackage(f"the {len(texts)} texts of tensor {self.name!r} do not fill {list(self.shape)}")
        return _byte_objects(texts, self.shape)


class UnreadMessage(Unread, eq=False):
    """A large request for an app that unpacks messages itself: `data` is the body as the client wrote it."""

    kind = "key_value.message"
    is_json: bool  # else a serialized Request
    service: str
    method: str
    example: str  # a valid message, for error messages

    def decode(self) -> bytes:
        """Return a serialized Request. Raises BadPackage and TooLarge."""
        data = bytes(self.data)
        try:
            if self.is_json:
                return make_message(_decode_body(data), self.service, self.method).SerializeToString()
            parse_message(data)
        except (BadPackage, TooLarge) as error:
            raise with_example(error, self.example) from None
        return data


def _decode_body(text: bytes) -> Body:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return decode_leniently(text, Body)


def make_message(body: Body, service: str, method: str) -> Request:
    """Return the message of a JSON request. Raises MalformedBody."""
    return Request(
        key=[key or "" for key in body.key or ()],
        value=[value or "" for value in body.value or ()],
        tensors=[JsonTensor.from_body(tensor).to_message() for tensor in body.tensors or ()],
        name=service,
        method=method,
        logid=0 if body.logid is None else integer(body.logid, INT64, "'logid'"),
        clientip=body.clientip or "",
    )


def parse_message(data: bytes) -> Request:
    """Parse a serialized Request. Raises MalformedBody."""
    message = Request()
    try:
        message.ParseFromString(data)
    except DecodeError as exc:
        raise MalformedBody(
            f"the {len(data)} bytes are no Request of baidu.paddle_serving.pipeline_serving ({exc}); "
            'send one with key: ["0"], value: ["..."]'
        ) from None
    return message


def with_example(error: BadPackage | TooLarge, example: str) -> BadPackage | TooLarge:
    """Return the error with a valid message in its text."""
    return type(error)(f"{error.message}. A valid message: {example}")


def _byte_objects(texts: Sequence[str], shape: Sequence[int]) -> Any:
    array = np.empty(len(texts), object)
    array[:] = [text.encode("utf-8", "replace") for text in texts]
    return array.reshape(shape)
