"""UnreadTensor: a tensor as a client wrote it, which the worker reads so that the front need not."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from client.protos.pipeline_service_pb2 import Request
from pipeline.api.dag import MESSAGE
from pipeline.config.config_file import Limits
from pipeline.dialects.kserve.json_fields import sendable
from pipeline.dialects.kserve.refusals import KServeRefusal, of_request
from pipeline.errors import InvalidInput, TooLarge, UnprintableAnswer
from pipeline.messages.values import Unread
from pipeline.models.dtypes import BY_DATATYPE, BY_NAME
from pipeline.models.tensor_spec import TensorSpec
from pipeline.wire.paddle_tensors import to_message
from pipeline.wire.v2_tensors import BYTES, CONTENTS, LENGTH, Array, from_contents, objects, read_contents

_UNREADABLE = object()  # in place of elements that are no JSON: no datatype accepts it
_decoder = msgspec.json.Decoder(list)
_WIDE = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
_EXPECTED = {"i": "signed-integer", "u": "unsigned-integer", "f": "number", "b": "boolean"}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
_INTEGERS = {"i": range(-(1 << 63), 1 << 63), "u": range(1 << 64)}


class Written(IntEnum):
    """How the elements of an unread tensor are written."""

    RAW = 0  # BYTES alone: each element after its length
    JSON = 1  # a JSON array, flat or nested
    CONTENTS = 2  # a serialized InferTensorContents


class UnreadTensor(Unread, eq=False):
    """A tensor whose elements are `data`, as the client wrote them."""

    kind = "kserve.tensor"
    written: int  # how: see `Written`
    datatype: str
    shape: list[int]  # bounded, no length negative
    # For the refusal of elements that do not fit:
    name: str
    model: str
    request_id: str
    as_texts: bool = False  # hooks find a str, or a list of them
    nullable: bool = False  # elements may be null in JSON

    def decode(self) -> Any:
        """An array of `shape`, of BYTES one of `bytes` objects; or the texts.

        Raises KServeRefusal for elements that do not fit, and for texts that are no UTF-8.
        """
        if self.written == Written.CONTENTS:
            return self._contents()
        if self.datatype == "BYTES":
            elements = self._raw_elements() if self.written == Written.RAW else self._json_texts()
            return self._texts(elements) if self.as_texts else objects(elements, self.shape)
        elements = self._json_elements()
        if self.nullable:
            return parse_nullable(elements, lambda present: numbers(present, self.datatype)).reshape(
                self.shape
            )
        return numbers(elements, self.datatype).reshape(self.shape)

    def _contents(self) -> Any:
        about = f"for inference input {self.name!r} for model {self.model!r}"
        try:
            contents = read_contents(bytes(self.data))
            fields = [descriptor.name for descriptor, _ in contents.ListFields()]
            if fields != [CONTENTS.get(self.datatype)]:
                raise ValueError(f"it has {', '.join(fields) or 'no elements'}, not {self.datatype}")
            self._check_count(len(getattr(contents, fields[0])), about)
            elements = from_contents(contents, self.datatype, self.shape)
        except ValueError as exc:
            raise of_request(self.request_id, f"unexpected explicit tensor data {about}: {exc}") from None
        return self._texts(elements.ravel().tolist()) if self.as_texts else elements

    def _check_count(self, count: int, about: str) -> None:
        expected = math.prod(self.shape)
        if count == expected:
            return
        if self.datatype == "BYTES":
            message = f"expected {expected} string elements {about}, got {count}"
        else:
            size = BY_DATATYPE[self.datatype].numpy.itemsize
            message = (
                f"input byte size mismatch for input '{self.name}' for model '{self.model}'. "
                f"Expected {expected * size}, got {count * size}"
            )
        raise of_request(self.request_id, message)

    def _raw_elements(self) -> list[bytes]:
        expected = math.prod(self.shape)
        elements: list[bytes] = []
        data, at = bytes(self.data), 0
        about = f"for inference input {self.name!r} for model {self.model!r}"
        while at < len(data) and len(elements) <= expected:
            if (remaining := len(data) - at) < LENGTH.size:
                raise of_request(
                    self.request_id,
                    f"incomplete string length indicator {about}, expecting {LENGTH.size} bytes but only "
                    f"{remaining} bytes available. Please make sure the string length indicator is in one "
                    "buffer.",
                )
            (length,) = LENGTH.unpack_from(data, at)
            at += LENGTH.size + length
            elements.append(data[at - length : at])
        if len(elements) == expected and at == len(data):
            return elements
        if len(elements) == expected:
            raise KServeRefusal(
                f"incomplete string data for inference input {self.name!r}, expecting string of length "
                f"{length} but only {len(elements[-1])} bytes available"
            )
        if len(elements) > expected:
            message = f"unexpected number of string elements {len(elements)} {about}, expecting {expected}"
        else:
            # An element that ends beyond the data was begun; Triton counts it.
            message = f"expected {expected} string elements {about}, got {len(elements)}"
        raise of_request(self.request_id, message)

    def _json_texts(self) -> list[bytes]:
        elements = self._json_elements()
        if self.nullable:
            elements = ["" if element is None else element for element in elements]
        if any(type(element) is not str for element in elements):
            raise KServeRefusal(
                "Unable to parse JSON bytes array: attempt to access JSON non-string as string", "INTERNAL"
            )
        return [element.encode("utf-8", "surrogatepass") for element in elements]

    def _json_elements(self) -> list[Any]:
        nested = _json_list(bytes(self.data))
        elements = list(_flat(nested)) if any(type(e) is list for e in nested) else nested
        if len(elements) != math.prod(self.shape):
            raise KServeRefusal(
                "Unable to parse 'data': Shape does not match true shape of 'data' field", "INTERNAL"
            )
        return elements

    def _texts(self, elements: list[bytes]) -> Any:
        try:
            texts = [element.decode() for element in elements]
        except UnicodeDecodeError as exc:
            raise of_request(
                self.request_id,
                f"inference input {self.name!r} for model {self.model!r} holds bytes that are no UTF-8 "
                f"text: {exc.reason} at byte {exc.start}",
            ) from None
        return texts[0] if len(texts) == 1 else texts


def check_texts(inputs: Mapping[str, Any], limits: Limits) -> None:
    """Raise TooLarge for a text, or an element of BYTES, over `limits.text_chars`; InvalidInput as `decode`.

    What is unread stays so, but for an input that is too long for one text as a whole.
    """
    for name, value in inputs.items():
        if isinstance(value, Unread) and len(value.data) > limits.text_chars:
            longest = _longest(value.decode())
            if longest > limits.text_chars:
                raise TooLarge(
                    f"input {name!r} has a text of {longest} characters; limits.text_chars is "
                    f"{limits.text_chars}"
                )


def _longest(read: Any) -> int:
    if isinstance(read, np.ndarray):
        read = read.ravel().tolist() if read.dtype.kind == "O" else ()
    texts = read if isinstance(read, list | tuple) else [read]
    return max((len(text) for text in texts if isinstance(text, str | bytes)), default=0)


def numbers(elements: list[Any], datatype: str) -> Any:
    """The array [n] of JSON numbers; integers beyond the datatype keep their low bits, as in Triton.

    Raises KServeRefusal for elements of another type.
    """
    dtype = BY_DATATYPE[datatype].numpy
    kinds: set[type] = set(map(type, elements))
    fits = kinds <= _JSON_TYPES.get(dtype.kind, {int})
    if fits and dtype.kind in "iu" and elements:
        fits = min(elements) in _INTEGERS[dtype.kind] and max(elements) in _INTEGERS[dtype.kind]
    if not fits:
        expected = _EXPECTED[dtype.kind]
        raise KServeRefusal(
            f"Unable to parse 'data': attempt to access JSON non-{expected} as {expected}", "INTERNAL"
        )
    try:
        with np.errstate(over="ignore"):
            return np.array(elements, _WIDE.get(dtype.kind, np.dtype(np.float64))).astype(dtype)
    except OverflowError:  # an integer beyond every float
        raise KServeRefusal("Unable to parse 'data': a number is too large", "INTERNAL") from None


def parse_nullable(elements: list[Any], parse: Callable[[list[Any]], Any]) -> Any:
    """Parse JSON numbers to an array [n], with NaN for null. Integers beside a null become FP64."""
    if None not in elements:
        return parse(elements)
    array = parse([0 if element is None else element for element in elements])
    array = array if array.dtype.kind == "f" else array.astype(np.float64)
    array[[element is None for element in elements]] = np.nan
    return array


def _json_list(data: bytes) -> list[Any]:
    try:
        elements: list[Any] = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        try:
            elements = json.loads(data)  # takes NaN and Infinity, too
        except (ValueError, RecursionError):
            elements = [_UNREADABLE]
    if not isinstance(elements, list):
        raise KServeRefusal("Unable to parse 'data': attempt to access JSON non-array as array", "INTERNAL")
    return elements


def _flat(nested: list[Any]) -> Iterator[Any]:
    stack = [iter(nested)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                stack.append(iter(element))
                break
            yield element
        else:
            stack.pop()


def convert_output(name: str, value: Any, spec: TensorSpec | None) -> tuple[str, Array]:
    """Datatype and array of what an Op has under this name in its output. Raises UnprintableAnswer."""
    if isinstance(value, np.ndarray):
        array = value
    else:
        dtype = None if spec is None or spec.datatype in (BYTES, "BF16") else BY_DATATYPE[spec.datatype].numpy
        try:
            array = np.asarray(value, dtype)
        except (ValueError, TypeError, OverflowError) as exc:
            raise no_tensor(name, value) from exc
        if not array.ndim:
            array = array.reshape(1)
    if array.dtype.kind in "SUO":
        return BYTES, array
    if spec is not None and spec.datatype == "BF16" and array.dtype == np.uint16:
        return "BF16", array
    dtype_info = BY_NAME.get(array.dtype.name)
    if dtype_info is None:
        raise no_tensor(name, value)
    return dtype_info.datatype, array


def no_tensor(name: str, value: Any) -> UnprintableAnswer:
    """The refusal of an output that is no tensor."""
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return UnprintableAnswer(f"output {name!r} is {kind}, which is no tensor: numbers, bool, str or bytes")


def as_message(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """A text under its key, everything else as a tensor. Raises InvalidInput for what can't be read."""
    message = Request(name=name, method="infer")
    for written, value in inputs.items():
        key = sendable(written)
        read_value = value.decode() if isinstance(value, Unread) else value
        if isinstance(read_value, str):
            message.key.append(key)
            message.value.append(sendable(read_value))
            continue
        array = np.asarray(read_value)
        try:
            tensor = to_message(key, array.astype("S") if array.dtype.kind == "O" else array)
        except ValueError as exc:  # no elements in lengths beyond an int32
            raise InvalidInput(f"input {key!r} can't be told as a tensor of the message: {exc}") from None
        message.tensors.append(tensor)
    return {MESSAGE: message.SerializeToString()}
