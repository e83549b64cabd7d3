"""Key/value requests in /openapi.json."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from pipeline.api.app import App
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
    return {f"/{quote(app.name)}/prediction": {"post": _key_value(app)}}


def _key_value(app: App) -> dict[str, Any]:
    given = app.examples.key_values
    example = {"key": list(given), "value": list(given.values())} if given else None
    body = content(_REQUEST, example, app.examples.bodies)
    summary, zh = "Predict: a text under each key", "推理：每个键一条文本"
    model = "" if app.default is None else app.default.name
    told = operation("key/value", summary, zh, body, _ANSWER, model=model)
    if app.config.dag.http_errors == "status":
        told["responses"] |= refusals(_ANSWER)
    return told
