"""The JSON schemas of what each door takes and answers, from the tensors of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pipeline.models.tensor_spec import Signature, TensorSpec

Schema = dict[str, Any]

_ANY: Schema = {}
_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_BASE64: Schema = {
    "type": "object",
    "properties": {"b64": {"type": "string", "contentEncoding": "base64"}},
    "required": ["b64"],
}
_ELEMENTS: dict[str, Schema] = {
    "BYTES": {"anyOf": [{"type": "string"}, _BASE64]},
    "BOOL": {"type": "boolean"},
    "FP16": {"type": "number"},
    "BF16": {"type": "number"},
    "FP32": {"type": "number"},
    "FP64": {"type": "number"},
}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "description": "Passed to the Ops as they are.",
}

KEY_VALUE: Schema = {
    "type": "object",
    "properties": {
        "key": _TEXTS,
        "value": _TEXTS,
        "logid": {"type": "integer"},
        "clientip": {"type": "string"},
    },
    "required": ["key", "value"],
}
KEY_VALUE_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "err_no": {"type": "integer", "description": "0: answered."},
        "err_msg": {"type": "string", "description": "What was wrong, and what to send."},
        "key": _TEXTS,
        "value": _TEXTS,
        "tensors": {"type": "array", "items": _ANY},
    },
}
ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def v1_request(signature: Signature) -> Schema:
    instances: Schema = {
        "type": "array",
        "minItems": 1,
        "items": _instance(signature.inputs, signature.has_rows),
    }
    if signature.max_batch_size or not signature.has_rows:
        instances["maxItems"] = signature.max_batch_size or 1
    return {
        "type": "object",
        "properties": {"instances": instances, "parameters": _PARAMETERS},
        "required": ["instances"],
    }


def v1_answer(signature: Signature) -> Schema:
    prediction = _instance(signature.outputs, signature.has_rows)
    return {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}


def v2_request(signature: Signature) -> Schema:
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "parameters": _PARAMETERS,
            "inputs": {"type": "array", "items": _tensor(signature.inputs)},
            "outputs": {
                "type": "array",
                "items": {"type": "object", "properties": {"name": _name(signature.outputs)}},
            },
        },
        "required": ["inputs"],
    }


def v2_answer(signature: Signature) -> Schema:
    return {
        "type": "object",
        "properties": {
            "id": {"type": "string"},
            "model_name": {"type": "string"},
            "model_version": {"type": "string"},
            "outputs": {"type": "array", "items": _tensor(signature.outputs)},
        },
    }


def _instance(specs: Sequence[TensorSpec], rows: bool) -> Schema:
    if not specs:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {spec.name: _nested(spec, spec.shape[1:] if rows else spec.shape) for spec in specs},
        "required": [spec.name for spec in specs],
        "additionalProperties": False,
    }


def _nested(spec: TensorSpec, shape: Sequence[int]) -> Schema:
    schema = _ELEMENTS.get(spec.datatype, {"type": "integer"})
    for length in reversed(shape):
        schema = {"type": "array", "items": schema}
        if length != -1:
            schema |= {"minItems": length, "maxItems": length}
    return {**schema, "description": f"{spec.datatype} {list(shape)}" if shape else spec.datatype}


def _tensor(specs: Sequence[TensorSpec]) -> Schema:
    one: Schema = {
        "type": "object",
        "properties": {
            "name": _name(specs),
            "datatype": {"type": "string"},
            "shape": {"type": "array", "items": {"type": "integer"}},
            "data": {"type": "array", "items": _ANY},
        },
        "required": ["name", "datatype", "shape"],
    }
    if specs:
        one["description"] = "; ".join(f"{spec.name}: {spec.datatype} {list(spec.shape)}" for spec in specs)
    return one


def _name(specs: Sequence[TensorSpec]) -> Schema:
    return {"type": "string", **({"enum": [spec.name for spec in specs]} if specs else {})}
