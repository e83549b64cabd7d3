"""WORKER PROCESS: encodes the JSON responses of KServe v1."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from pipeline.api.request_options import Answer
from pipeline.dialects.kserve.unread import convert_output
from pipeline.errors import UnprintableAnswer
from pipeline.messages.frames import Part
from pipeline.models.tensor_spec import TensorSpec
from pipeline.wire.v2_tensors import BYTES

JSON = "kserve_v1.json"  # response form {"predictions": [...]}, or {"outputs": {...}}
AS_ANSWERED = -1  # number of instances in a raw body: as many as the response has rows
_json = msgspec.json.encode
_PLAIN = (str, bool, int, float)


class V1ResponseOptions(NamedTuple):
    """Options that the front process sends to the encoder of a response: number and form of instances."""

    rows: int  # number of instances, or AS_ANSWERED; 0 for a single instance without an axis of rows
    by_columns: bool  # the request has `inputs` and the response `outputs`, not `instances` and `predictions`


def render(
    output: Mapping[str, Any], response_options: Sequence[Any], version: str, declared: Sequence[TensorSpec]
) -> list[Part]:
    """Encode the outputs of an inference for KServe v1: `{"predictions": [...]}` or `{"outputs": {...}}`.

    NaN and infinity become null, and bytes that are not UTF-8 become base64. Raises UnprintableAnswer (HTTP
    500) for a value that is no tensor, and if the number of rows differs from the number of instances.
    """
    options = V1ResponseOptions(*response_options)
    if isinstance(output, Answer) and output.rows is not None and options.rows and not options.by_columns:
        return [b'{"predictions":%b}' % _json(output.rows)]
    specs = {spec.name: spec for spec in declared}
    values = {
        str(name): _to_lists(str(name), value, specs.get(name), options)
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


def _to_lists(name: str, value: Any, spec: TensorSpec | None, options: V1ResponseOptions) -> Any:
    """Return an output as nested lists for JSON. A scalar stays a scalar if the output is not declared.

    Raises UnprintableAnswer for a value that is no tensor, and for a wrong number of rows.
    """
    if not options.rows and spec is None and isinstance(value, _PLAIN):
        return value
    datatype, array = convert_output(name, value, spec)
    if options.rows > 0 and array.shape[:1] != (options.rows,):
        raise UnprintableAnswer(
            f"output {name!r} has the shape {list(array.shape)}, which is no row for each of the "
            f"{options.rows} instances; declare output_tensors that begin with -1 where they are rows"
        )
    if datatype == BYTES:
        return _decode_texts(name, array.tolist())
    return array.tolist()


def _decode_texts(name: str, nested: Any) -> Any:
    if isinstance(nested, list):
        return [_decode_texts(name, element) for element in nested]
    if isinstance(nested, bytes):
        try:
            return nested.decode()
        except UnicodeDecodeError:
            return {"b64": base64.b64encode(nested).decode()}
    if isinstance(nested, str):
        return nested
    raise UnprintableAnswer(f"output {name!r} holds a {type(nested).__name__}, no text and no bytes")
