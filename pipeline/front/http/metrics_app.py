"""The HTTP port of `v2.metrics_port` and of `dag.prometheus_port`: /metrics and nothing else."""

from __future__ import annotations

import msgspec

from pipeline.errors import ServingError
from pipeline.front.http.connection import HttpRequest
from pipeline.front.http.http_handler import JSON, Refused, Routes, check_method
from pipeline.front.metrics.access_log import UNREAD
from pipeline.front.metrics.metrics import CONTENT_TYPE
from pipeline.front.scheduler.scheduler import Scheduler

PATH = "/metrics"
DOOR = "metrics"


class MetricsApp:
    """Answers who collects figures; no model can be asked here."""

    def __init__(self, scheduler: Scheduler, routes: Routes) -> None:
        self.refusal = routes.refusal
        self._metrics = scheduler.metrics
        self._access_log = scheduler.access_log

    def take(self, request: HttpRequest) -> None:
        try:
            if request.path != PATH:
                raise Refused(404, request)
            check_method(request, "GET", "HEAD")
        except Refused as exc:
            self.note_refusal(exc, request.peer)
            request.respond(exc.http_status, JSON, msgspec.json.encode({"error": exc.phrase}))
        else:
            request.respond(200, b"content-type: %b\r\n" % CONTENT_TYPE.encode(), self._metrics.text())

    def note_refusal(self, error: ServingError, client: str) -> None:
        self._access_log.refused(DOOR, error, client)

    def note_unread(self, why: str) -> None:
        self._access_log.warn(UNREAD, why)
