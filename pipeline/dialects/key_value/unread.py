"""JSON bodies of the key/value protocol, and inputs that the worker decodes instead of the front process."""

from __future__ import annotations

import binascii
import codecs
import json
import math
import re
import threading
from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from client.protos.pipeline_service_pb2 import Request, Tensor
from pipeline.errors import BadPackage, MalformedBody, TooLarge
from pipeline.messages.frames import Part, Unread
from pipeline.wire.paddle_tensors import (
    BYTES,
    NUMERIC,
    TensorLimits,
    TensorMessage,
    read_lod,
    read_npy_header,
    read_tensor,
)

Number = int | float | str | None
Integer = int | str | None

_INT32 = range(-(1 << 31), 1 << 31)
INT64 = range(-(1 << 63), 1 << 63)
_UINT32 = range(1 << 32)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DIGITS = 400  # longer numbers fit no type, and int() of thousands of digits is slow
# Replacing an invalid byte takes 0.3 us.
_SMALL_BYTES = 1 << 18  # in a text of at most this size, all bytes may be replaced
_MAX_REPLACED = 1 << 16  # replacements in a longer text
_BASE64_START = 16 * 1024  # enough for the header of an npy file
_Decoded = TypeVar("_Decoded", bound=msgspec.Struct)
_ONE_EACH = "paddlewheel.one_replacement_each"
BYTE_DATA, LOD = "byte_data", "lod"


class BodyTensor(msgspec.Struct, gc=False):
    """A protobuf `Tensor` in JSON. Field names may be in snake or camel case, and numbers may be texts."""

    name: str | None = None
    elem_type: Integer = None
    elemType: Integer = None
    shape: list[Integer] | None = None
    lod: list[Integer] | None = None
    int64_data: list[Integer] | None = None
    int64Data: list[Integer] | None = None
    float_data: list[Number] | None = None
    floatData: list[Number] | None = None
    int_data: list[Integer] | None = None
    intData: list[Integer] | None = None
    float64_data: list[Number] | None = None
    float64Data: list[Number] | None = None
    uint32_data: list[Integer] | None = None
    uint32Data: list[Integer] | None = None
    bool_data: list[bool | str | None] | None = None  # str: the stand-in for an array, from the outline
    boolData: list[bool | str | None] | None = None
    complex64_data: list[Number] | None = None
    complex64Data: list[Number] | None = None
    complex128_data: list[Number] | None = None
    complex128Data: list[Number] | None = None
    str_data: list[str | None] | None = None
    strData: list[str | None] | None = None
    byte_data: str | None = None
    byteData: str | None = None


class Body(msgspec.Struct, gc=False):
    """A protobuf `Request` in JSON. A field that is null or absent is None."""

    key: list[str | None] | None = None
    value: list[str | None] | None = None
    tensors: list[BodyTensor | None] | None = None
    logid: Integer = None
    clientip: str | None = None
    name: str | None = None
    method: str | None = None


class JsonTensor:
    """A tensor of a JSON body, with the field names of the protobuf `Tensor`, and with numbers as arrays.

    The constructor raises MalformedBody for an invalid value.
    """

    def __init__(self, body_tensor: BodyTensor | None) -> None:
        tensor = body_tensor or BodyTensor()
        self.name = tensor.name or ""
        where = f"of tensor {self.name!r}"
        elem_type = tensor.elem_type if tensor.elemType is None else tensor.elemType
        self.elem_type = parse_integer(elem_type, _INT32, f"'elem_type' {where}")
        self.shape = [parse_integer(size, _INT32, f"'shape' {where}") for size in tensor.shape or ()]
        self.lod = [parse_integer(offset, _INT32, f"'lod' {where}") for offset in tensor.lod or ()]
        self.int64_data = _parse_integers(
            tensor.int64_data or tensor.int64Data, INT64, np.int64, f"'int64_data' {where}"
        )
        self.int_data = _parse_integers(
            tensor.int_data or tensor.intData, _INT32, np.int32, f"'int_data' {where}"
        )
        self.uint32_data = _parse_integers(
            tensor.uint32_data or tensor.uint32Data, _UINT32, np.uint32, f"'uint32_data' {where}"
        )
        self.float_data = _parse_floats(
            tensor.float_data or tensor.floatData, np.float32, f"'float_data' {where}"
        )
        self.float64_data = _parse_floats(
            tensor.float64_data or tensor.float64Data, np.float64, f"'float64_data' {where}"
        )
        self.bool_data = _parse_bools(tensor.bool_data or tensor.boolData, f"'bool_data' {where}")
        self.str_data = [item or "" for item in tensor.str_data or tensor.strData or ()]
        self.byte_data = _decode_base64(tensor.byte_data or tensor.byteData or "", f"'byte_data' {where}")

    def to_message(self) -> Tensor:
        """Return the tensor as a protobuf `Tensor`."""
        message = Tensor(
            name=self.name,
            elem_type=self.elem_type,
            shape=self.shape,
            lod=self.lod,
            str_data=self.str_data,
            byte_data=self.byte_data,
        )
        for field in ("int64_data", "int_data", "uint32_data", "float_data", "float64_data", "bool_data"):
            getattr(message, field).extend(getattr(self, field).tolist())
        return message


def decode_leniently(
    text: bytes, kind: type[_Decoded], subject: str = "the body", path: str = ""
) -> _Decoded:
    """Decode JSON that the fast decoder rejects, as leniently as Paddle Serving's gateway.

    Only the first JSON value is decoded, and invalid UTF-8 becomes U+FFFD. kind: type of the result. subject:
    name of the text in error messages. path: position of the text in the body, such as `tensors[0].`. Raises
    MalformedBody with the position for invalid JSON, and with the field for a value of another type. Raises
    TooLarge for too deep nesting.
    """
    if text.startswith(codecs.BOM_UTF8):
        raise MalformedBody(f"{subject} starts with a byte order mark; JSON has none")
    characters = _decode_utf8(text, subject)
    start = len(characters) - len(characters.lstrip(" \t\r\n"))
    if start == len(characters):
        return kind()
    try:
        document, _ = _json.raw_decode(characters, start)
    except json.JSONDecodeError as exc:
        raise MalformedBody(
            f"{subject} is no valid JSON: {exc.msg} at line {exc.lineno}, column {exc.colno}"
        ) from None
    except ValueError as exc:  # from _refuse_constant
        raise MalformedBody(f"{subject} is no valid JSON: {exc}") from None
    except RecursionError:
        raise TooLarge(f"{subject} nests too deep") from None
    if document is None:
        return kind()
    if not isinstance(document, dict):
        raise MalformedBody(f"{subject} is a {type(document).__name__}, not an object with 'key' and 'value'")
    try:
        return msgspec.convert(_replace_surrogates(document), kind)
    except msgspec.ValidationError as exc:
        reason, _, field = str(exc).partition(" - at `$")
        where = path + field.strip(".`") or subject
        quoted = "; a value is a text, a list of numbers in quotes as well" if where[:6] == "value[" else ""
        raise MalformedBody(f"'{where}': {reason}{quoted}") from None


def parse_integer(value: Integer, bounds: range, subject: str) -> int:
    """Return a JSON integer, or an integer in a JSON text, as int. null becomes 0.

    subject: name of the value in error messages. Raises MalformedBody for other values, and for an integer
    outside of `bounds`.
    """
    if isinstance(value, str):
        if len(value) > _MAX_DIGITS or not _INTEGER.fullmatch(value):
            raise MalformedBody(f"{subject}: {value[:40]!r} is no integer")
        value = int(value)
    if value is None:
        return 0
    if value not in bounds:
        raise MalformedBody(f"{subject}: {value} is outside {bounds[0]} to {bounds[-1]}")
    return value


def _parse_integers(
    values: list[Integer] | None, bounds: range, dtype: npt.DTypeLike, subject: str
) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, dtype)
    if not all(type(item) is int for item in values):
        values = [parse_integer(item, bounds, subject) for item in values]
    try:
        return np.array(values, dtype)
    except OverflowError:
        worst = next(item for item in values if item not in bounds)
        raise MalformedBody(f"{subject}: {worst} is outside {bounds[0]} to {bounds[-1]}") from None


def _parse_floats(values: list[Number] | None, dtype: npt.DTypeLike, subject: str) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, dtype)
    named = any(type(item) is str or item is None for item in values)
    try:
        numbers = np.array([_parse_float(item, subject) for item in values] if named else values, np.float64)
    except OverflowError:
        raise MalformedBody(f"{subject} holds a number too large for {np.dtype(dtype)}") from None
    with np.errstate(over="ignore"):
        result = numbers.astype(dtype)
    too_large = np.isinf(result) if not named else np.isinf(result) & np.isfinite(numbers)
    if too_large.any():
        raise MalformedBody(
            f'{subject} holds a number too large for {np.dtype(dtype)}; infinity is the text "Infinity"'
        )
    return result


def _parse_bools(values: list[bool | str | None] | None, subject: str) -> npt.NDArray[Any]:
    for item in values or ():
        if type(item) is str:
            raise MalformedBody(f"{subject}: {item[:40]!r} is neither true nor false")
    return np.array([bool(item) for item in values or ()], np.bool_)


def _parse_float(value: Number, subject: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, str):
        if value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if len(value) > _MAX_DIGITS or not _NUMBER.fullmatch(value):
            raise MalformedBody(f"{subject}: {value[:40]!r} is no number")
        value = float(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise OverflowError
    return float(value)


def decode_base64_start(text: Part, subject: str) -> bytes:
    """Decode the beginning of a base64 text, enough for the header of an npy file. Raises MalformedBody.

    subject: name of the text in error messages.
    """
    start = bytes(memoryview(text)[:_BASE64_START]).translate(None, b"\r\n")
    return _decode_base64(start[: len(start) // 4 * 4].decode("utf-8", "replace"), subject)


def _decode_base64(text: str, subject: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("\n", "").replace("\r", ""), strict_mode=True)
    except (binascii.Error, ValueError) as exc:
        raise MalformedBody(f"{subject} is no base64: {exc}") from None


def _replace_surrogates(value: Any) -> Any:
    """Replace lone surrogates, which come from `\\ud800` escapes, by U+FFFD in a decoded JSON document."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_replace_surrogates(item) for item in value]
    if isinstance(value, dict):
        return {_replace_surrogates(key): _replace_surrogates(item) for key, item in value.items()}
    return value


def _decode_utf8(text: bytes, subject: str) -> str:
    """Decode UTF-8, with U+FFFD for each invalid byte. Raises MalformedBody for too many invalid bytes."""
    _replaced.remaining = _MAX_REPLACED if len(text) > _SMALL_BYTES else len(text)
    try:
        return text.decode("utf-8", _ONE_EACH)
    except OverflowError:
        raise MalformedBody(f"{subject} has more than {_MAX_REPLACED} bytes that are no UTF-8") from None


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    """Replace each invalid byte by U+FFFD, as Go does. The function is the error handler of `_decode_utf8`.

    Python's own handler replaces some sequences of invalid bytes by a single U+FFFD.
    """
    assert isinstance(error, UnicodeDecodeError)
    _replaced.remaining -= 1
    if _replaced.remaining < 0:
        raise OverflowError
    return "\ufffd" * (error.end - error.start), error.end


class _Replaced(threading.local):
    """Thread-local count of invalid bytes that may still be replaced in the text that is decoded now."""

    remaining = 0


def _refuse_constant(name: str) -> float:
    raise ValueError(f'{name} is no JSON; write the text "{name}"')


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


_replaced = _Replaced()
codecs.register_error(_ONE_EACH, _replace_each)
_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_bounded_int)


_decoder = msgspec.json.Decoder(Body)
_tensor_decoder = msgspec.json.Decoder(BodyTensor)


class DeclaredTexts(Unread, eq=False):
    """Texts for an input of a model in a repository, which the worker decodes. `data` is a JSON array."""

    kind = "key_value.texts"
    shape: list[int]  # shape of the tensor

    def decode(self) -> Any:
        """Return the texts as an array of `bytes` objects in the shape of the tensor."""
        return _to_bytes_array(msgspec.json.decode(self.data, type=list[str]), self.shape)


class UnreadText(Unread, eq=False):
    """A long text of a request, which the worker process decodes instead of the front-end process.

    `data` is the text in UTF-8.
    """

    kind = "key_value.text"
    shape: list[int] | None = None  # shape of the tensor, for a model of a repository

    def decode(self) -> Any:
        """Return the text; for a model in a repository, return an array with the text as a `bytes` object."""
        text = str(self.data, "utf-8", "surrogatepass")
        return text if self.shape is None else _to_bytes_array([text], self.shape)


class UnreadTensor(Unread, eq=False):
    """A tensor of a large request, in the JSON or protobuf encoding of the client. The worker decodes it."""

    kind = "key_value.tensor"
    field: str  # JSON field whose value is `data`; empty if `data` is a serialized Tensor
    name: str
    index: int  # position among the tensors of the request, for error messages
    elem_type: int
    shape: list[int]
    tensor_rank: int  # limits.tensor_rank
    text_chars: int  # limits.text_chars
    example: str  # a valid message, for error messages
    is_lod: bool = False  # decode the lod of the tensor, not its elements
    as_bytes: bool = False  # decode texts to an array of `bytes` objects

    def decode(self) -> Any:
        """Return the elements of the tensor as an array or a text; with `is_lod`, its LoD (level of detail).

        Raises BadPackage and TooLarge with the tensor's name.
        """
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
        """Return the name of the dtype (BYTES for texts) and the shape, without decoding the elements.

        The front-end process checks both against the declared input. Raises BadPackage and TooLarge.
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
                subject, path = f"tensor {self.name!r}", f"tensors[{self.index}]."
                tensor = decode_leniently(text, BodyTensor, subject, path)
        tensor.name, tensor.elem_type, tensor.shape = self.name, self.elem_type, list(self.shape)
        return JsonTensor(tensor)

    def _read_bytes(self, value: Any) -> Any:
        if isinstance(value, str):
            texts = [value]
        else:
            texts = [
                e if isinstance(e, str) else e.decode("utf-8", "replace") for e in value.ravel().tolist()
            ]
        if len(texts) != math.prod(self.shape):
            raise BadPackage(f"the {len(texts)} texts of tensor {self.name!r} do not fill {list(self.shape)}")
        return _to_bytes_array(texts, self.shape)


class UnreadMessage(Unread, eq=False):
    """A large request for an app that unpacks Paddle Serving's messages itself.

    `data` is the request body, which the worker converts to a protobuf message.
    """

    kind = "key_value.message"
    is_json: bool  # whether `data` is JSON, not a serialized Request
    service: str
    method: str
    example: str  # a valid message, for error messages

    def decode(self) -> bytes:
        """Return the request as a serialized protobuf `Request`. Raises BadPackage and TooLarge."""
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
    """Convert a decoded JSON body to a protobuf `Request`. Raises MalformedBody for an invalid value."""
    return Request(
        key=[key or "" for key in body.key or ()],
        value=[value or "" for value in body.value or ()],
        tensors=[JsonTensor(tensor).to_message() for tensor in body.tensors or ()],
        name=service,
        method=method,
        logid=0 if body.logid is None else parse_integer(body.logid, INT64, "'logid'"),
        clientip=body.clientip or "",
    )


def parse_message(data: bytes) -> Request:
    """Parse the bytes of a protobuf `Request`. Raises MalformedBody if they are no valid message."""
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
    """Return a copy of the error with a valid request at the end of its message."""
    return type(error)(f"{error.message}. A valid message: {example}")


def _to_bytes_array(texts: Sequence[str], shape: Sequence[int]) -> Any:
    array = np.empty(len(texts), object)
    array[:] = [text.encode("utf-8", "replace") for text in texts]
    return array.reshape(shape)
