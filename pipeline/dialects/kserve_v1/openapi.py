"""KServe v1 in /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pipeline.api.app import App
from pipeline.dialects.kserve.models import (
    ERROR,
    KServeModel,
    KServeModels,
    called,
    called_zh,
    example_row,
    get_description,
    get_parameter_schema,
)
from pipeline.front.http.openapi import Schema, content, get, operation, refusals
from pipeline.models.tensor_spec import Signature, TensorSpec

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
# JSON has no NaN and no infinity: an answer has null for them.
_ANSWERED: dict[str, Schema] = {
    **_ELEMENTS,
    **{datatype: {"type": ["number", "null"]} for datatype in ("FP16", "BF16", "FP32", "FP64")},
}


def paths(app: App, models: KServeModels) -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for model in models.all():
        below = f"/v1/models/{quote(model.name)}"
        paths[f"{below}:predict"] = {"post": _predict(app, model)}
        paths[below] = get("v1", "Whether the model is ready", "模型是否就绪", model=model.name)
    paths["/v1/models"] = get("v1", "Names of the models", "模型名称")
    return paths


def _predict(app: App, model: KServeModel) -> dict[str, Any]:
    row = example_row(app, model)
    bodies = {} if model.op else app.examples.bodies
    body = content(_request(app, model), _example(app, model, row), bodies)
    summary = f"Predict with {called(model)}: an object for each instance"
    zh = f"用{called_zh(model)}推理：每个实例一个对象"
    row_schema = {} if model.op else get_description(app).get("row")
    answer = _answer(model.signature, row_schema)
    description = operation("v1", summary, zh, body, answer, model=model.name)
    description["responses"] |= refusals(ERROR)
    return description


def _example(app: App, model: KServeModel, row: Any) -> Any:
    if not row:
        return None
    return {"instances": [row]} if model.op else app.examples.add_parameters({"instances": [row]})


def _request(app: App, model: KServeModel) -> Schema:
    signature = model.signature
    instances: Schema = {
        "type": "array",
        "minItems": 1,
        "items": _instance(signature.inputs, signature.has_rows),
    }
    if signature.max_batch_size or not signature.has_rows:
        instances["maxItems"] = signature.max_batch_size or 1
    return {
        "type": "object",
        "properties": {"instances": instances, "parameters": get_parameter_schema(app, model)},
        "required": ["instances"],
    }


def _answer(signature: Signature, row_schema: Schema | None) -> Schema:
    prediction = row_schema or _instance(signature.outputs, signature.has_rows, _ANSWERED)
    return {"type": "object", "properties": {"predictions": {"type": "array", "items": prediction}}}


def _instance(specs: Sequence[TensorSpec], rows: bool, elements: Mapping[str, Schema] = _ELEMENTS) -> Schema:
    if not specs:
        return {"type": "object"}
    return {
        "type": "object",
        "properties": {
            spec.name: _nested(spec, spec.shape[1:] if rows else spec.shape, elements) for spec in specs
        },
        "required": [spec.name for spec in specs],
        "additionalProperties": False,
    }


def _nested(spec: TensorSpec, shape: Sequence[int], elements: Mapping[str, Schema]) -> Schema:
    schema = elements.get(spec.datatype, {"type": "integer"})
    if spec.nullable:
        choices = schema.get("anyOf")
        null: Schema = {"type": "null"}
        schema = {"anyOf": [*choices, null]} if choices else {"type": [schema["type"], "null"]}
    for length in reversed(shape):
        schema = {"type": "array", "items": schema}
        if length != -1:
            schema |= {"minItems": length, "maxItems": length}
    return {**schema, "description": f"{spec.datatype} {list(shape)}" if shape else spec.datatype}
