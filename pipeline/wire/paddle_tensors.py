"""Conversion between Paddle Serving's protobuf `Tensor` message and NumPy arrays, with limits."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from client.protos.pipeline_service_pb2 import Tensor
from pipeline.errors import BadPackage, TooLarge
from pipeline.models.tensor_spec import BY_PADDLE

Array = npt.NDArray[Any]

STRING, BYTES = 12, 13
_FIELDS = {  # dtype name -> field of the message
    "int64": "int64_data",
    "float32": "float_data",
    "int32": "int_data",
    "float64": "float64_data",
    "int16": "int_data",
    "float16": "float_data",
    "bfloat16": "uint32_data",
    "uint8": "uint32_data",
    "int8": "int_data",
    "bool": "bool_data",
}
# elem_type -> (the field that carries it, dtype)
NUMERIC: dict[int, tuple[str, np.dtype[Any]]] = {
    elem_type: (_FIELDS[dtype.name], dtype.numpy)
    for elem_type, dtype in BY_PADDLE.items()
    if dtype.name in _FIELDS
}
ELEM_TYPES = {dtype: elem_type for elem_type, (_, dtype) in NUMERIC.items()}
NPY_KINDS = "biufcSU"  # object and structured dtypes are not accepted from clients


class TensorLimits(Protocol):
    """Protocol class: limits for a tensor in a request, as in the `limits` section of config.yml."""

    @property
    def tensor_rank(self) -> int: ...
    @property
    def text_chars(self) -> int: ...


class TensorMessage(Protocol):
    """Protocol class: the fields shared by a protobuf Tensor and a tensor in JSON.

    Each kind of data has a further field, such as `int64_data`.
    """

    @property
    def name(self) -> str: ...
    @property
    def elem_type(self) -> int: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def lod(self) -> Sequence[int]: ...


def add_tensors(inputs: dict[str, Any], tensors: Iterable[TensorMessage], limits: TensorLimits) -> None:
    """Decode the tensors of a request, and add each value to `inputs` under its name.

    The lod (sequence offsets) of a tensor is added as int32 [2, n] under `name + ".lod"`. Raises BadPackage
    and TooLarge that name the tensor.
    """
    for tensor in tensors:
        if len(tensor.shape) > limits.tensor_rank:
            raise _too_many_dimensions(tensor.name, len(tensor.shape), limits)
        inputs[tensor.name] = read_tensor(tensor, limits)
        if tensor.lod:
            inputs[lod_name(tensor.name)] = read_lod(tensor)


def check_header(tensor: TensorMessage, limits: TensorLimits) -> None:
    """Check rank and element type of a tensor, without its data. Raises BadPackage and TooLarge."""
    if len(tensor.shape) > limits.tensor_rank:
        raise _too_many_dimensions(tensor.name, len(tensor.shape), limits)
    if tensor.elem_type not in NUMERIC:
        _check_elem_type(tensor.name, tensor.elem_type)


def _too_many_dimensions(name: str, rank: int, limits: TensorLimits) -> TooLarge:
    return TooLarge(f"tensor {name!r} has {rank} dimensions; limits.tensor_rank is {limits.tensor_rank}")


def _check_elem_type(name: str, elem_type: int) -> None:
    if elem_type in (STRING, BYTES):
        return
    if elem_type in (10, 11):
        raise BadPackage(
            f"rpc package error: Sorry, the type {elem_type} of tensor {name} is not supported. Complex "
            "numbers travel as elem_type 13 (npy)."
        )
    raise BadPackage(f"rpc package error: elem_type:{elem_type} error in tensor {name!r}; 0 to 13 exist")


def lod_name(name: str) -> str:
    """Return the name of the input that holds a tensor's lod (sequence offsets): `name + ".lod"`."""
    return name + ".lod"


def read_lod(tensor: TensorMessage) -> Array:
    """Return a tensor's lod (sequence offsets) as int32 [2, n].

    Raises BadPackage for an odd number of values.
    """
    lod = np.array(tensor.lod, dtype=np.int32)
    return _reshaped(lod, (2, -1), f"the lod of tensor {tensor.name!r}")


def to_message(name: str, array: Array) -> Tensor:
    """Convert an array to a protobuf Tensor.

    An array whose dtype has no `elem_type` number is sent as npy bytes.
    """
    message = Tensor(name=name, shape=array.shape)
    if array.dtype.kind == "U":
        message.elem_type = STRING
        message.str_data.extend(array.ravel().tolist())
        return message
    elem_type = ELEM_TYPES.get(array.dtype)
    if elem_type is not None:
        message.elem_type = elem_type
        getattr(message, NUMERIC[elem_type][0]).extend(array.ravel().tolist())
        return message
    message.elem_type, message.byte_data = BYTES, to_npy(array)
    return message


def to_npy(array: Array) -> bytes:
    """Return an array as the bytes of an npy file. Raises ValueError for an object array."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def from_npy(data: bytes, name: str, limits: TensorLimits) -> Array:
    """Decode the bytes of an npy file, as a read-only view of `data` where possible.

    The header is compared with the length of `data` before anything is allocated. Raises BadPackage and
    TooLarge. name: the tensor's name, for errors.
    """
    shape, fortran_order, dtype, offset = read_npy_header(data, name, limits)
    expected_bytes = math.prod(shape) * dtype.itemsize
    if any(size < 0 for size in shape) or expected_bytes != len(data) - offset:
        raise BadPackage(
            f"rpc package error: byte_data of tensor {name!r}: {len(data) - offset} bytes do not fill "
            f"{dtype} {list(shape)}"
        )
    flat = np.frombuffer(data, dtype, offset=offset) if expected_bytes else np.empty(0, dtype)
    array = _reshaped(flat, shape, f"byte_data of tensor {name!r}", order="F" if fortran_order else "C")
    return np.ascontiguousarray(array, dtype=dtype.newbyteorder("=")).reshape(array.shape)


def read_npy_header(
    data: bytes, name: str, limits: TensorLimits
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Parse the header of an npy file: shape, whether in Fortran order, dtype, and offset of the elements.

    Raises BadPackage and TooLarge. name: the tensor's name, for errors.
    """
    file = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran_order, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"npy version {version[0]}.{version[1]} is neither 1.0 nor 2.0")
    except Exception as exc:  # mostly ValueError; the parser of the header raises others too
        raise BadPackage(f"rpc package error: byte_data of tensor {name!r} is no npy file: {exc}") from None
    if dtype.kind not in NPY_KINDS:
        raise BadPackage(
            f"rpc package error: byte_data of tensor {name!r} has dtype {dtype}, which isn't accepted"
        )
    if len(shape) > limits.tensor_rank:
        raise _too_many_dimensions(name, len(shape), limits)
    return shape, fortran_order, dtype, file.tell()


def read_tensor(tensor: TensorMessage, limits: TensorLimits) -> str | Array:
    """Decode the value of a tensor: an array of its `shape`, or a str.

    STRING becomes one str of all `str_data` joined, as in Paddle Serving, or an array of str if `shape` has
    as many elements as there are texts. BYTES becomes the array in its npy content. Raises BadPackage that
    names the tensor, and TooLarge.
    """
    if tensor.elem_type in NUMERIC:
        field, dtype = NUMERIC[tensor.elem_type]
        return _reshaped(
            _numbers(tensor, field, dtype), tuple(tensor.shape), f"{field} of tensor {tensor.name!r}"
        )
    _check_elem_type(tensor.name, tensor.elem_type)
    if tensor.elem_type == STRING:
        return _texts(tensor, limits)
    return from_npy(getattr(tensor, "byte_data"), tensor.name, limits)  # noqa: B009


def _texts(tensor: TensorMessage, limits: TensorLimits) -> str | Array:
    """Return the texts of a STRING tensor: an array of str if they fit `shape`, else one joined str."""
    texts = getattr(tensor, "str_data")  # noqa: B009 - a field per kind of data
    joined = "".join(texts)
    is_array = len(texts) > 1 and math.prod(tensor.shape) == len(texts)
    # Every element of an array of str has room for the longest text, at 4 bytes a character.
    chars = len(texts) * max(map(len, texts)) if is_array else len(joined)
    if chars > limits.text_chars:
        raise TooLarge(
            f"str_data of tensor {tensor.name!r} has {chars} characters; limits.text_chars is "
            f"{limits.text_chars}"
        )
    return np.array(list(texts)).reshape(tuple(tensor.shape)) if is_array else joined


def _numbers(tensor: TensorMessage, field: str, dtype: np.dtype[Any]) -> Array:
    """Return the numbers of a tensor as a flat array.

    Raises BadPackage for integers out of the dtype's range.

    field: the message's field that holds the numbers.
    """
    data = getattr(tensor, field)
    if isinstance(data, np.ndarray):
        numbers = data
    else:
        numbers = np.fromiter(data, _FIELD_DTYPES[field], len(data))
    if numbers.dtype == dtype:
        return numbers
    if dtype.kind in "iu" and len(numbers):
        bounds, low, high = np.iinfo(dtype), numbers.min(), numbers.max()
        if low < bounds.min or high > bounds.max:
            raise BadPackage(
                f"rpc package error: {field} of tensor {tensor.name!r} reaches from {low} to {high}; "
                f"{dtype} holds {bounds.min} to {bounds.max}"
            )
    with np.errstate(over="ignore"):  # numbers too large for FP16 become inf, as in any cast
        return numbers.astype(dtype)


_FIELD_DTYPES = {
    "int64_data": np.int64,
    "float_data": np.float32,
    "int_data": np.int32,
    "float64_data": np.float64,
    "uint32_data": np.uint32,
    "bool_data": np.bool_,
}


def _reshaped(array: Array, shape: tuple[int, ...], subject: str, order: Any = "C") -> Array:
    """Return the array reshaped. Raises BadPackage if the numbers of elements differ.

    subject: name of the data, for the error.
    """
    try:
        return array.reshape(shape, order=order)
    except (ValueError, OverflowError, MemoryError):
        raise BadPackage(
            f"rpc package error: cannot reshape array of size {array.size} into shape {shape}: {subject}"
        ) from None
