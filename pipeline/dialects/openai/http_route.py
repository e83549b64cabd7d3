"""The route of `/v1/embeddings`: reads its requests, refuses in OpenAI's form."""

from __future__ import annotations

from typing import Any

import msgspec

from pipeline.api.request_options import RequestOptions
from pipeline.config.config_file import Limits
from pipeline.dialects.openai.wish import BASE64, EMBEDDINGS, FLOAT, OpenAIWish
from pipeline.dialects.text_models import EMBEDDINGS as KIND
from pipeline.dialects.text_models import TextModels, decoded, texts_of
from pipeline.errors import InvalidInput, ServingError
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, HttpHandler, check_method, retry_after
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.embedding_description import MOST_DIMENSIONS

EMBEDDINGS_PATH = "/v1/embeddings"
_NOTHING = msgspec.Raw()
# OpenAI has 400 for what is too large, too; its client knows no 413.
_STATUSES = {413: 400}
_TYPES = {401: "invalid_request_error", 404: "invalid_request_error", 429: "rate_limit_exceeded"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}


class Asked(msgspec.Struct):
    """The members of a body; others, `user` say, don't count. null is as good as absent."""

    input: msgspec.Raw = _NOTHING
    model: str | None = None
    encoding_format: str | None = None
    dimensions: int | None = None


def parse(body: bytes, limits: Limits) -> Asked:
    """Read a body; its input is left to the worker. Raises InvalidInput that names the member."""
    given: Asked = decoded(body, Asked, limits)
    if not bytes(given.input):
        raise _wrong("input", "is missing: send a text, or a list of texts")
    given.encoding_format = given.encoding_format or FLOAT
    if given.encoding_format not in (FLOAT, BASE64):
        raise _wrong("encoding_format", f"is {given.encoding_format[:40]!r}; it is {FLOAT} or {BASE64}")
    if given.dimensions is not None and not 1 <= given.dimensions <= MOST_DIMENSIONS:
        raise _wrong("dimensions", f"is {given.dimensions}; it is a number from 1 on")
    return given


class OpenAIHttp(HttpHandler):
    """Answers requests for embeddings."""

    name = "openai-http"

    def __init__(self, scheduler: Scheduler, models: TextModels) -> None:
        super().__init__(scheduler)
        self._models = models
        self._limits = scheduler.app.config.limits

    def _read(self, request: HttpRequest) -> Request:
        check_method(request, "POST", tells=True)
        given = parse(request.body, self._limits)
        model = self._models.find(KIND, given.model or "")
        inputs = {model.text: texts_of(given.input, "input", self._limits)}
        made = Request(model.served.name, "predict", inputs, form=EMBEDDINGS)
        made.wish = OpenAIWish(given.encoding_format or FLOAT, model.served.name)
        made.model = model.served.key
        made.deadline = self._scheduler.deadline(began=request.began)
        if given.dimensions is not None:
            made.options = RequestOptions(parameters={"dimensions": given.dimensions})
        return made

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, _body(error)

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error, request.peer)
        allowed = getattr(error, "allowed", ())
        if allowed:
            head += b"allow: %b\r\n" % ", ".join(allowed).encode()
        status = _STATUSES.get(error.http_status, error.http_status)
        request.respond(status, head + JSON + retry_after(error), _body(error))


def _wrong(param: str, told: str) -> InvalidInput:
    error = InvalidInput(f"'{param}' {told}")
    error.param = param  # type: ignore[attr-defined]
    return error


def _body(error: ServingError) -> bytes:
    status = error.http_status
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    told: dict[str, Any] = {
        "message": error.message,
        "type": kind,
        "param": getattr(error, "param", None),
        "code": _CODES.get(status),
    }
    return msgspec.json.encode({"error": told})
