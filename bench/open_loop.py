"""Open-loop load: requests at a fixed rate, whether or not the service keeps up. Each has a deadline.

Run as `python -m bench.open_loop PORT RATE SECONDS DEADLINE_MS`: prints an `Arrivals` as JSON. It is a
process with one thread and without futures, because it must offer many times the service's throughput.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import uvloop

from bench.load import CannotMeasure
from bench.texts import headlines, http_body
from tests.support.service_process import ROOT

TICK_S = 0.002
_LAST_S = 2.0  # after the last request, for its answer
MAX_CONNECTIONS = 2000


class Arrivals(NamedTuple):
    """Results of a load. Latencies in ms, of answers.

    unsent: all connections were in use. late: refused with 504, or answered after the client's deadline.
    lost: not answered until the end.
    """

    seconds: float
    sent: int
    answered: int
    refused: int
    late: int
    failed: int
    lost: int
    unsent: int
    p50_ms: float
    p99_ms: float
    max_ms: float


class Connection(asyncio.Protocol):
    """A connection with one request at a time, which reads only the status of an answer."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self._sent_at = 0.0
        self._left = 0  # bytes of the answer still to come

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._generator.idle.append(self)

    def send(self, request: bytes) -> None:
        self._sent_at = time.monotonic()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._left:
            head, _, body = data.partition(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            self._status, self._left = int(data[9:12]), int(length) - len(body)
        else:
            self._left -= len(data)
        if not self._left:
            self._generator.record_answer(self._status, time.monotonic() - self._sent_at)
            self._generator.idle.append(self)


class Generator:
    def __init__(self, port: int, deadline_ms: int) -> None:
        head = b"POST /bert/prediction HTTP/1.1\r\nhost: x\r\ngrpc-timeout: %dm\r\ncontent-length: %d\r\n\r\n"
        bodies = [http_body(text) for text in headlines()]
        self.idle: deque[Connection] = deque()
        self._port = port
        self._deadline_s = deadline_ms / 1000
        self._requests = [head % (deadline_ms, len(body)) + body for body in bodies]
        self._answers_s: list[float] = []
        self._counts = {"refused": 0, "late": 0, "failed": 0}

    def record_answer(self, status: int, took_s: float) -> None:
        if status == 200:
            self._answers_s.append(took_s)
            self._counts["late"] += took_s > self._deadline_s
        else:
            self._counts[{429: "refused", 504: "late"}.get(status, "failed")] += 1

    async def run(self, rate: float, seconds: float) -> Arrivals:
        loop = asyncio.get_running_loop()
        connections = min(MAX_CONNECTIONS, max(64, int(2 * rate * self._deadline_s)))
        for _ in range(connections):
            await loop.create_connection(lambda: Connection(self), "127.0.0.1", self._port)
        began = time.monotonic()
        sent = unsent = 0
        while (now := time.monotonic() - began) < seconds:
            due = int(now * rate) - sent - unsent
            for _ in range(min(due, len(self.idle))):
                self.idle.popleft().send(self._requests[sent % len(self._requests)])
                sent += 1
                due -= 1
            unsent += due
            await asyncio.sleep(TICK_S)
        took_s = time.monotonic() - began
        answers_s = list(self._answers_s)
        until = time.monotonic() + _LAST_S
        while len(self.idle) < connections and time.monotonic() < until:
            await asyncio.sleep(TICK_S)
        lost = connections - len(self.idle)
        return summarize(
            took_s, sent, unsent, answers_s, self._counts, lost=lost, deadline_s=self._deadline_s
        )


def summarize(
    took_s: float,
    sent: int,
    unsent: int,
    answers_s: Sequence[float],
    counts: Mapping[str, int],
    *,
    lost: int,
    deadline_s: float,
) -> Arrivals:
    """Return the figures of a load.

    answers_s: latencies of the answers that came in time `took_s`. counts: of errors, by field of `Arrivals`.
    """
    in_time = sorted(s for s in answers_s if s <= deadline_s)
    ordered = in_time or [0.0]
    return Arrivals(
        took_s, sent, len(in_time), counts["refused"], counts["late"], counts["failed"], lost, unsent,
        ordered[len(ordered) // 2] * 1e3, ordered[int(len(ordered) * 0.99)] * 1e3, ordered[-1] * 1e3,
    )  # fmt: skip


def offer(port: int, rate: float, seconds: float, deadline_ms: int) -> Arrivals:
    """Offer the requests from a process of its own. Raises CannotMeasure if that process fails."""
    command = [sys.executable, "-m", "bench.open_loop", *map(str, (port, rate, seconds, deadline_ms))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"the generator left with {done.returncode}: {done.stderr[-2000:]}")
    return Arrivals(*json.loads(done.stdout))


def main(arguments: list[str]) -> None:
    port, rate, seconds, deadline_ms = arguments
    arrivals = uvloop.run(Generator(int(port), int(deadline_ms)).run(float(rate), float(seconds)))
    json.dump(arrivals, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1:])
