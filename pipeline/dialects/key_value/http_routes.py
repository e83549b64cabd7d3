"""The HTTP routes of key/value requests: `/{service}/{method}`."""

from __future__ import annotations

import functools
import math

from pipeline.api.examples import KEY_VALUE_EXAMPLE, message_of
from pipeline.dialects.key_value.answers import JSON as JSON_FORM
from pipeline.dialects.key_value.answers import render_error
from pipeline.dialects.key_value.key_value import parse_http, pass_http_on
from pipeline.errors import DeadlineExceeded, ServingError, UnknownService
from pipeline.front.http.grpc_timeout import seconds_of
from pipeline.front.http.http_handler import JSON, HttpHandler, retry_after
from pipeline.front.http.http_request import HttpRequest
from pipeline.front.scheduler.request import Request
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.messages.values import Part

_TIMEOUT = b"grpc-timeout"


class KeyValueHttp(HttpHandler):
    """Answers every request at a path that is no other dialect's and no page."""

    name = "http"

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._service = scheduler.app.name
        self._limits = scheduler.app.config.limits
        self._example = message_of(scheduler.app.examples.key_values, KEY_VALUE_EXAMPLE)
        self._parse = pass_http_on if scheduler.takes_messages else parse_http
        self._statuses = scheduler.app.config.dag.http_errors == "status"

    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the scheduler has the answer."""
        path = request.path
        asked = _service_and_method(path)
        if asked is None:
            self._refuse_with(404, request, UnknownService(f"there is nothing at {path}; {self._usage()}"))
        elif request.method != "POST":
            refusal = ServingError(f"{request.method} is not answered at {path}; {self._usage()}")
            self._refuse_with(405, request, refusal, b"allow: POST\r\n")
        else:
            service, method = asked
            self._predict(request, self._request, service, method)

    def _request(self, request: HttpRequest, service: str, method: str) -> Request:
        if service != self._service:
            raise UnknownService(f"Service name error: there is no service {service!r}; {self._usage()}")
        asked = self._parse(request.body, service, method, self._limits, self._example)
        asked.deadline = self._scheduler.deadline(_timeout_s(request), request.began)
        return asked

    def _send(self, request: HttpRequest, parts: list[Part], head: bytes) -> None:
        request.respond(200, JSON + head, parts[0])

    def refuse(self, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        # The original's gateway answered 504 for a time-out that it was given by the client.
        always = error.always_status or (
            isinstance(error, DeadlineExceeded) and _timeout_s(request) < math.inf
        )
        status = error.http_status if self._statuses or always else 200
        self._refuse_with(status, request, error, head + retry_after(error))

    def _refuse_with(self, status: int, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self._access_log.refused(self.name, error)
        request.respond(status, JSON + head, render_error(error, JSON_FORM))

    def refusal(self, error: ServingError) -> tuple[bytes, bytes]:
        return JSON, render_error(error, JSON_FORM)

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
