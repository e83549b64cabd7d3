"""FRONT PROCESS: HTTP handler of OpenAI's `POST /v1/embeddings`, with its part of /openapi.json."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.config.config_file import Limits
from pipeline.dialects.openai.answers import BASE64, EMBEDDINGS, FLOAT, EmbeddingOptions
from pipeline.dialects.text_models import EMBEDDINGS as KIND
from pipeline.dialects.text_models import TextHttp, TextModels, decode_body
from pipeline.errors import InvalidInput, ServingError
from pipeline.front.dag_run import Request
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import check_method
from pipeline.front.http.openapi import OBJECT, Schema, content, operation, refusals
from pipeline.models.sentence_files import MAX_DIMENSIONS

EMBEDDINGS_PATH = "/v1/embeddings"
_ABSENT = msgspec.Raw()
# OpenAI responds 400 to requests that are too large. Its client does not handle 413.
_STATUSES = {413: 400}
_TYPES = {401: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_exceeded"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
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


class EmbeddingsBody(msgspec.Struct):
    """The JSON body of an embeddings request.

    Other members, such as `user`, are ignored; null counts as absent.
    """

    input: msgspec.Raw = _ABSENT
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    prompt_name: str | None = None  # not in OpenAI's API; a prompt of the model, as in TEI


def parse(body: bytes, limits: Limits) -> EmbeddingsBody:
    """Parse the JSON body of an embeddings request. The worker decodes the texts in its `input`.

    Raises InvalidInput with the name of the member, MalformedBody and TooLarge. In this API, all become HTTP
    400.
    """
    document: EmbeddingsBody = decode_body(body, EmbeddingsBody, limits)
    if not bytes(document.input):
        raise _invalid_param("input", "is missing: send a text, or a list of texts")
    document.encoding_format = document.encoding_format or FLOAT
    if document.encoding_format not in (FLOAT, BASE64):
        raise _invalid_param(
            "encoding_format", f"is {document.encoding_format[:40]!r}; it is {FLOAT} or {BASE64}"
        )
    if document.dimensions is not None and not 1 <= document.dimensions <= MAX_DIMENSIONS:
        raise _invalid_param("dimensions", f"is {document.dimensions}; it is a number from 1 on")
    return document


class OpenAIHttp(TextHttp):
    """HTTP handler of OpenAI's `POST /v1/embeddings`."""

    name = "openai-http"

    def _read(self, request: HttpRequest) -> Request:
        check_method(request, "POST", list_allowed=True)
        document = parse(request.body, self._limits)
        model = self._models.find_model(KIND, document.model or "")
        inputs = {model.text: model.texts(document.input, "input", self._limits)}
        response_options = EmbeddingOptions(document.encoding_format or FLOAT, model.served.name)
        parameters = {"dimensions": document.dimensions, "prompt_name": document.prompt_name}
        return self._request(request, model, inputs, EMBEDDINGS, response_options, parameters)

    def _status(self, error: ServingError) -> int:
        return _STATUSES.get(error.http_status, error.http_status)

    def _body(self, error: ServingError) -> bytes:
        status = error.http_status
        kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        description: dict[str, Any] = {
            "message": error.message,
            "type": kind,
            "param": getattr(error, "param", None),
            "code": _CODES.get(status),
        }
        return msgspec.json.encode({"error": description})


def _invalid_param(param: str, problem: str) -> InvalidInput:
    error = InvalidInput(f"'{param}' {problem}")
    error.param = param  # type: ignore[attr-defined]
    return error


def embeddings_paths(models: TextModels) -> dict[str, Any]:
    """Return the description of `/v1/embeddings` for /openapi.json; empty if there is no embeddings model."""
    embedders = models.all(KIND)
    if not embedders:
        return {}
    name = embedders[0].served.name
    example = {"model": name, "input": ["text"]}
    embeddings = operation(
        "OpenAI", "Embeddings of texts", "文本的向量", content(_BODY, example), OBJECT, model=name
    )
    embeddings["responses"] |= refusals(_ERROR)
    return {EMBEDDINGS_PATH: {"post": embeddings}}
