"""The service under the sockets' fire: after each batch it must still be whole and answer a good request."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any, Protocol

import grpc

from bench.processes import children, resident_mb
from client.protos.pipeline_service_pb2 import Request, Response
from tests.fuzz.sockets import PIPELINE, Door, Sent

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


class Target(Protocol):
    """A running service of tests/fuzz/service.py."""

    @property
    def front(self) -> int: ...
    @property
    def ports(self) -> tuple[int, int]: ...
    @property
    def log_text(self) -> str: ...


class Watched:
    """broken: what the service has done that it may never do."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._workers = children(target.front)
        self.broken: list[str] = []

    @property
    def resident_mb(self) -> float:
        """Of front and workers."""
        return sum(resident_mb(pid) for pid in (self._target.front, *self._workers))

    def fire(self, door: Door, count: int) -> Sent:
        """One batch, and the look after it."""
        port = self._target.ports[door.name == "grpc-door"]
        sent = asyncio.run(door.send(port, count))
        self._look()
        return sent

    def _look(self) -> None:
        if children(self._target.front) != self._workers:
            self.broken.append("a worker was replaced")
            self._workers = children(self._target.front)
        for ask in (self._ask_http, self._ask_grpc):
            try:
                answer = ask()
            except (OSError, grpc.RpcError, ValueError) as exc:
                self.broken.append(f"a good request was not answered: {exc!r}")
            else:
                if answer != "1":
                    self.broken.append(f"a good request was answered {answer!r}")
        log = self._target.log_text
        self.broken += [f"the log says {fault!r}" for fault in FAULTS if fault in log]

    def _ask_http(self) -> str:
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", self._target.ports[0], timeout=ANSWER_S)
        with contextlib.closing(connection):
            connection.request("POST", "/test/prediction", b'{"key":["a"],"value":["b"]}')
            return str(json.loads(connection.getresponse().read())["value"][0])

    def _ask_grpc(self) -> str:
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"127.0.0.1:{self._target.ports[1]}", options) as channel:
            call = channel.unary_unary(PIPELINE.decode())
            answer = call(Request(key=["a"], value=["b"]).SerializeToString(), timeout=ANSWER_S)
            return Response.FromString(answer).value[0]
