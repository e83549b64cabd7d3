"""`/v1/embeddings` in /openapi.json, where the service gives embeddings."""

from __future__ import annotations

from typing import Any

from pipeline.dialects.openai.http_route import EMBEDDINGS_PATH
from pipeline.dialects.openai.response_options import BASE64, FLOAT
from pipeline.dialects.text_models import EMBEDDINGS, TextModels
from pipeline.front.http.openapi import OBJECT, Schema, content, operation, refusals

_TEXT: Schema = {"type": "string"}
_TOKENS: Schema = {"type": "array", "items": {"type": "integer"}}
_BODY: Schema = {
    "type": "object",
    "properties": {
        "model": _TEXT,
        "input": {
            "anyOf": [
                _TEXT,
                {"type": "array", "items": _TEXT},
                _TOKENS,
                {"type": "array", "items": _TOKENS},
            ]
        },
        "encoding_format": {"enum": [FLOAT, BASE64]},
        "dimensions": {"type": "integer", "minimum": 1},
    },
    "required": ["input"],
}
_ERROR: Schema = {"type": "object", "properties": {"error": OBJECT}, "required": ["error"]}


def paths(models: TextModels) -> dict[str, Any]:
    embedders = models.all(EMBEDDINGS)
    if not embedders:
        return {}
    name = embedders[0].served.name
    example = {"model": name, "input": ["text"]}
    embeddings = operation(
        "OpenAI", "Embeddings of texts", "文本的向量", content(_BODY, example), OBJECT, model=name
    )
    embeddings["responses"] |= refusals(_ERROR)
    return {EMBEDDINGS_PATH: {"post": embeddings}}
