"""Key/value requests in /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from pipeline.api.app import App
from pipeline.dialects.key_value.declared import get_text_example
from pipeline.front.http.openapi import Schema, content, operation, refusals

_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_REQUEST: Schema = {
    "type": "object",
    "properties": {
        "key": _TEXTS,
        "value": _TEXTS,
        "logid": {"type": "integer"},
        "clientip": {"type": "string"},
    },
    "required": ["key", "value"],
}
_ANSWER: Schema = {
    "type": "object",
    "properties": {
        "err_no": {"type": "integer", "description": "0: answered."},
        "err_msg": {"type": "string", "description": "What was wrong, and what to send."},
        "key": _TEXTS,
        "value": _TEXTS,
        "tensors": {"type": "array", "items": {}},
    },
}


def paths(app: App) -> dict[str, Any]:
    if app.repository is None:
        model = "" if app.default is None else app.default.name
        return {_path(app.name): {"post": _key_value(app, model, app.examples.key_values)}}
    examples = {model.name: get_text_example(model) for model in app.models}
    return {
        _path(name): {"post": _key_value(app, name, key_values)}
        for name, key_values in examples.items()
        if key_values
    }


def _path(name: str) -> str:
    return f"/{quote(name)}/prediction"


def _key_value(app: App, model: str, key_values: Mapping[str, str]) -> dict[str, Any]:
    example = {"key": list(key_values), "value": list(key_values.values())} if key_values else None
    body = content(_REQUEST, example, app.examples.bodies)
    summary, zh = "Predict: a text under each key", "推理：每个键一条文本"
    description = operation("key/value", summary, zh, body, _ANSWER, model=model)
    if app.config.dag.http_errors == "status":
        description["responses"] |= refusals(_ANSWER)
    return description
