"""What KServe's models look like in /openapi.json, alike in both versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipeline.api.app import App
from pipeline.api.examples import row_of
from pipeline.dialects.kserve.models import KServeModel
from pipeline.front.http.openapi import Schema

PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "description": "Passed to the Ops as they are.",
}
ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


def example_row(app: App, model: KServeModel) -> Mapping[str, Any] | None:
    """An instance that the model takes, as far as one is known."""
    if model.signature.open:
        return app.examples.key_values
    return row_of(model.signature, {} if model.op else app.examples.row)


def called(model: KServeModel) -> str:
    return f"the model of Op {model.op}" if model.op else "the service"


def called_zh(model: KServeModel) -> str:
    return f" Op {model.op} 的模型" if model.op else "服务"
