"""The HTTP routes: key/value requests, health and metrics."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable

import msgspec

from pipeline.api.examples import message_of
from pipeline.dialects.answer_form import AnswerForm
from pipeline.dialects.key_value.answers import render_error
from pipeline.dialects.key_value.key_value import EXAMPLE, parse_http, pass_http_on
from pipeline.dialects.kserve_v1.v1_routes import V1HttpApp
from pipeline.dialects.kserve_v2.v2_models import V2Models
from pipeline.dialects.kserve_v2.v2_routes import V2HttpApp
from pipeline.errors import DeadlineExceeded, ServingError, UnknownService
from pipeline.front.http import docs_page
from pipeline.front.http.grpc_timeout import seconds_of
from pipeline.front.http.http_request import HttpRequest
from pipeline.front.http.openapi import openapi
from pipeline.front.http.prediction import JSON, HttpDoor, retry_after
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.metrics.metrics import CONTENT_TYPE
from pipeline.front.scheduler.engine import Engine
from pipeline.front.scheduler.request import Request
from pipeline.messages.values import Part

_TEXT = b"content-type: %b\r\n" % CONTENT_TYPE.encode()
_TIMEOUT = b"grpc-timeout"

Page = Callable[[], tuple[int, bytes, bytes]]


class HttpApp(HttpDoor):
    """Answers every request of one service: those of key/value itself."""

    name = "http"

    def __init__(self, engine: Engine, models: V2Models, v1: V1HttpApp, v2: V2HttpApp) -> None:
        super().__init__(engine)
        self._doors: dict[str, V1HttpApp | V2HttpApp] = {"/v1/": v1, "/v2/": v2, "/v2": v2}
        self._service = engine.app.name
        self._limits = engine.app.config.limits
        self._example = message_of(engine.app.examples.key_values, EXAMPLE)
        self._parse = pass_http_on if engine.takes_messages else parse_http
        self._statuses = engine.app.config.dag.http_errors == "status"
        self._pages: dict[str, Page] = {
            "/health/live": lambda: (200, JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/openapi.json": lambda: (200, JSON, msgspec.json.encode(openapi(engine.app, models))),
            "/docs": lambda: (200, *docs_page.page()),
            "/metrics": lambda: (200, _TEXT, engine.metrics.text()),
        }

    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the engine has the answer."""
        path = request.path
        door = self._doors.get(path[:4])
        if door is not None:
            door.take(request)
            return
        page = self._pages.get(path)
        if page is not None:
            self._answer_page(page, request)
            return
        asked = _service_and_method(path)
        if asked is None:
            self._refuse_with(404, request, UnknownService(f"there is nothing at {path}; {self._usage()}"))
        elif request.method != "POST":
            refusal = ServingError(f"{request.method} is not answered at {path}; {self._usage()}")
            self._refuse_with(405, request, refusal, b"allow: POST\r\n")
        else:
            service, method = asked
            self._predict(request, self._request, service, method)

    def note_refusal(self, error: ServingError) -> None:
        """A connection has refused what was no request yet."""
        self._journal.refused(self.name, error)

    def note_unread(self, why: str) -> None:
        """A client is sent away that does not read its answers."""
        self._journal.warn(UNREAD, why)

    def _request(self, request: HttpRequest, service: str, method: str) -> Request:
        if service != self._service:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        asked = self._parse(request.body, service, method, self._limits, self._example)
        asked.deadline = self._engine.deadline(_timeout_s(request), request.began)
        return asked

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        request.respond(200, JSON + head, parts[0])

    def _refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        # The original's gateway answered 504 for a time-out that it was given by the client.
        always = error.always_status or (
            isinstance(error, DeadlineExceeded) and _timeout_s(request) < math.inf
        )
        status = error.http_status if self._statuses or always else 200
        self._refuse_with(status, request, error, head + retry_after(error))

    def _refuse_with(self, status: int, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._journal.refused(self.name, error)
        request.respond(status, JSON + head, render_error(error, AnswerForm.JSON))

    def _answer_page(self, page: Page, request: HttpRequest) -> None:
        if request.method in ("GET", "HEAD"):
            request.respond(*page())
            return
        refusal = ServingError(f"{request.method} is not answered at {request.path}; use GET")
        self._refuse_with(405, request, refusal, b"allow: GET, HEAD\r\n")

    def _readiness(self) -> tuple[int, bytes, bytes]:
        ready = self._engine.ready
        body = json.dumps({"ready": ready, "ops": self._engine.readiness()}).encode()
        return 200 if ready else 503, JSON, body

    def _usage(self) -> str:
        return f"POST /{self._service}/prediction with a body like {self._example}"


@functools.lru_cache(maxsize=64)
def _service_and_method(path: str) -> tuple[str, str] | None:
    """The two segments of a path for key/value requests; None for any other path."""
    segments = path.split("/")
    if len(segments) != 3 or not segments[1] or not segments[2] or ":" in segments[2]:
        return None
    return segments[1], segments[2]


def _timeout_s(request: HttpRequest) -> float:
    """What the client gives us, in the header that the original's gateway honoured."""
    given = request.headers.get(_TIMEOUT)
    return math.inf if given is None else seconds_of(given)
