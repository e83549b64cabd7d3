"""The HTTP routes: key/value requests, health and metrics."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable

from pipeline.answers import render_error
from pipeline.errors import DeadlineExceeded, ServingError, UnknownService
from pipeline.request import AnswerForm, Request
from pipeline.server.codecs.key_value import EXAMPLE, parse_http, pass_http_on
from pipeline.server.engine import Engine
from pipeline.server.grpc_timeout import seconds_of
from pipeline.server.http_request import HttpRequest
from pipeline.server.metrics import CONTENT_TYPE
from pipeline.server.timings import Timings
from pipeline.server.v2.http_app import V2HttpApp
from pipeline.server.walk import Answer

log = logging.getLogger(__name__)

_JSON = b"content-type: application/json\r\n"
_TEXT = b"content-type: %b\r\n" % CONTENT_TYPE.encode()
_TIMEOUT = b"grpc-timeout"
DOOR = "http"

Page = Callable[[], tuple[int, bytes, bytes]]


class HttpApp:
    """Answers every request of one service."""

    def __init__(self, engine: Engine, v2: V2HttpApp) -> None:
        self._engine = engine
        self._v2 = v2
        self._journal = engine.journal
        self._name = engine.app.name
        self._limits = engine.app.config.limits
        self._parse = pass_http_on if engine.takes_messages else parse_http
        self._statuses = engine.app.config.dag.http_errors == "status"
        self._pages: dict[str, Page] = {
            "/health/live": lambda: (200, _JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/metrics": lambda: (200, _TEXT, engine.metrics.text()),
        }

    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the engine has the answer."""
        path = request.path
        if path.startswith("/v2/") or path == "/v2":
            self._v2.take(request)
            return
        page = self._pages.get(path)
        if page is not None:
            self._answer_page(page, request)
            return
        segments = path.split("/")
        if len(segments) != 3 or not segments[1] or not segments[2] or ":" in segments[2]:
            self._refuse(request, 404, UnknownService(f"there is nothing at {path}; {self._usage()}"))
        elif request.method != "POST":
            refusal = ServingError(f"{request.method} is not answered at {path}; {self._usage()}")
            self._refuse(request, 405, refusal, b"allow: POST\r\n")
        else:
            self._predict(request, segments[1], segments[2])

    def note_refusal(self, error: ServingError) -> None:
        """A connection has refused what was no request yet."""
        self._journal.refused(DOOR, error)

    def _predict(self, request: HttpRequest, service: str, method: str) -> None:
        began = time.monotonic()
        try:
            asked = self._request(request, service, method)
            walk = self._engine.begin(
                asked, lambda answer: self._answer(request, answer, began, asked.timings)
            )
        except ServingError as exc:
            self._answer(request, exc, began)
        except Exception:
            log.exception("A fault of ours in POST %s", request.path)
            self._answer(request, ServingError("internal error; the server's log has its reason"), began)
        else:
            request.on_left = walk.leave

    def _request(self, request: HttpRequest, service: str, method: str) -> Request:
        if service != self._name:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        asked = self._parse(request.body, service, method, self._limits)
        asked.deadline = self._engine.deadline(_timeout_s(request))
        return asked

    def _answer(
        self, request: HttpRequest, answer: Answer, began: float, timings: Timings | None = None
    ) -> None:
        told = b"" if timings is None else b"server-timing: %b\r\n" % timings.header().encode()
        if self._journal.tells_each:
            error = answer if isinstance(answer, ServingError) else None
            self._journal.tell(DOOR, request.peer, f"POST {request.path}", began, error)
        if not isinstance(answer, ServingError):
            self._journal.answered(DOOR)
            request.respond(200, _JSON + told, answer[0])
            return
        # The original's gateway answered 504 for a time-out that it was given by the client.
        always = answer.always_status or (
            isinstance(answer, DeadlineExceeded) and _timeout_s(request) < math.inf
        )
        retry_after_s = getattr(answer, "retry_after_s", None)
        if retry_after_s is not None:
            told += b"retry-after: %d\r\n" % max(1, math.ceil(retry_after_s))
        self._refuse(request, answer.http_status if self._statuses or always else 200, answer, told)

    def _refuse(self, request: HttpRequest, status: int, error: ServingError, extra: bytes = b"") -> None:
        self._journal.refused(DOOR, error)
        request.respond(status, _JSON + extra, render_error(error, AnswerForm.JSON))

    def _answer_page(self, page: Page, request: HttpRequest) -> None:
        if request.method in ("GET", "HEAD"):
            request.respond(*page())
            return
        refusal = ServingError(f"{request.method} is not answered at {request.path}; use GET")
        self._refuse(request, 405, refusal, b"allow: GET, HEAD\r\n")

    def _readiness(self) -> tuple[int, bytes, bytes]:
        ready = self._engine.ready
        body = json.dumps({"ready": ready, "ops": self._engine.readiness()}).encode()
        return 200 if ready else 503, _JSON, body

    def _usage(self) -> str:
        return f"POST /{self._name}/prediction with a body like {EXAMPLE}"


def _timeout_s(request: HttpRequest) -> float:
    """What the client gives us, in the header that the original's gateway honoured."""
    for name, value in request.headers:
        if name == _TIMEOUT:
            return seconds_of(value)
    return math.inf
