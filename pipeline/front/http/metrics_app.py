"""The HTTP port of `v2.metrics_port` and of `dag.prometheus_port`: /metrics and nothing else."""

from __future__ import annotations

import msgspec

from pipeline.errors import ServingError
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import (
    JSON,
    METRICS,
    READING,
    NotAllowed,
    Refused,
    Routes,
    check_method,
    check_page_body,
    refusal_headers,
)
from pipeline.front.http.metrics_page import MetricsPage
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.scheduler.scheduler import Scheduler

DOOR = "metrics"


class MetricsApp:
    """HTTP application of the metrics port; no model can be asked here."""

    def __init__(self, scheduler: Scheduler, routes: Routes) -> None:
        self.refusal = routes.refusal
        self._limits = scheduler.app.config.limits
        self._page = MetricsPage(scheduler.metrics, self._limits.metrics_interval_s)
        self._access_log = scheduler.access_log

    def handle(self, request: HttpRequest) -> None:
        try:
            if request.path != METRICS:
                raise Refused(404, request)
            check_method(request, *READING)
        except Refused as exc:
            self.note_refusal(exc, request.peer)
            head = JSON + refusal_headers(exc)
            request.respond(exc.http_status, head, msgspec.json.encode({"error": exc.phrase}))
        else:
            self._page.answer(request)

    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise ServingError where a body need not be read: no request here has a use for one."""
        if path == METRICS and method not in READING:
            raise NotAllowed(method, path, *READING)
        check_page_body(path, length, self._limits)

    def note_refusal(self, error: ServingError, client: str) -> None:
        self._access_log.refused(DOOR, error, client)

    def note_unread(self, why: str) -> None:
        self._access_log.warn(UNREAD, why)
