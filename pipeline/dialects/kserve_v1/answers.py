"""The answer of a KServe v1 request, made in the worker: an Op's output as JSON, an object per instance."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from pipeline.api.request_options import Answer
from pipeline.dialects.kserve.unread import convert_output
from pipeline.dialects.kserve_v1.response_options import V1ResponseOptions
from pipeline.errors import UnprintableAnswer
from pipeline.messages.values import Part
from pipeline.models.tensor_spec import TensorSpec
from pipeline.wire.v2_tensors import BYTES

_json = msgspec.json.encode
_PLAIN = (str, bool, int, float)


def render(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """The complete answer. Numbers that JSON has no form for are null, bytes that are no text base64.

    Raises UnprintableAnswer for a value that is no tensor, or has not as many rows as there are instances.
    """
    options = V1ResponseOptions(*response_options)
    if isinstance(output, Answer) and output.rows is not None and options.rows and not options.by_columns:
        return [b'{"predictions":%b}' % _json(output.rows)]
    specs = {spec.name: spec for spec in declared}
    values = {
        str(name): _value(str(name), value, specs.get(name), options)
        for name, value in output.items()
        if not specs or name in specs
    }
    if options.by_columns:
        return [b'{"outputs":%b}' % _json(values)]
    if not options.rows:
        return [b'{"predictions":%b}' % _json([values])]
    names = list(values)
    rows = zip(*values.values(), strict=True) if names else [()] * max(0, options.rows)
    return [b'{"predictions":%b}' % _json([dict(zip(names, row, strict=True)) for row in rows])]


def _value(name: str, value: Any, spec: TensorSpec | None, options: V1ResponseOptions) -> Any:
    """Nested lists, of rows where there are rows; a text or number by itself may stay so."""
    if not options.rows and spec is None and isinstance(value, _PLAIN):
        return value
    datatype, array = convert_output(name, value, spec)
    if options.rows > 0 and array.shape[:1] != (options.rows,):
        raise UnprintableAnswer(
            f"output {name!r} has the shape {list(array.shape)}, which is no row for each of the "
            f"{options.rows} instances; declare output_tensors that begin with -1 where they are rows"
        )
    if datatype == BYTES:
        return _texts(name, array.tolist())
    return array.tolist()


def _texts(name: str, nested: Any) -> Any:
    if isinstance(nested, list):
        return [_texts(name, element) for element in nested]
    if isinstance(nested, bytes):
        try:
            return nested.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(nested).decode()}
    if isinstance(nested, str):
        return nested
    raise UnprintableAnswer(f"output {name!r} holds a {type(nested).__name__}, no text and no bytes")
