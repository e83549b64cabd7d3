"""The HTTP port: pages of the service itself, and to which dialect each other request goes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from pipeline.errors import ConfigError, ServingError
from pipeline.front.http import docs_page
from pipeline.front.http.http_handler import JSON, HttpHandler
from pipeline.front.http.http_request import HttpRequest
from pipeline.front.http.openapi import openapi
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.metrics.metrics import CONTENT_TYPE
from pipeline.front.scheduler.scheduler import Scheduler

HEALTH_PAGES = (b"/health/live", b"/health/ready")
EVERYTHING_ELSE = "/"
_DOOR = "http"
_TEXT = b"content-type: %b\r\n" % CONTENT_TYPE.encode()

Page = Callable[[], tuple[int, bytes, bytes]]


class Routes:
    """The handlers by the paths that are theirs: "/v1/" is all that lies below, "/v2" that path alone."""

    def __init__(self, handlers: Mapping[str, HttpHandler]) -> None:
        """Raises ConfigError where there is none for "/", which is every path that is nobody's."""
        if EVERYTHING_ELSE not in handlers:
            raise ConfigError(f"no dialect that is installed answers below {EVERYTHING_ELSE!r}")
        self._handlers = dict(handlers)
        self.otherwise = self._handlers[EVERYTHING_ELSE]

    def handler(self, path: str) -> HttpHandler | None:
        """Whose path it is; None for nobody's."""
        return self._handlers.get(path[: path.find("/", 1) + 1] or path)

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        """Header lines and body that refuse what was no request yet. url: as far as it has arrived."""
        return (self.handler(url.decode("latin-1")) or self.otherwise).refusal(error)


class HttpApp:
    """Answers every request of one service. paths: the dialects' part of /openapi.json."""

    def __init__(self, scheduler: Scheduler, routes: Routes, paths: Callable[[], Mapping[str, Any]]) -> None:
        self._scheduler = scheduler
        self._access_log = scheduler.access_log
        self._routes = routes
        self._pages: dict[str, Page] = {
            "/health/live": lambda: (200, JSON, b'{"live":true}'),
            "/health/ready": self._readiness,
            "/openapi.json": lambda: (200, JSON, msgspec.json.encode(openapi(scheduler.app, paths()))),
            "/docs": lambda: (200, *docs_page.page()),
            "/metrics": lambda: (200, _TEXT, scheduler.metrics.text()),
        }

    def take(self, request: HttpRequest) -> None:
        """Answer at once, or when the scheduler has the answer."""
        path = request.path
        handler = self._routes.handler(path)
        if handler is not None:
            handler.take(request)
            return
        page = self._pages.get(path)
        if page is None:
            self._routes.otherwise.take(request)
        elif request.method in ("GET", "HEAD"):
            request.respond(*page())
        else:
            refusal = ServingError(f"{request.method} is not answered at {path}; use GET")
            refusal.http_status, refusal.always_status = 405, True
            self._routes.otherwise.refuse(request, refusal, b"allow: GET, HEAD\r\n")

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        return self._routes.refusal(error, url)

    def note_refusal(self, error: ServingError) -> None:
        """A connection has refused what was no request yet."""
        self._access_log.refused(_DOOR, error)

    def note_unread(self, why: str) -> None:
        """A client is sent away that does not read its answers."""
        self._access_log.warn(UNREAD, why)

    def _readiness(self) -> tuple[int, bytes, bytes]:
        ready = self._scheduler.ready
        body = json.dumps({"ready": ready, "ops": self._scheduler.readiness()}).encode()
        return 200 if ready else 503, JSON, body
