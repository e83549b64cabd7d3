"""Input tensors of KServe requests, which the worker decodes instead of the front, and output tensors."""

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
from pipeline.dialects.kserve.json_fields import replace_surrogates
from pipeline.dialects.kserve.refusals import KServeRefusal, request_refusal
from pipeline.errors import InvalidInput, TooLarge, UnprintableAnswer
from pipeline.messages.frames import Unread
from pipeline.models.tensor_spec import BY_DATATYPE, BY_NAME, TensorSpec
from pipeline.wire.paddle_tensors import to_message
from pipeline.wire.v2_tensors import BYTES, CONTENTS, LENGTH, Array, from_contents, objects, read_contents

_UNREADABLE = object()  # stands for invalid JSON: no datatype accepts it
_decoder = msgspec.json.Decoder(list)
_WIDE = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64)}
_EXPECTED = {"i": "signed-integer", "u": "unsigned-integer", "f": "number", "b": "boolean"}
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "f": {int, float}}
_INTEGERS = {"i": range(-(1 << 63), 1 << 63), "u": range(1 << 64)}


class Written(IntEnum):
    """Encoding of the elements of an input tensor that the front process has not decoded."""

    RAW = 0  # only for BYTES: each element follows its length
    JSON = 1  # a JSON array, flat or nested
    CONTENTS = 2  # a serialized InferTensorContents


class UnreadTensor(Unread, eq=False):
    """An input tensor of a KServe request, which the worker process decodes instead of the front process.

    `data` has its elements, as the client encoded them.
    """

    kind = "kserve.tensor"
    written: int  # encoding of `data`: see `Written`
    datatype: str
    shape: list[int]  # without negative lengths
    name: str  # name, model and request_id are for error messages
    model: str
    request_id: str
    as_texts: bool = False  # decode to a str, or a list of str
    nullable: bool = False  # elements may be null in JSON

    def describe(self) -> tuple[Any, ...]:
        """Return the fields that determine the decoded array, without those for error messages."""
        return self.written, self.datatype, self.shape, self.as_texts, self.nullable

    def decode(self) -> Any:
        """Return an array of `shape`, with `bytes` objects for BYTES.

        With `as_texts`, return a text, or a list if there are several texts. Raises KServeRefusal for
        elements that do not match the datatype or shape, and for texts that are not UTF-8.
        """
        if self.written == Written.CONTENTS:
            return self._decode_contents()
        if self.datatype == "BYTES":
            elements = self._raw_elements() if self.written == Written.RAW else self._json_texts()
            return self._as_texts(elements) if self.as_texts else objects(elements, self.shape)
        elements = self._json_elements()
        if self.nullable:
            return parse_nullable(elements, lambda present: _parse_numbers(present, self.datatype)).reshape(
                self.shape
            )
        return _parse_numbers(elements, self.datatype).reshape(self.shape)

    def _decode_contents(self) -> Any:
        about = f"for inference input {self.name!r} for model {self.model!r}"
        try:
            contents = read_contents(bytes(self.data))
            fields = [descriptor.name for descriptor, _ in contents.ListFields()]
            if fields != [CONTENTS.get(self.datatype)]:
                raise ValueError(f"it has {', '.join(fields) or 'no elements'}, not {self.datatype}")
            self._check_count(len(getattr(contents, fields[0])), about)
            elements = from_contents(contents, self.datatype, self.shape)
        except ValueError as exc:
            raise request_refusal(
                self.request_id, f"unexpected explicit tensor data {about}: {exc}"
            ) from None
        return self._as_texts(elements.ravel().tolist()) if self.as_texts else elements

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
        raise request_refusal(self.request_id, message)

    def _raw_elements(self) -> list[bytes]:
        expected = math.prod(self.shape)
        elements: list[bytes] = []
        data, at = bytes(self.data), 0
        about = f"for inference input {self.name!r} for model {self.model!r}"
        while at < len(data) and len(elements) <= expected:
            if (remaining := len(data) - at) < LENGTH.size:
                raise request_refusal(
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
            # Triton counts an incomplete last element.
            message = f"expected {expected} string elements {about}, got {len(elements)}"
        raise request_refusal(self.request_id, message)

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

    def _as_texts(self, elements: list[bytes]) -> Any:
        try:
            texts = [element.decode() for element in elements]
        except UnicodeDecodeError as exc:
            raise request_refusal(
                self.request_id,
                f"inference input {self.name!r} for model {self.model!r} holds bytes that are no UTF-8 "
                f"text: {exc.reason} at byte {exc.start}",
            ) from None
        return texts[0] if len(texts) == 1 else texts


def check_texts(inputs: Mapping[str, Any], limits: Limits) -> None:
    """Raise TooLarge (HTTP 413) if a text, or an element of a BYTES tensor, exceeds `limits.text_chars`.

    Only inputs whose data is longer than the limit are decoded. Raises InvalidInput like `decode`.
    """
    for name, value in inputs.items():
        if isinstance(value, Unread) and len(value.data) > limits.text_chars:
            longest = _find_longest(value.decode())
            if longest > limits.text_chars:
                raise TooLarge(
                    f"input {name!r} has a text of {longest} characters; limits.text_chars is "
                    f"{limits.text_chars}"
                )


def _find_longest(value: Any) -> int:
    """Return the length of the longest text in a decoded input, in characters or bytes; 0 without texts."""
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist() if value.dtype.kind == "O" else ()
    texts = value if isinstance(value, list | tuple) else [value]
    return max((len(text) for text in texts if isinstance(text, str | bytes)), default=0)


def _parse_numbers(elements: list[Any], datatype: str) -> Any:
    """Convert decoded JSON numbers to an array [n] of a KServe datatype, such as INT32.

    Integers that overflow keep their low bits, as in Triton. Raises KServeRefusal for elements of another
    type.
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
    except OverflowError:  # an integer that no float can hold
        raise KServeRefusal("Unable to parse 'data': a number is too large", "INTERNAL") from None


def parse_nullable(elements: list[Any], parse: Callable[[list[Any]], Any]) -> Any:
    """Convert decoded JSON numbers to an array [n], with NaN for null.

    parse: converts numbers without null. If there is a null, integers become FP64.
    """
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
            elements = json.loads(data)  # accepts NaN and Infinity
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
    """Convert an output of user code to a tensor. Return its KServe datatype, such as FP32, and its array.

    spec: the declared tensor; None for an undeclared output. Raises UnprintableAnswer (HTTP 500) for a value
    that is no tensor.
    """
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
    """Return the error (HTTP 500) for an output of user code that is no tensor."""
    kind = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
    return UnprintableAnswer(f"output {name!r} is {kind}, which is no tensor: numbers, bool, str or bytes")


def as_message(name: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Convert KServe inputs to Paddle Serving's protobuf message, for an app that unpacks messages itself.

    Texts become keys and values, other inputs become tensors. Returns the serialized message as the only
    input. Raises InvalidInput for an input that can't be decoded, or that the message can't represent.
    """
    message = Request(name=name, method="infer")
    for input_name, value in inputs.items():
        key = replace_surrogates(input_name)
        decoded = value.decode() if isinstance(value, Unread) else value
        if isinstance(decoded, str):
            message.key.append(key)
            message.value.append(replace_surrogates(decoded))
            continue
        array = np.asarray(decoded)
        try:
            tensor = to_message(key, array.astype("S") if array.dtype.kind == "O" else array)
        except ValueError as exc:  # an empty tensor with a length beyond an int32
            raise InvalidInput(f"input {key!r} can't be told as a tensor of the message: {exc}") from None
        message.tensors.append(tensor)
    return {MESSAGE: message.SerializeToString()}
