"""The HEALTHCHECK of the images: readiness on whatever port a service listens."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from pipeline.process.health_check import is_ready


class Page(BaseHTTPRequestHandler):
    """Answers /health/ready with the status of its server."""

    def do_GET(self) -> None:
        status = self.server.status if self.path == "/health/ready" else 404  # type: ignore[attr-defined]
        self.send_response(status)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[HTTPServer]:
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False), (404, True), (401, True)])
def test_only_a_page_that_says_so_makes_a_service_unready(
    server: HTTPServer, closed_port: int, status: int, ready: bool
) -> None:
    server.status = status  # type: ignore[attr-defined]
    assert is_ready((closed_port, server.server_port)) is ready
