"""What an OpenVINO IR tells of itself: model.xml, read without OpenVINO."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable

MAX_BYTES = 256 << 20  # of the graph; weights are in the .bin beside it
_DTYPES = {  # of a port; what is not here is named as NumPy does but for the case
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16", "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64", "STRING": "string",
}  # fmt: skip
_ID_FORMS = {"Convert", "Unsqueeze", "Squeeze", "Reshape"}  # between ids and the lookup of their embeddings
_TABLE_FORMS = {"Convert", "Multiply", "Subtract"}  # between a stored table and the lookup


def inspect_ir(program: Path) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Feeds and fetches. Raises ConfigError for a file that is no IR of version 10 or later."""
    root = _parse(program)
    layers = {layer.get("id", ""): layer for layer in root.iterfind("layers/layer")}
    sources = {
        edge.get("to-layer", ""): (edge.get("from-layer", ""), edge.get("from-port", ""))
        for edge in root.iterfind("edges/edge")
    }
    feeds = [
        _variable(port, layer, program) for layer in _of_type(layers, "Parameter") for port in _ports(layer)
    ]
    fetches = []
    for number, layer in layers.items():
        if layer.get("type") == "Result" and number in sources:
            source, wanted = sources[number]
            port = next((port for port in _ports(layers[source]) if port.get("id") == wanted), None)
            if port is not None:
                fetches.append(_variable(port, layers[source], program))
    if not feeds or not fetches:
        raise ConfigError(f"{program} has no inputs or outputs that can be told: convert the model again")
    return tuple(feeds), tuple(fetches)


def inspect_id_limits(program: Path) -> dict[str, int]:
    """Return by feed the number of rows of the smallest table that it is looked up in. Raises ConfigError."""
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
    """Return the layer whose values a layer of these types only hands on in another form."""
    while layers[number].get("type") in forms and sources.get(number):
        number = sources[number][0]
    return number


def _parse(program: Path) -> ElementTree.Element:
    """Return the graph's XML. Raises ConfigError."""
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


def _variable(port: ElementTree.Element, layer: ElementTree.Element, program: Path) -> Variable:
    name = _name(port, layer)
    kind = port.get("precision", "")
    if kind not in _DTYPES:
        raise ConfigError(f"{name!r} of {program} is of type {kind}, which can't be served")
    told = (dim.text or "" for dim in port.iterfind("dim"))
    dims = tuple(int(dim) if dim.strip().isdecimal() else -1 for dim in told)
    return Variable(name, name, _DTYPES[kind], dims)
