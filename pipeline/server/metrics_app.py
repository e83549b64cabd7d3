"""The HTTP port of `v2.metrics_port`: /metrics and nothing else."""

from __future__ import annotations

from pipeline.errors import ServingError, UnknownService
from pipeline.server.engine import Engine
from pipeline.server.http_door import JSON
from pipeline.server.http_request import HttpRequest
from pipeline.server.metrics import CONTENT_TYPE
from pipeline.v2_errors import v2_error_body

PATH = "/metrics"
DOOR = "metrics"


class MetricsApp:
    """Answers who collects figures; no model can be asked here."""

    def __init__(self, engine: Engine) -> None:
        self._metrics = engine.metrics
        self._journal = engine.journal

    def take(self, request: HttpRequest) -> None:
        refusal: ServingError
        if request.path != PATH:
            refusal = UnknownService(f"there is nothing at {request.path}; this port has {PATH} alone")
            self._refuse(404, request, refusal)
        elif request.method not in ("GET", "HEAD"):
            refusal = ServingError(f"{request.method} is not answered at {PATH}; use GET")
            self._refuse(405, request, refusal, b"allow: GET, HEAD\r\n")
        else:
            request.respond(200, b"content-type: %b\r\n" % CONTENT_TYPE.encode(), self._metrics.text())

    def note_refusal(self, error: ServingError) -> None:
        self._journal.refused(DOOR, error)

    def _refuse(self, status: int, request: HttpRequest, error: ServingError, head: bytes = b"") -> None:
        self.note_refusal(error)
        request.respond(status, JSON + head, v2_error_body(error.message))
