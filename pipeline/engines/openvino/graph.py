"""What a graph tells of itself: its feeds and fetches, and which numbers the feeds may hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

# Operators that give as many rows as they find.
_FINDERS = {"NonZero", "NonMaxSuppression", "MulticlassNms", "MatrixNms", "Unique"}
# Between a feed of ids and the lookup of their embeddings.
_SHAPE_ONLY = {"Convert", "Reshape", "Squeeze", "Unsqueeze"}
_MAX_STEPS = 16


class GraphFacts(NamedTuple):
    """feeds, fetches: as the graph has them. finder: an operator that gives as many rows as it finds, if any.

    id_limits: by name of a feed that is looked up in an embedding, the number of its rows.
    """

    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    finder: str | None
    id_limits: Mapping[str, int]


def facts_of_onnx(model: ServingModel) -> GraphFacts:
    """Of an ONNX file, which is walked without its weights."""
    facts = inspect_onnx(model.program)
    return GraphFacts(facts.feeds, facts.fetches, facts.finder, facts.id_limits)


def read_graph_facts(graph: Any, model: ServingModel) -> GraphFacts:
    """Of an `openvino.Model`. Raises ConfigError for tensors of types that can't be fed or fetched."""
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
    """The feeds by which a Gather looks up rows of a table, and how many that has."""
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
    """The feed that a tensor is only another form of; empty where it is computed."""
    for _ in range(_MAX_STEPS):
        node = tensor.get_node()
        if node.get_type_name() == "Parameter":
            return str(tensor.get_any_name())
        if node.get_type_name() not in _SHAPE_ONLY:
            break
        tensor = node.input_value(0)
    return ""
