"""The service under the sockets' fire: after each batch it must still be whole and answer a good request."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc

from bench.processes import resident_mb
from client.protos.pipeline_service_pb2 import Request
from tests.fuzz.sockets import Endpoint, Sent
from tests.support.service_process import ServiceProcess

CONFIG: dict[str, Any] = {
    "op": {"count": {"concurrency": 1}},
    "limits": {
        "body_bytes": 1 << 20, "header_timeout_s": 0.5, "body_timeout_s": 0.5, "header_count": 24,
        "header_bytes": 8192,
        "json_depth": 16,
    },
}  # fmt: skip
SCRIPT = Path(__file__).resolve().parent / "service.py"
ANSWER_S = 10.0
# What the log may not say: each is a fault of ours, whatever was sent.
FAULTS = ("fault of ours", "Traceback", "never retrieved", "Exception in")


class Watched:
    """broken: what the service has done that it may never do."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._workers = service.worker_pids()
        self.broken: list[str] = []

    @property
    def resident_mb(self) -> float:
        """Of front and workers."""
        return sum(resident_mb(pid) for pid in (self._service.process.pid, *self._workers))

    def fire(self, endpoint: Endpoint, count: int) -> Sent:
        """One batch, and the look after it."""
        port = self._service.rpc_port if endpoint.name == "grpc-endpoint" else self._service.http_port
        sent = asyncio.run(endpoint.send(port, count))
        self._look()
        return sent

    def _look(self) -> None:
        if self._service.worker_pids() != self._workers:
            self.broken.append("a worker was replaced")
            self._workers = self._service.worker_pids()
        for ask in (self._ask_http, self._ask_grpc):
            try:
                answer = ask()
            except (OSError, grpc.RpcError, ValueError) as exc:
                self.broken.append(f"a good request was not answered: {exc!r}")
            else:
                if answer != "1":
                    self.broken.append(f"a good request was answered {answer!r}")
        log = self._service.log
        self.broken += [f"the log says {fault!r}" for fault in FAULTS if fault in log]

    def _ask_http(self) -> str:
        answer = self._service.http("/test/prediction", b'{"key":["a"],"value":["b"]}', timeout_s=ANSWER_S)
        return str(answer.json["value"][0])

    def _ask_grpc(self) -> str:
        return self._service.rpc(Request(key=["a"], value=["b"]), timeout_s=ANSWER_S).value[0]
