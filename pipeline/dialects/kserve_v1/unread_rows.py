"""An input of a KServe v1 request, with its values of all instances, which the worker decodes."""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import msgspec
import numpy as np

from pipeline.dialects.kserve.unread import parse_nullable
from pipeline.errors import InvalidInput
from pipeline.messages.frames import Unread
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.wire.v2_tensors import objects

_decoder = msgspec.json.Decoder(list)
_JSON_TYPES: dict[str, set[type]] = {"b": {bool}, "f": {int, float}, "i": {int}, "u": {int}}
_KINDS = {str: "text", bool: "true or false", dict: "an object", list: "a list", type(None): "null"}


class UnreadRows(Unread, eq=False):
    """An input of a KServe v1 request, which the worker process decodes instead of the front process.

    `data` is a JSON array with an element for each instance.
    """

    kind = "kserve_v1.rows"
    datatype: str  # datatype of KServe v2; empty: inferred from the JSON types
    shape: list[int]  # the rows first, -1 for any length
    name: str
    without_rows: bool = False  # the only instance is the whole tensor
    nullable: bool = False  # elements may be null

    def decode(self) -> Any:
        """Return an array of `shape`, with `bytes` objects for BYTES. Without a datatype, texts stay texts.

        Raises InvalidInput (HTTP 400) with the instance and field.
        """
        try:
            rows = _decoder.decode(self.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidInput(f"field {self.name!r} can't be read: {exc}") from None
        if not self.datatype:
            return self._infer_array(rows[0])
        if self.shape[1:] == [1]:  # a row of one element may come without brackets
            rows = [row if type(row) is list else [row] for row in rows]
        elements, shape = self._flatten(rows)
        if self.nullable and self.datatype == "BYTES":
            elements = ["" if element is None else element for element in elements]
        parse = partial(self._to_array, rows=len(rows))
        array = (parse_nullable(elements, parse) if self.nullable else parse(elements)).reshape(shape)
        return array.reshape(shape[1:]) if self.without_rows else array

    def _flatten(self, rows: list[Any]) -> tuple[list[Any], list[int]]:
        level, shape = rows, [len(rows)]
        for expected in self.shape[1:]:
            lengths = set(map(len, level)) if set(map(type, level)) <= {list} else {-1}
            length = lengths.pop() if lengths else 0
            if lengths or length < 0 or expected not in (-1, length):
                raise self._misshapen(rows)
            shape.append(length)
            level = list(chain.from_iterable(level))
        if any(type(element) is list for element in level):
            raise self._misshapen(rows)
        return level, shape

    def _to_array(self, elements: list[Any], rows: int) -> Any:
        """Convert decoded elements, in row-major order, to an array [n] of the datatype.

        rows: number of instances, for error messages. Raises InvalidInput for an element of a wrong type, and
        for a number out of range.
        """
        if self.datatype == "BYTES":
            return objects([self._bytes(e, at, len(elements), rows) for at, e in enumerate(elements)], [-1])
        dtype = BY_DATATYPE[self.datatype].numpy
        types = _JSON_TYPES[dtype.kind]
        wrong = -1
        if not set(map(type, elements)) <= types:
            wrong = next(at for at, element in enumerate(elements) if type(element) not in types)
        elif dtype.kind == "f":
            with np.errstate(over="ignore"):
                array = _floats(elements).astype(dtype)
            if not np.isfinite(array).all():
                wrong = int(np.argmin(np.isfinite(array)))
        elif dtype.kind in "iu" and elements:
            bounds = np.iinfo(dtype)
            extremes = (e for e in (min(elements), max(elements)) if not bounds.min <= e <= bounds.max)
            wrong = next((elements.index(e) for e in extremes), -1)
        if wrong >= 0:
            raise self._mistyped(elements[wrong], wrong, len(elements), rows)
        return array if dtype.kind == "f" else np.array(elements, dtype)

    def _bytes(self, element: Any, at: int, count: int, rows: int) -> bytes:
        if type(element) is str:
            return element.encode()
        if type(element) is dict and element.keys() == {"b64"} and type(element["b64"]) is str:
            try:
                return base64.b64decode(element["b64"], validate=True)
            except (binascii.Error, ValueError):
                raise InvalidInput(
                    f"{self._describe_position(at, count, rows)}: 'b64' is no base64"
                ) from None
        raise self._mistyped(element, at, count, rows)

    def _infer_array(self, value: Any) -> Any:
        if type(value) in (str, bool, int, float):
            return value if type(value) is str else np.asarray(value)
        texts = type(value) is list and set(map(type, value)) == {str}
        if texts:
            return value
        try:
            array = np.array(value) if type(value) is list else None
        except (ValueError, OverflowError):
            array = None
        if array is None or array.dtype.kind not in "biuf":
            raise InvalidInput(
                f"instance 0, field {self.name!r} is {_KINDS.get(type(value))} that is no tensor; the service"
                " declares no input_tensors: send text, a number, a list of texts, or numbers in lists of"
                " equal length"
            )
        return array

    def _misshapen(self, rows: list[Any]) -> InvalidInput:
        expected = self.shape[1:]
        first = None
        for at, row in enumerate(rows):
            shape = _shape(row)
            where = (
                self._describe_position(at, 1, 1)
                if self.without_rows
                else self._describe_position(at, len(rows), len(rows))
            )
            if shape is None:
                return InvalidInput(f"{where} has lists of unequal length, or lists beside other values")
            if len(shape) != len(expected) or any(
                declared not in (-1, length) for declared, length in zip(expected, shape, strict=True)
            ):
                problem = f"is {_KINDS.get(type(row), 'a number')}" if not shape else f"has the shape {shape}"
                return InvalidInput(f"{where} {problem}; it takes {self._describe_type()}")
            if shape != (first := first or shape):
                return InvalidInput(
                    f"{where} has the shape {shape}, instance 0 has {first}: the instances of one request "
                    "have equal shapes"
                )
        return InvalidInput(f"field {self.name!r} does not have the shape {expected}")

    def _mistyped(self, element: Any, at: int, count: int, rows: int) -> InvalidInput:
        kind = _KINDS.get(type(element))
        if kind is None:
            kind = f"the number {str(element)[:30]}"
        return InvalidInput(
            f"{self._describe_position(at, count, rows)} holds {kind}; it takes {self._describe_type()}"
        )

    def _describe_position(self, at: int, count: int, rows: int) -> str:
        """Return the instance and the field of element number `at` of `count`, as text for error messages.

        rows: number of instances.
        """
        return f"instance {at * rows // count}, field {self.name!r}"

    def _describe_type(self) -> str:
        elements = 'text, or {"b64": "..."}' if self.datatype == "BYTES" else self.datatype
        shape = self.shape[1:]
        return f"{elements} in lists of the shape {shape} (-1: any length)" if shape else elements


def _floats(elements: list[Any]) -> Any:
    try:
        return np.array(elements, np.float64)
    except OverflowError:  # an integer that no float can hold
        return np.array([element if abs(element) <= sys.float_info.max else np.inf for element in elements])


def _shape(value: Any) -> list[int] | None:
    """Return the shape of nested lists; None if lists of one level have unequal lengths."""
    shape: list[int] = []
    level: Sequence[Any] = [value]
    while level and all(type(element) is list for element in level):
        lengths = set(map(len, level))
        if len(lengths) > 1:
            return None
        shape.append(lengths.pop())
        level = list(chain.from_iterable(level))
    return None if any(type(element) is list for element in level) else shape
