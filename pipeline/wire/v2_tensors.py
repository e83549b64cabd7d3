"""Conversion between NumPy arrays and the tensor contents of KServe v2 (Open Inference Protocol).

Contents are raw bytes, or typed fields of `InferTensorContents`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from client.protos.kserve_v2_pb2 import InferTensorContents
from pipeline.models.tensor_spec import BY_DATATYPE

Array = npt.NDArray[Any]

BYTES = "BYTES"
LENGTH = struct.Struct("<I")  # the length of an element, before each element of a raw BYTES tensor
# v2 datatype -> the field of InferTensorContents. Other datatypes have raw contents only.
CONTENTS = {
    "BOOL": "bool_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}
# type of a parameter's value -> the field of InferParameter
PARAMETERS = {bool: "bool_param", int: "int64_param", str: "string_param", float: "double_param"}
_WIDENED = {
    "int_contents": np.dtype(np.int32),
    "uint_contents": np.dtype(np.uint32),
}  # fields of several datatypes


def to_raw(array: Array) -> bytes:
    """Encode an array as raw contents: little endian and row-major.

    In an array of str, bytes or objects, each element is preceded by its length, and a `str` is encoded as
    UTF-8. Raises ValueError for an element that is neither `str` nor `bytes`.
    """
    if array.dtype.kind not in "OSU":
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
    parts = []
    for element in array.ravel().tolist():
        data = element.encode() if isinstance(element, str) else element
        if not isinstance(data, bytes):
            raise ValueError(f"holds a {type(element).__name__}; a BYTES tensor takes str and bytes")
        parts += [LENGTH.pack(len(data)), data]
    return b"".join(parts)


def from_raw(data: bytes, datatype: str, shape: Sequence[int]) -> Array:
    """Decode raw contents to an array. Raises ValueError for bytes that do not fill the shape."""
    dtype, count = _check_shape(datatype, shape)
    if datatype == BYTES:
        return objects(_elements(data, count), list(shape))
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{len(data)} bytes do not fill {datatype} {list(shape)}")
    return np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)


def read_contents(data: bytes) -> InferTensorContents:
    """Parse the bytes of an `InferTensorContents` message. Raises ValueError for other bytes."""
    try:
        return InferTensorContents.FromString(data)
    except DecodeError:
        raise ValueError("it can not be parsed") from None


def from_contents(contents: InferTensorContents, datatype: str, shape: Sequence[int]) -> Array:
    """Decode typed contents to an array. Raises ValueError for elements that do not fill the shape."""
    dtype, count = _check_shape(datatype, shape)
    field = CONTENTS.get(datatype)
    if field is None:
        raise ValueError(f"{datatype} has no typed contents; it travels raw")
    elements = getattr(contents, field)
    if len(elements) != count:
        raise ValueError(f"{len(elements)} elements in {field} do not fill {datatype} {list(shape)}")
    if datatype == BYTES:
        return objects(list(elements), list(shape))
    wide = np.fromiter(elements, _WIDENED.get(field, dtype), count)
    array = wide.astype(dtype)
    if not np.array_equal(array, wide, equal_nan=dtype.kind == "f"):
        raise ValueError(f"{field} reaches from {wide.min()} to {wide.max()}, beyond {datatype}")
    return array.reshape(shape)


def objects(elements: list[bytes], shape: list[int]) -> Array:
    """Return an object array with these `bytes` elements and this shape, the form of a BYTES tensor."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array.reshape(shape)


def _check_shape(datatype: str, shape: Sequence[int]) -> tuple[np.dtype[Any], int]:
    """Return the dtype and number of elements of a tensor.

    Raises ValueError for an unknown datatype or bad shape.
    """
    if datatype not in BY_DATATYPE:
        raise ValueError(f"datatype {datatype!r} is not one of {', '.join(BY_DATATYPE)}")
    if any(length < 0 for length in shape):
        raise ValueError(f"shape {list(shape)} has a negative length")
    return BY_DATATYPE[datatype].numpy, math.prod(shape)


def _elements(data: bytes, count: int) -> list[bytes]:
    """Return the `bytes` elements of a raw BYTES tensor.

    Raises ValueError unless it has exactly `count` elements.
    """
    elements: list[bytes] = []
    at = 0
    while at + LENGTH.size <= len(data) and len(elements) < count:
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        elements.append(data[at : at + length])
        at += length
    if at != len(data) or len(elements) != count:
        raise ValueError(f"{len(data)} bytes do not hold {count} elements of BYTES, each after its length")
    return elements
