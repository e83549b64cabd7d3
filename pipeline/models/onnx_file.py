"""Reads inputs, outputs and operators of an ONNX file, without any framework and without its weights.

The file is a protobuf (onnx.proto's ModelProto, whose field numbers stand below). It is walked in mapped
memory, so a model of gigabytes costs no more than its graph.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable
from pipeline.models.tensor_spec import BY_ONNX

_EXTERNAL = 1  # TensorProto.DataLocation
_MAX_DEPTH = 16  # of graphs within nodes within graphs

# Operators whose number of output rows depends on the data.
FINDERS = frozenset({"NonMaxSuppression", "NonZero", "Compress", "Unique"})
# Between an input of ids and the lookup of their embeddings, and between the stored table and the lookup.
_SHAPE_ONLY = {"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}
_TABLE_ONLY = {"Cast", "Identity", "DequantizeLinear"}

_Value = int | memoryview


@dataclass(frozen=True)
class OnnxFacts:
    """Inputs, outputs and operators of an ONNX file, under the graph's names. Dynamic axes are -1."""

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    finder: str | None  # an operator whose number of output rows depends on the data
    id_limits: Mapping[str, int]  # rows of the embedding in which a feed is looked up
    data_files: tuple[str, ...]  # files with weights, relative to the graph's file
    makers: Mapping[str, str] = field(default_factory=dict)  # the operator that makes each fetch
    # Sets of operators that the graph uses, "" for ONNX's own, without those that the file defines.
    domains: frozenset[str] = frozenset()
    optional_feeds: tuple[Variable, ...] = ()  # inputs whose values are stored, which a request may replace


def inspect_onnx(path: Path) -> OnnxFacts:
    """Read an ONNX file, without its weights. Raises ConfigError for other files and unsupported tensors."""
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graph = _Graph()
        graph.read_model(content)
    except (OSError, ValueError, TypeError, LookupError) as exc:
        raise ConfigError(f"{path} is not an ONNX model ({exc}): copy or export the model again") from exc
    stored = graph.tables.keys()
    return OnnxFacts(
        feeds=tuple(_variable(path, "input", i) for i in graph.inputs if i.name not in stored),
        fetches=tuple(_variable(path, "output", o) for o in graph.outputs),
        finder=min(FINDERS & graph.operators, default=None),
        id_limits=graph.id_limits(),
        data_files=tuple(sorted(graph.data_files)),
        makers=graph.makers(),
        domains=frozenset(graph.domains - graph.defined),
        optional_feeds=tuple(
            Variable(port.name, port.name, port.dtype, port.shape)
            for port in graph.inputs
            if port.name in stored and port.dtype and port.shape is not None
        ),
    )


def find_producer(program: Path, fetch: Variable) -> str:
    """Return the type of the operator that computes a model output; empty if unknown or not an ONNX file."""
    return inspect_onnx(program).makers.get(fetch.name, "") if program.suffix == ".onnx" else ""


@dataclass(frozen=True)
class _Port:
    """An input or output of the graph.

    `shape` is None if the file declares none. `dtype` is empty if the value is no tensor.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True)
class _Node:
    """An operator of the graph. `axis` is the operator's attribute `axis`, or 0."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    axis: int = 0


@dataclass
class _Graph:
    """Inputs, outputs and operators of an ONNX graph, collected in one pass over the file."""

    inputs: list[_Port] = field(default_factory=list)
    outputs: list[_Port] = field(default_factory=list)
    nodes: list[_Node] = field(default_factory=list)
    operators: set[str] = field(default_factory=set)
    tables: dict[str, int] = field(default_factory=dict)  # the first length of each stored tensor
    data_files: set[str] = field(default_factory=set)
    domains: set[str] = field(default_factory=set)
    defined: set[str] = field(default_factory=set)  # domains of the file's own functions

    def read_model(self, model: memoryview) -> None:
        has_graph = False
        for number, value in _fields(model):
            if number == 7:
                has_graph = True
                self._read_graph(_require_bytes(value), depth=0)
            elif number == 25:  # a function of the model's own
                for part, content in _fields(_require_bytes(value)):
                    if part == 7:
                        self._read_node(_require_bytes(content), depth=1)
                    elif part == 10:
                        self.defined.add(_decode_text(content))
        if not has_graph or not self.outputs:
            raise ValueError("it holds no graph with an output")

    def _read_graph(self, graph: memoryview, depth: int) -> None:
        """Collect the content of a graph message; of a nested graph, only operators and stored tensors."""
        if depth > _MAX_DEPTH:
            raise ValueError(f"its graphs are nested over {_MAX_DEPTH} deep")
        for number, value in _fields(graph):
            if number == 1:
                self._read_node(_require_bytes(value), depth)
            elif number == 5:
                self._read_tensor(_require_bytes(value))
            elif number in (11, 12) and depth == 0:
                (self.inputs if number == 11 else self.outputs).append(_port(_require_bytes(value)))

    def _read_node(self, node: memoryview, depth: int) -> None:
        inputs, outputs, operator, domain, axis = [], [], "", "", 0
        tensors = []
        for number, value in _fields(node):
            if number == 1:
                inputs.append(_decode_text(value))
            elif number == 2:
                outputs.append(_decode_text(value))
            elif number == 4:
                operator = _decode_text(value)
            elif number == 7:
                domain = _decode_text(value)
            elif number == 5:
                name = ""
                for part, attribute in _fields(_require_bytes(value)):
                    if part == 1:
                        name = _decode_text(attribute)
                    elif part == 3 and name == "axis" and isinstance(attribute, int):
                        axis = attribute
                    elif part == 5:
                        tensors.append(_require_bytes(attribute))
                    elif part in (6, 11):
                        self._read_graph(_require_bytes(attribute), depth + 1)
        self.operators.add(operator)
        self.domains.add(domain)
        if depth == 0:
            self.nodes.append(_Node(operator, tuple(inputs), tuple(outputs), axis))
        for tensor in tensors:
            self._read_tensor(tensor, name=outputs[0] if operator == "Constant" and depth == 0 else "")

    def _read_tensor(self, tensor: memoryview, name: str = "") -> None:
        dims: list[int] = []
        location, external = "", False
        for number, value in _fields(tensor):
            if number == 1:
                dims += [value] if isinstance(value, int) else _packed(value)
            elif number == 8:
                name = name or _decode_text(value)
            elif number == 13:
                entry = dict(_fields(_require_bytes(value)))
                if _decode_text(entry.get(1, memoryview(b""))) == "location":
                    location = _decode_text(entry[2])
            elif number == 14:
                external = value == _EXTERNAL
        self.tables[name] = dims[0] if dims else 0
        if external:
            self.data_files.add(location)

    def makers(self) -> dict[str, str]:
        """Return the type of the operator that computes each output, by output name.

        Final operators that only convert the output are skipped.
        """
        made_by = {output: node for node in self.nodes for output in node.outputs}
        names = {port.name: _origin(port.name, made_by, _TABLE_ONLY) for port in self.outputs}
        return {name: made_by[origin].operator for name, origin in names.items() if origin in made_by}

    def id_limits(self) -> dict[str, int]:
        """Return the number of rows in the smallest embedding table for each input of ids, by input name."""
        made_by = {output: node for node in self.nodes for output in node.outputs}
        limits: dict[str, int] = {}
        for node in self.nodes:
            if node.operator != "Gather" or len(node.inputs) < 2 or node.axis:
                continue
            table = _origin(node.inputs[0], made_by, _TABLE_ONLY)
            feed = _origin(node.inputs[1], made_by, _SHAPE_ONLY)
            if table in self.tables and any(port.name == feed for port in self.inputs):
                limits[feed] = min(self.tables[table], limits.get(feed, self.tables[table]))
        return {name: limit for name, limit in limits.items() if limit}


def _origin(name: str, made_by: Mapping[str, _Node], through: set[str]) -> str:
    """Return the tensor from which the tensor `name` is made by operators of the types `through` alone.

    made_by: the operator that computes each tensor.
    """
    for _ in range(_MAX_DEPTH):
        node = made_by.get(name)
        if node is None or node.operator not in through or not node.inputs:
            break
        name = node.inputs[0]
    return name


def _variable(path: Path, kind: str, port: _Port) -> Variable:
    if not port.dtype:
        raise ConfigError(
            f"{path}: {kind} {port.name!r} is no tensor of a type that can be served: export the model with "
            "plain tensors (of scikit-learn, without ZipMap)"
        )
    if port.shape is None and kind == "input":
        raise ConfigError(f"{path}: input {port.name!r} has no shape: export the model with the shapes told")
    shape = (-1,) if port.shape is None else port.shape
    return Variable(port.name, port.name, port.dtype, shape)


def _port(info: memoryview) -> _Port:
    """Return the input or output of a graph that a ValueInfoProto message describes."""
    name, dtype, shape = "", "", None
    for number, value in _fields(info):
        if number == 1:
            name = _decode_text(value)
        elif number == 2:
            tensor = dict(_fields(_require_bytes(value))).get(1)
            for part, of_tensor in _fields(_require_bytes(tensor)) if tensor is not None else ():
                if part == 1 and isinstance(of_tensor, int):
                    dtype = BY_ONNX[of_tensor].name if of_tensor in BY_ONNX else ""
                elif part == 2:
                    shape = tuple(
                        _dim(_require_bytes(dim)) for n, dim in _fields(_require_bytes(of_tensor)) if n == 1
                    )
    return _Port(name, dtype, shape)


def _dim(dim: memoryview) -> int:
    """Return the length of a dimension; -1 for a named, unknown or implausible length."""
    value = dict(_fields(dim)).get(1, 0)
    return value if isinstance(value, int) and 0 < value <= 1 << 40 else -1


def _fields(message: memoryview) -> Iterator[tuple[int, _Value]]:
    """Yield the field numbers and values in a protobuf message: ints, or the bytes of longer fields."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        if kind == 2:
            size, at = _varint(message, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError("it is no protobuf of this kind")
        if number == 0 or size > len(message) - at:
            raise ValueError("it ends within a field")
        yield number, message[at : at + size]
        at += size


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def _packed(data: memoryview) -> list[int]:
    numbers, at = [], 0
    while at < len(data):
        number, at = _varint(data, at)
        numbers.append(number)
    return numbers


def _require_bytes(value: _Value) -> memoryview:
    if isinstance(value, int):
        raise ValueError("a field is of another kind than ONNX has it")
    return value


def _decode_text(value: _Value) -> str:
    return bytes(_require_bytes(value)).decode("utf-8")
