"""Collector: an OpenTelemetry collector for tests, which keeps the spans that services send to it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.support.service_process import PATIENCE_S, wait_until


class Collector:
    """An OpenTelemetry collector that keeps the spans it is sent. It answers while `is_open` is set."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.spans: list[dict[str, Any]] = []
        self.resources: list[dict[str, Any]] = []
        self.services: dict[str, str] = {}  # the sender's `service.name`, by id of the span
        collector = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                collector.is_open.wait(PATIENCE_S)
                assert (self.path, self.headers["content-type"]) == ("/v1/traces", "application/json")
                for each in body["resourceSpans"]:
                    collector.resources.append(each["resource"])
                    service = get_attributes(each["resource"])["service.name"]
                    for scope in each["scopeSpans"]:
                        for span in scope["spans"]:
                            collector.services[span["spanId"]] = service
                        collector.spans += scope["spans"]
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def wait(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """The spans of this name, once there are so many."""
        wait_until(lambda: len(self.find(name)) >= count, f"{count} spans {name}: {self.spans}")
        return self.find(name)

    def find(self, name: str) -> list[dict[str, Any]]:
        return [span for span in list(self.spans) if span["name"] == name]


def get_attributes(item: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: next(iter(each["value"].values())) for each in item["attributes"]}
