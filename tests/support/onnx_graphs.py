"""Writes ONNX files without `onnx`, which the serving environment lacks.

The field numbers are those of onnx.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

OPSET = 17
_KINDS = {
    "float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7, "string": 8, "bool": 9, "float16": 10,
    "float64": 11, "uint64": 13,
}  # fmt: skip

Attribute = int | float | str | Sequence[int] | Sequence[float] | Sequence[str] | np.ndarray
Dims = Sequence[int | str]


class Graph:
    """Collects the nodes of a graph; each call of `add` returns the name of the node's first output."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._ports: list[bytes] = []
        self._count = 0

    def feed(self, name: str, dtype: str, *dims: int | str) -> str:
        self._ports.append(_field(11, _port(name, dtype, dims)))
        return name

    def tensor(self, value: Any, dtype: str = "float32") -> str:
        """Store an array, and return its name."""
        name = self._name()
        self._parts.append(_field(5, _tensor(np.asarray(value, dtype), name)))
        return name

    def ints(self, *values: int) -> str:
        return self.tensor(values, "int64")

    def add(self, operator: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> str:
        names = [self._name() for _ in range(outputs)]
        self._parts.append(_field(1, _node(operator, inputs, names, domain, attributes)))
        return names[0]

    def split(self, operator: str, *inputs: str, outputs: int, **attributes: Any) -> list[str]:
        """Add a node, and return the names of all its outputs."""
        names = [self._name() for _ in range(outputs)]
        self._parts.append(_field(1, _node(operator, inputs, names, "", attributes)))
        return names

    def fetch(self, value: str, name: str, dtype: str, *dims: int | str) -> None:
        self._parts.append(_field(1, _node("Identity", [value], [name], "", {})))
        self._ports.append(_field(12, _port(name, dtype, dims)))

    def model(self, domains: Mapping[str, int] | None = None) -> bytes:
        graph = b"".join(self._parts) + _field(2, b"graph") + b"".join(self._ports)
        opsets = {"": OPSET, **(domains or {})}
        sets = (_field(8, _field(1, name.encode()) + _number(2, of)) for name, of in opsets.items())
        return _number(1, 8) + _field(7, graph) + b"".join(sets)

    def _name(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _node(
    operator: str, inputs: Iterable[str], outputs: Iterable[str], domain: str, attributes: Mapping[str, Any]
) -> bytes:
    content = b"".join(_field(1, name.encode()) for name in inputs)
    content += b"".join(_field(2, name.encode()) for name in outputs) + _field(4, operator.encode())
    content += b"".join(_field(5, _attribute(name, value)) for name, value in attributes.items())
    return content + (_field(7, domain.encode()) if domain else b"")


def _attribute(name: str, value: Attribute) -> bytes:
    head = _field(1, name.encode())
    if isinstance(value, float):
        return head + _key(2, 5) + struct.pack("<f", value) + _number(20, 1)
    if isinstance(value, int):
        return head + _number(3, value) + _number(20, 2)
    if isinstance(value, str):
        return head + _field(4, value.encode()) + _number(20, 3)
    if isinstance(value, np.ndarray):
        return head + _field(5, _tensor(value, "")) + _number(20, 4)
    if isinstance(value[0], str):
        return head + b"".join(_field(9, str(item).encode()) for item in value) + _number(20, 8)
    if isinstance(value[0], float):
        return head + b"".join(_key(7, 5) + struct.pack("<f", item) for item in value) + _number(20, 6)
    return head + b"".join(_number(8, int(item)) for item in value) + _number(20, 7)


def _tensor(array: np.ndarray, name: str) -> bytes:
    dims = b"".join(_number(1, dim) for dim in array.shape)
    return dims + _number(2, _KINDS[str(array.dtype)]) + _field(8, name.encode()) + _field(9, array.tobytes())


def _port(name: str, dtype: str, dims: Dims) -> bytes:
    shape = b"".join(_field(1, _number(1, d) if isinstance(d, int) else _field(2, d.encode())) for d in dims)
    return _field(1, name.encode()) + _field(2, _field(1, _number(1, _KINDS[dtype]) + _field(2, shape)))


def _field(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _number(number: int, value: int) -> bytes:
    return _key(number, 0) + _varint(value & (1 << 64) - 1)


def _key(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)
