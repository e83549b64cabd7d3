"""The route of `/v1/embeddings`: reads its requests, refuses in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.config.config_file import Limits
from pipeline.dialects.openai.response_options import BASE64, EMBEDDINGS, FLOAT, EmbeddingOptions
from pipeline.dialects.text_models import EMBEDDINGS as KIND
from pipeline.dialects.text_models import TextHttp, decoded
from pipeline.errors import InvalidInput, ServingError
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import check_method
from pipeline.front.scheduler.dag_run import Request
from pipeline.models.embedding_description import MOST_DIMENSIONS

EMBEDDINGS_PATH = "/v1/embeddings"
_NOTHING = msgspec.Raw()
# OpenAI has 400 for what is too large, too; its client knows no 413.
_STATUSES = {413: 400}
_TYPES = {401: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_exceeded"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class EmbeddingsBody(msgspec.Struct):
    """The members of a body; others, `user` say, don't count. null is as good as absent."""

    input: msgspec.Raw = _NOTHING
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None
    prompt_name: str | None = None  # OpenAI has none: a model's own, as in TEI's requests


def parse(body: bytes, limits: Limits) -> EmbeddingsBody:
    """Read a body; its input is left to the worker. Raises InvalidInput that names the member."""
    document: EmbeddingsBody = decoded(body, EmbeddingsBody, limits)
    if not bytes(document.input):
        raise _wrong("input", "is missing: send a text, or a list of texts")
    document.encoding_format = document.encoding_format or FLOAT
    if document.encoding_format not in (FLOAT, BASE64):
        raise _wrong("encoding_format", f"is {document.encoding_format[:40]!r}; it is {FLOAT} or {BASE64}")
    if document.dimensions is not None and not 1 <= document.dimensions <= MOST_DIMENSIONS:
        raise _wrong("dimensions", f"is {document.dimensions}; it is a number from 1 on")
    return document


class OpenAIHttp(TextHttp):
    """Answers requests for embeddings."""

    name = "openai-http"

    def _read(self, request: HttpRequest) -> Request:
        check_method(request, "POST", tells=True)
        document = parse(request.body, self._limits)
        model = self._models.find(KIND, document.model or "")
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


def _wrong(param: str, problem: str) -> InvalidInput:
    error = InvalidInput(f"'{param}' {problem}")
    error.param = param  # type: ignore[attr-defined]
    return error
