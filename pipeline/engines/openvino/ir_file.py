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


def inspect_ir(program: Path) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Feeds and fetches. Raises ConfigError for a file that is no IR of version 10 or later."""
    try:
        if program.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{program} is over {MAX_BYTES} bytes: no graph of OpenVINO's")
        root = ElementTree.parse(program).getroot()
    except (OSError, ElementTree.ParseError) as exc:
        raise ConfigError(f"{program} can't be read as an OpenVINO model: {exc}") from exc
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


def _of_type(layers: dict[str, ElementTree.Element], kind: str) -> Iterator[ElementTree.Element]:
    return (layer for layer in layers.values() if layer.get("type") == kind)


def _ports(layer: ElementTree.Element) -> list[ElementTree.Element]:
    return layer.findall("output/port")


def _variable(port: ElementTree.Element, layer: ElementTree.Element, program: Path) -> Variable:
    names = port.get("names") or layer.get("name") or ""
    name = min(names.split(","))  # what OpenVINO's get_any_name gives
    kind = port.get("precision", "")
    if kind not in _DTYPES:
        raise ConfigError(f"{name!r} of {program} is of type {kind}, which can't be served")
    told = (dim.text or "" for dim in port.iterfind("dim"))
    dims = tuple(int(dim) if dim.strip().isdecimal() else -1 for dim in told)
    return Variable(name, name, _DTYPES[kind], dims)
