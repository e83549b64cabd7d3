"""KServe's models in /openapi.json: the parts that both versions share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.api.app import App
from pipeline.api.examples import build_row
from pipeline.dialects.kserve.models import KServeModel
from pipeline.front.http.openapi import Schema

_VALUE: Schema = {"type": ["string", "number", "boolean", "array"], "items": {"type": "string"}}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": _VALUE,
    "description": "Passed to the Ops as they are.",
}
ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def example_row(app: App, model: KServeModel) -> Mapping[str, Any] | None:
    """An instance that the model takes, as far as one is known."""
    if model.signature.open:
        return app.examples.key_values
    return build_row(model.signature, {} if model.op else app.examples.row)


def get_description(app: App) -> Mapping[str, Any]:
    """Return the description of the model whose Op answers."""
    return {} if app.default is None else app.described.get(app.default.answering_op, {})


def get_parameter_schema(app: App, model: KServeModel) -> Schema:
    """Return the schema of a request's parameters, with their meanings."""
    meanings = {} if model.op else get_description(app).get("parameters", {})
    schemas = {name: {**_VALUE, "description": meaning} for name, meaning in meanings.items()}
    return {**_PARAMETERS, "properties": schemas} if schemas else _PARAMETERS


def called(model: KServeModel) -> str:
    return f"the model of Op {model.op}" if model.op else "the service"


def called_zh(model: KServeModel) -> str:
    return f" Op {model.op} 的模型" if model.op else "服务"
