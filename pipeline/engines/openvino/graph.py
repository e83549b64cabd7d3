"""Facts of a model as OpenVINO sees it: inputs, outputs, and the limits of ids."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.errors import ConfigError
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable

# OpenVINO's names of types to NumPy's.
_DTYPES = {
    "f16": "float16", "f32": "float32", "f64": "float64", "bf16": "bfloat16", "boolean": "bool",
    "i8": "int8", "i16": "int16", "i32": "int32", "i64": "int64",
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "u64": "uint64", "string": "string",
}  # fmt: skip

# Operators whose number of output rows depends on the data.
_FINDERS = {"NonZero", "NonMaxSuppression", "MulticlassNms", "MatrixNms", "Unique"}
# Between a feed of ids and the lookup of their embeddings.
_SHAPE_ONLY = {"Convert", "Reshape", "Squeeze", "Unsqueeze"}
_MAX_STEPS = 16


class GraphFacts(NamedTuple):
    """Inputs and outputs of a model's graph, and facts that determine whether requests can be batched."""

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    finder: str | None  # an operator whose number of output rows depends on the data
    id_limits: Mapping[str, int]  # by name of an id feed, the number of rows in its embedding table


def read_onnx_facts(model: ServingModel) -> GraphFacts:
    """Return the facts of an ONNX model, read from its file without the weights."""
    facts = inspect_onnx(model.program)
    return GraphFacts(facts.feeds, facts.fetches, facts.finder, facts.id_limits)


def read_graph_facts(graph: Any, model: ServingModel) -> GraphFacts:
    """Return the facts of an `openvino.Model`.

    Raises ConfigError for inputs or outputs of unsupported types.
    """
    operators = list(graph.get_ops())
    limits: dict[str, int] = {}
    for feed, rows in _lookups(operators):
        limits[feed] = min(rows, limits.get(feed, rows))
    return GraphFacts(
        feeds=tuple(_variable(port, model) for port in graph.inputs),
        fetches=tuple(_variable(port, model) for port in graph.outputs),
        finder=min(_FINDERS & {operator.get_type_name() for operator in operators}, default=None),
        id_limits=limits,
    )


def _variable(port: Any, model: ServingModel) -> Variable:
    kind = port.get_element_type().get_type_name()
    name = port.get_any_name()
    if kind not in _DTYPES:
        raise ConfigError(f"{name!r} of {model.program} is of type {kind}, which can't be served")
    shape = port.get_partial_shape()
    dims = (-1,) if shape.rank.is_dynamic else tuple(-1 if d.is_dynamic else d.get_length() for d in shape)
    return Variable(name, name, _DTYPES[kind], dims)


def _lookups(operators: Iterable[Any]) -> Iterable[tuple[str, int]]:
    """Yield each model input whose values are looked up in a table (Gather), with the table's row count."""
    for operator in operators:
        if operator.get_type_name() != "Gather":
            continue
        table = operator.input_value(0).get_partial_shape()
        feed = _feed_behind(operator.input_value(1))
        axis = operator.input_value(2).get_node()
        if not feed or table.rank.is_dynamic or axis.get_type_name() != "Constant":
            continue
        rows = table[int(axis.get_data().item())]
        if not rows.is_dynamic:
            yield feed, rows.get_length()


def _feed_behind(tensor: Any) -> str:
    """Return the model input from which a tensor is cast or reshaped; empty for a computed tensor."""
    for _ in range(_MAX_STEPS):
        node = tensor.get_node()
        if node.get_type_name() == "Parameter":
            return str(tensor.get_any_name())
        if node.get_type_name() not in _SHAPE_ONLY:
            break
        tensor = node.input_value(0)
    return ""


MAX_BYTES = 256 << 20  # of the graph; weights are in the .bin beside it
_IR_DTYPES = {  # types of a port in an IR file
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16", "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "STRING": "string",
}  # fmt: skip
_ID_FORMS = {"Convert", "Unsqueeze", "Squeeze", "Reshape"}  # between ids and the lookup of their embeddings
_TABLE_FORMS = {"Convert", "Multiply", "Subtract"}  # between a stored table and the lookup


def inspect_ir(program: Path) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Return the inputs and outputs of an OpenVINO IR file (.xml).

    Raises ConfigError for files before version 10.
    """
    root = _parse(program)
    layers = {layer.get("id", ""): layer for layer in root.iterfind("layers/layer")}
    sources = {
        edge.get("to-layer", ""): (edge.get("from-layer", ""), edge.get("from-port", ""))
        for edge in root.iterfind("edges/edge")
    }
    feeds = [
        _ir_variable(port, layer, program)
        for layer in _of_type(layers, "Parameter")
        for port in _ports(layer)
    ]
    fetches = []
    for number, layer in layers.items():
        if layer.get("type") == "Result" and number in sources:
            source, port_id = sources[number]
            port = next((port for port in _ports(layers[source]) if port.get("id") == port_id), None)
            if port is not None:
                fetches.append(_ir_variable(port, layers[source], program))
    if not feeds or not fetches:
        raise ConfigError(f"{program} has no inputs or outputs that can be told: convert the model again")
    return tuple(feeds), tuple(fetches)


def inspect_id_limits(program: Path) -> dict[str, int]:
    """Return the embedding table's number of rows for each input of ids of an OpenVINO IR file (.xml).

    If an input selects from several tables, the smallest counts. Raises ConfigError for a file that can't be
    read.
    """
    root = _parse(program)
    layers = {layer.get("id", ""): layer for layer in root.iterfind("layers/layer")}
    sources: dict[str, list[str]] = {}
    for edge in sorted(root.iterfind("edges/edge"), key=lambda edge: int(edge.get("to-port", "0"))):
        sources.setdefault(edge.get("to-layer", ""), []).append(edge.get("from-layer", ""))
    limits: dict[str, int] = {}
    for number, layer in layers.items():
        inputs = sources.get(number, [])
        if layer.get("type") != "Gather" or len(inputs) < 2:
            continue
        table = _follow(layers, sources, inputs[0], _TABLE_FORMS)
        ids = _follow(layers, sources, inputs[1], _ID_FORMS)
        if layers[table].get("type") != "Const" or layers[ids].get("type") != "Parameter":
            continue
        rows = _ports(layers[inputs[0]])[0].findtext("dim") or ""
        if rows.strip().isdecimal():
            name = _name(_ports(layers[ids])[0], layers[ids])
            limits[name] = min(int(rows), limits.get(name, int(rows)))
    return limits


def _follow(
    layers: dict[str, ElementTree.Element], sources: dict[str, list[str]], number: str, forms: set[str]
) -> str:
    """Return the source of layer `number`'s values, followed back through layers of the types `forms`.

    sources: for each layer, the layers of its inputs.
    """
    while layers[number].get("type") in forms and sources.get(number):
        number = sources[number][0]
    return number


def _parse(program: Path) -> ElementTree.Element:
    """Return the XML of an OpenVINO IR file. Raises ConfigError if it can't be read."""
    try:
        if program.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{program} is over {MAX_BYTES} bytes: no graph of OpenVINO's")
        return ElementTree.parse(program).getroot()
    except (OSError, ElementTree.ParseError) as exc:
        raise ConfigError(f"{program} can't be read as an OpenVINO model: {exc}") from exc


def _of_type(layers: dict[str, ElementTree.Element], kind: str) -> Iterator[ElementTree.Element]:
    return (layer for layer in layers.values() if layer.get("type") == kind)


def _ports(layer: ElementTree.Element) -> list[ElementTree.Element]:
    return layer.findall("output/port")


def _name(port: ElementTree.Element, layer: ElementTree.Element) -> str:
    names = port.get("names") or layer.get("name") or ""
    return min(names.split(","))  # what OpenVINO's get_any_name gives


def _ir_variable(port: ElementTree.Element, layer: ElementTree.Element, program: Path) -> Variable:
    name = _name(port, layer)
    kind = port.get("precision", "")
    if kind not in _IR_DTYPES:
        raise ConfigError(f"{name!r} of {program} is of type {kind}, which can't be served")
    texts = (dim.text or "" for dim in port.iterfind("dim"))
    dims = tuple(int(dim) if dim.strip().isdecimal() else -1 for dim in texts)
    return Variable(name, name, _IR_DTYPES[kind], dims)
