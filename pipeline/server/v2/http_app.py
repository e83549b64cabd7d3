"""The HTTP routes of KServe v2."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import re
import time
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.errors import Overloaded, ServingError
from pipeline.request import AnswerForm, Request
from pipeline.server.engine import Engine
from pipeline.server.http_request import HttpRequest
from pipeline.server.timings import Timings
from pipeline.server.v2.compression import chosen, compressed, decompressed
from pipeline.server.v2.http_infer import parse_infer, parse_raw
from pipeline.server.v2.model_config import model_config
from pipeline.server.v2.models import V2Model, V2Models, check_version
from pipeline.server.v2.repository import asks_for_ready_alone, index, refuse_control
from pipeline.server.v2.server_metadata import server_metadata
from pipeline.server.v2.statistics import statistics
from pipeline.server.walk import Answer
from pipeline.v2_errors import V2Refusal, for_clients, v2_error_body

log = logging.getLogger(__name__)

DOOR = "v2-http"
_JSON = b"content-type: application/json\r\n"
_BINARY = b"content-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
_MODEL = re.compile(r"/v2/models/(?P<model>[^/]+)(?:/versions/(?P<version>\d+))?(?:/(?P<what>[a-z]+))?")
_REPOSITORY = re.compile(r"/v2/repository/(?:[^/]+/)?index|/v2/repository/models/[^/]+/(?:un)?load")
_NUMBER = re.compile(r"\s*(\d+)")
_COMPRESSED_AT_ONCE = 64 * 1024  # more is compressed in a thread: other requests need not wait for it
_json = msgspec.json.encode

_OUR_FAULT = ServingError("internal error; the server's log has its reason")

Page = Callable[[], Any]


class V2HttpApp:
    """Answers every request below /v2."""

    def __init__(self, engine: Engine, models: V2Models) -> None:
        self._engine = engine
        self._models = models
        self._journal = engine.journal
        self._limits = engine.app.config.limits
        self._pages: dict[str, Page] = {
            "/v2": server_metadata,
            "/v2/health/live": lambda: None,
            "/v2/health/ready": self._readiness,
            "/v2/models/stats": lambda: {"model_stats": [statistics(engine, m) for m in models.all()]},
        }

    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the engine has the answer."""
        path = request.path
        try:
            asked = _MODEL.fullmatch(path)
            if asked is not None and asked["what"] == "infer":
                self._check_method(request, "POST")
                self._infer(request, asked["model"], asked["version"] or "")
                return
            document = self._document(request, asked)
        except ServingError as exc:
            self._refuse(request, exc)
            return
        request.respond(200, _JSON, b"" if document is None else _json(document))

    def _document(self, request: HttpRequest, asked: re.Match[str] | None) -> Any:
        page = self._pages.get(request.path)
        if page is not None:
            self._check_method(request, "GET", "HEAD")
            return page()
        if asked is not None and asked["what"] in (None, "ready", "config", "stats"):
            self._check_method(request, "GET", "HEAD")
            return self._about(asked["model"], asked["version"] or "", asked["what"])
        if _REPOSITORY.fullmatch(request.path):
            self._check_method(request, "POST")
            if not request.path.endswith("/index"):
                refuse_control()
            return index(self._models, ready_alone=asks_for_ready_alone(request.body))
        raise _Refused(404)

    def _check_method(self, request: HttpRequest, *allowed: str) -> None:
        if request.method not in allowed:
            raise _Refused(405)

    def _readiness(self) -> None:
        if not self._engine.ready:
            raise V2Refusal("the service is not ready")

    def _about(self, name: str, version: str, what: str | None) -> Any:
        if what != "ready":
            model = self._models.find(name, version)
            if what == "config":
                return model_config(model, self._engine.app.config, self._engine.app.response)
            if what == "stats":
                return {"model_stats": [statistics(self._engine, model)]}
            return model.metadata()
        if version:
            check_version(version)
        if not self._models.is_ready(name, version):
            raise V2Refusal("Model version not ready")
        return None

    # Inference:

    def _infer(self, request: HttpRequest, name: str, version: str) -> None:
        began = time.monotonic()
        model = self._models.find(name, version)
        encoding = _header(request, b"content-encoding")
        if not encoding:
            self._begin(request, model, request.body, began)
            return
        # In a thread: a few bytes may become as many as limits.body_bytes allows.
        read = functools.partial(
            decompressed, request.body, encoding.strip().lower(), self._limits.body_bytes
        )

        def begin(done: asyncio.Future[bytes]) -> None:
            try:
                self._begin(request, model, done.result(), began)
            except ServingError as exc:
                self._answer(request, exc, began)
            except Exception:
                log.exception("A fault of ours in reading the body of POST %s", request.path)
                self._answer(request, _OUR_FAULT, began)

        asyncio.get_running_loop().run_in_executor(None, read).add_done_callback(begin)

    def _begin(self, request: HttpRequest, model: V2Model, body: bytes, began: float) -> None:
        try:
            asked = self._asked(request, model, body)
            walk = self._engine.begin(
                asked, lambda answer: self._answer(request, answer, began, asked.timings)
            )
        except ServingError as exc:
            self._answer(request, exc, began)
        except Exception:
            log.exception("A fault of ours in POST %s", request.path)
            self._answer(request, _OUR_FAULT, began)
        else:
            request.on_left = walk.leave

    def _asked(self, request: HttpRequest, model: V2Model, body: bytes) -> Request:
        length = _header_length(_header(request, b"inference-header-content-length"), body)
        asked = parse_raw(body, model) if length == 0 else parse_infer(body, length, model)
        made = asked.request(model, AnswerForm.V2_JSON, self._engine)
        made.deadline = self._engine.deadline(asked.timeout_s)
        return made

    def _answer(
        self, request: HttpRequest, answer: Answer, began: float, timings: Timings | None = None
    ) -> None:
        if self._journal.tells_each:
            error = answer if isinstance(answer, ServingError) else None
            self._journal.tell(DOOR, request.peer, f"POST {request.path}", began, error)
        if isinstance(answer, ServingError):
            self._refuse(request, answer)
            return
        self._journal.answered(DOOR)
        head, body = _JSON, answer[0]
        if len(answer) > 1:
            head, body = _BINARY % len(body), b"".join(answer)
        if timings is not None:
            head += b"server-timing: %b\r\n" % timings.header().encode()
        encoding = chosen(_header(request, b"accept-encoding"))
        if not encoding:
            request.respond(200, head, body)
            return
        head += b"content-encoding: %b\r\n" % encoding.encode()
        if len(body) < _COMPRESSED_AT_ONCE:
            request.respond(200, head, compressed(body, encoding))
            return
        compressing = asyncio.get_running_loop().run_in_executor(None, compressed, body, encoding)
        compressing.add_done_callback(lambda done: request.respond(200, head, done.result()))

    def _refuse(self, request: HttpRequest, error: ServingError) -> None:
        self._journal.refused(DOOR, error)
        status, _, message = for_clients(error)
        head = _JSON
        if isinstance(error, Overloaded):
            head += b"retry-after: %d\r\n" % max(1, math.ceil(error.retry_after_s))
        elif status == 501:
            head += b"accept-encoding: gzip, deflate\r\n"
        request.respond(status, head, v2_error_body(message))


def _header(request: HttpRequest, name: bytes) -> str:
    """The header's value; empty where it is not there."""
    for given, value in request.headers:
        if given == name:
            return value.decode("latin-1")
    return ""


def _header_length(header: str, body: bytes) -> int | None:
    """Bytes of the JSON document; 0: the body is a tensor, None: it is the document. Raises V2Refusal."""
    if not header:
        return None if body else 0
    number = _NUMBER.match(header)
    length = int(number[1][:20]) if number else 0
    if length > len(body):
        raise V2Refusal(f"inference header size should be in range (0, {len(body)}), got: {length}")
    return length


class _Refused(ServingError):
    """Nothing is there, or not for this method."""

    def __init__(self, status: int) -> None:
        super().__init__("Not Found" if status == 404 else "Method Not Allowed")
        self.http_status = status
