"""Requests that a service answers, shown to people: what its Ops declare, completed from the tensors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from pipeline.api.op import Op, RequestOp
from pipeline.errors import ConfigError
from pipeline.models.dtypes import RAW_ALONE
from pipeline.models.tensor_spec import Signature, TensorSpec

KEY_VALUE_EXAMPLE = '{"key": ["0"], "value": ["..."]}'
LONGEST_EXAMPLE = 400  # characters of one in the message of a refusal: in a longer one nobody finds anything
_ANY_LENGTH = 3  # of an axis that may have any
_MOST_ELEMENTS = 4096  # an image's worth of ones helps nobody
_ONE: dict[str, Any] = {"BYTES": "text", "BOOL": True, "FP16": 1.0, "FP32": 1.0, "FP64": 1.0}


class Examples(NamedTuple):
    """row: of the declared tensors, as one instance of KServe v1. key_values: of the key/value doors."""

    row: dict[str, Any] = {}
    key_values: dict[str, str] = {}


def examples_of(ops: Mapping[str, Op], signature: Signature) -> Examples:
    """What the Ops that are given the request declare. Raises ConfigError with all flaws."""
    takers = [op for op in ops.values() if any(isinstance(given, RequestOp) for given in op.input_ops)]
    names = [spec.name for spec in signature.inputs]
    examples = Examples({}, {})
    flaws = []
    for op in takers:
        examples.row.update(op.example)
        examples.key_values.update(op.example_key_values)
        flaws += [
            f"Op {op.name}: example: {name!r} is no input; input_tensors has {', '.join(names) or 'none'}"
            for name in op.example
            if name not in names
        ]
        flaws += [
            f"Op {op.name}: example_key_values: {key!r}: {value!r} is no text under a text"
            for key, value in op.example_key_values.items()
            if not (isinstance(key, str) and isinstance(value, str))
        ]
    try:
        json.dumps(examples)
    except (TypeError, ValueError) as exc:
        flaws.append(f"example: {exc}; write it as JSON would: texts, numbers, lists")
    if flaws:
        raise ConfigError("\n".join(flaws))
    return examples


def message_of(key_values: Mapping[str, str], otherwise: str) -> str:
    """A key/value message in JSON with what the Ops declare; `otherwise` where that is nothing, or long."""
    message = {"key": list(key_values), "value": list(key_values.values())}
    text = json.dumps(message, ensure_ascii=False) if key_values else otherwise
    return text if len(text) <= LONGEST_EXAMPLE else otherwise


def row_of(signature: Signature, given: Mapping[str, Any]) -> dict[str, Any] | None:
    """One instance, what is not given made up; None where that would be too large, or has no form in JSON."""
    row = {}
    for spec in signature.inputs:
        shape = spec.shape[1:] if signature.has_rows else spec.shape
        made = given[spec.name] if spec.name in given else _made_up(spec, shape)
        if made is None:
            return None
        row[spec.name] = made
    return row


def v2_inputs(signature: Signature, row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """The inputs of a KServe v2 request with this row alone; None where JSON has no form for one."""
    if signature.open:  # a text under each key
        return [
            {"name": name, "datatype": "BYTES", "shape": [1], "data": [text]} for name, text in row.items()
        ]
    inputs: list[dict[str, Any]] = []
    for spec in signature.inputs:
        value = row[spec.name]
        if not isinstance(value, list) and spec.shape[1:] == (1,) and signature.has_rows:
            value = [value]
        data = list(_flat(value))
        if spec.datatype in RAW_ALONE or any(isinstance(element, dict) for element in data):
            return None
        shape = [1, *_shape(value)] if signature.has_rows else _shape(value)
        inputs.append({"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": data})
    return inputs


def _made_up(spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    lengths = [_ANY_LENGTH if length == -1 else length for length in shape]
    if math.prod(lengths) > _MOST_ELEMENTS or spec.datatype == "BF16":
        return None
    value = _ONE.get(spec.datatype, 1)
    for length in reversed(lengths):
        value = [value] * length
    return value


def _shape(value: Any) -> list[int]:
    return [len(value), *(_shape(value[0]) if value else ())] if isinstance(value, list) else []


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for element in value:
            yield from _flat(element)
    else:
        yield value
