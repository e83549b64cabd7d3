"""The JSON of a key/value body: its fields, and the slow, exact reading of what the fast one can't decode."""

from __future__ import annotations

import binascii
import codecs
import json
import math
import re
import threading
from typing import Any, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt

from client.protos.pipeline_service_pb2 import Tensor
from pipeline.errors import MalformedBody, TooLarge
from pipeline.messages.values import Part

Number = int | float | str | None
Integer = int | str | None

_INT32 = range(-(1 << 31), 1 << 31)
INT64 = range(-(1 << 63), 1 << 63)
_UINT32 = range(1 << 32)
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"-?(0|[1-9]\d*)", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_DIGITS = 400  # more are beyond every type, and int() of many thousand takes long
# Replacing a byte that is no UTF-8 takes 0.3 us.
_SMALL_BYTES = 1 << 18  # in a text of so few bytes all may be replaced
_MAX_REPLACED = 1 << 16  # in a longer text
_BASE64_START = 16 * 1024
_Decoded = TypeVar("_Decoded", bound=msgspec.Struct)


class BodyTensor(msgspec.Struct, gc=False):
    """A `Tensor` in JSON: either spelling of a name, 64-bit integers and numbers as text, too."""

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
    bool_data: list[bool | str | None] | None = None  # str: the mark of an array that the outline lacks
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
    """A `Request` in JSON; None is null or absent."""

    key: list[str | None] | None = None
    value: list[str | None] | None = None
    tensors: list[BodyTensor | None] | None = None
    logid: Integer = None
    clientip: str | None = None
    name: str | None = None
    method: str | None = None


class JsonTensor:
    """A tensor of a JSON body with the fields of the protobuf message, its numbers as arrays."""

    def __init__(self, tensor: BodyTensor) -> None:
        self.name = tensor.name or ""
        where = f"of tensor {self.name!r}"
        elem_type = tensor.elem_type if tensor.elemType is None else tensor.elemType
        self.elem_type = integer(elem_type, _INT32, f"'elem_type' {where}")
        self.shape = [integer(size, _INT32, f"'shape' {where}") for size in tensor.shape or ()]
        self.lod = [integer(offset, _INT32, f"'lod' {where}") for offset in tensor.lod or ()]
        self.int64_data = _integers(
            tensor.int64_data or tensor.int64Data, INT64, np.int64, f"'int64_data' {where}"
        )
        self.int_data = _integers(tensor.int_data or tensor.intData, _INT32, np.int32, f"'int_data' {where}")
        self.uint32_data = _integers(
            tensor.uint32_data or tensor.uint32Data, _UINT32, np.uint32, f"'uint32_data' {where}"
        )
        self.float_data = _floats(tensor.float_data or tensor.floatData, np.float32, f"'float_data' {where}")
        self.float64_data = _floats(
            tensor.float64_data or tensor.float64Data, np.float64, f"'float64_data' {where}"
        )
        self.bool_data = _bools(tensor.bool_data or tensor.boolData, f"'bool_data' {where}")
        self.str_data = [item or "" for item in tensor.str_data or tensor.strData or ()]
        self.byte_data = _base64(tensor.byte_data or tensor.byteData or "", f"'byte_data' {where}")

    def to_message(self) -> Tensor:
        """The protobuf message itself."""
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

    @classmethod
    def from_body(cls, tensor: BodyTensor | None) -> JsonTensor:
        return cls(tensor or BodyTensor())


def decode_leniently(
    text: bytes, kind: type[_Decoded], subject: str = "the body", path: str = ""
) -> _Decoded:
    """Decode JSON that the fast decoder refused, as the gateway did: its first value alone.

    Bytes that are no UTF-8 become U+FFFD. subject, path: of the text, for error messages. Raises
    MalformedBody with the place for invalid JSON, and with the field for a value of another type.
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
    except ValueError as exc:  # of our own hooks
        raise MalformedBody(f"{subject} is no valid JSON: {exc}") from None
    except RecursionError:
        raise TooLarge(f"{subject} nests too deep") from None
    if document is None:
        return kind()
    if not isinstance(document, dict):
        raise MalformedBody(f"{subject} is a {type(document).__name__}, not an object with 'key' and 'value'")
    try:
        return msgspec.convert(_mended(document), kind)
    except msgspec.ValidationError as exc:
        reason, _, field = str(exc).partition(" - at `$")
        where = path + field.strip(".`") or subject
        quoted = "; a value is a text, a list of numbers in quotes as well" if where[:6] == "value[" else ""
        raise MalformedBody(f"'{where}': {reason}{quoted}") from None


def integer(value: Integer, bounds: range, subject: str) -> int:
    """A JSON integer, or the text of one; null is 0. Raises MalformedBody."""
    if isinstance(value, str):
        if len(value) > _MAX_DIGITS or not _INTEGER.fullmatch(value):
            raise MalformedBody(f"{subject}: {value[:40]!r} is no integer")
        value = int(value)
    if value is None:
        return 0
    if value not in bounds:
        raise MalformedBody(f"{subject}: {value} is outside {bounds[0]} to {bounds[-1]}")
    return value


def _integers(
    values: list[Integer] | None, bounds: range, dtype: npt.DTypeLike, subject: str
) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, dtype)
    if not all(type(item) is int for item in values):
        values = [integer(item, bounds, subject) for item in values]
    try:
        return np.array(values, dtype)
    except OverflowError:
        worst = next(item for item in values if item not in bounds)
        raise MalformedBody(f"{subject}: {worst} is outside {bounds[0]} to {bounds[-1]}") from None


def _floats(values: list[Number] | None, dtype: npt.DTypeLike, subject: str) -> npt.NDArray[Any]:
    if values is None:
        return np.empty(0, dtype)
    named = any(type(item) is str or item is None for item in values)
    try:
        numbers = np.array([_float(item, subject) for item in values] if named else values, np.float64)
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


def _bools(values: list[bool | str | None] | None, subject: str) -> npt.NDArray[Any]:
    for item in values or ():
        if type(item) is str:
            raise MalformedBody(f"{subject}: {item[:40]!r} is neither true nor false")
    return np.array([bool(item) for item in values or ()], np.bool_)


def _float(value: Number, subject: str) -> float:
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
    """Decode the beginning of a text in base64: as much as the header of an npy file may have."""
    start = bytes(memoryview(text)[:_BASE64_START]).translate(None, b"\r\n")
    return _base64(start[: len(start) // 4 * 4].decode("utf-8", "replace"), subject)


def _base64(text: str, subject: str) -> bytes:
    try:
        return binascii.a2b_base64(text.replace("\n", "").replace("\r", ""), strict_mode=True)
    except (binascii.Error, ValueError) as exc:
        raise MalformedBody(f"{subject} is no base64: {exc}") from None


def _mended(value: Any) -> Any:
    """A decoded document without the lone surrogates that `\\ud800` escapes leave."""
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value


def _decode_utf8(text: bytes, subject: str) -> str:
    """Decode UTF-8 with U+FFFD for each invalid byte. Raises MalformedBody for too many of them."""
    _replaced.remaining = _MAX_REPLACED if len(text) > _SMALL_BYTES else len(text)
    try:
        return text.decode("utf-8", _ONE_EACH)
    except OverflowError:
        raise MalformedBody(f"{subject} has more than {_MAX_REPLACED} bytes that are no UTF-8") from None


def _replace_each(error: UnicodeError) -> tuple[str, int]:
    """U+FFFD for every byte that is no UTF-8, as Go has it; Python's own handler joins some of them."""
    assert isinstance(error, UnicodeDecodeError)
    _replaced.remaining -= 1
    if _replaced.remaining < 0:
        raise OverflowError
    return "\ufffd" * (error.end - error.start), error.end


class _Replaced(threading.local):
    """Counts the replacements that may still be made in the text that a thread decodes."""

    remaining = 0


def _refuse_constant(name: str) -> float:
    raise ValueError(f'{name} is no JSON; write the text "{name}"')


def _bounded_int(digits: str) -> int | float:
    return int(digits) if len(digits) <= _MAX_DIGITS else math.inf


_ONE_EACH = "paddlewheel.one_replacement_each"
_replaced = _Replaced()
codecs.register_error(_ONE_EACH, _replace_each)
_json = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_bounded_int)
