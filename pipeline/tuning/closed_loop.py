"""`python -m pipeline.tuning.closed_loop ANSWER`: asks a service over and over, in a process of its own.

Closed loop: each connection sends its next request when the last is answered. The order is read from standard
input, a `Seen` is written to the file ANSWER, both as MessagePack.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from pipeline.process.processes import die_with

_MAX_HEAD = 64 << 10
_ERROR_CHARS = 300
_ANSWERED = b'"err_no":0'
_LENGTH = b"\r\ncontent-length:"


class Load(msgspec.Struct, frozen=True):
    """What to send, and for how long.

    requests: path and body of each, sent in turn. warm_s: what is not counted at first. timeout_s: after the
    end, for answers that are still out. parent: the process with which this one ends.
    """

    port: int
    requests: tuple[tuple[str, bytes], ...]
    connections: int
    seconds: float
    warm_s: float
    timeout_s: float
    parent: int = 0


class Seen(msgspec.Struct):
    """What became of the requests that were answered within the counted time."""

    seconds: float
    latencies_ms: list[float] = []
    failed: int = 0
    error: str = ""


class _Connection(asyncio.Protocol):
    """Sends one request after the other until the end; its `done` is set then, or when it is lost."""

    def __init__(self, messages: Sequence[bytes], first: int, span: tuple[float, float], seen: Seen) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._messages = messages
        self._next = first
        self._span = span
        self._seen = seen
        self._received = b""
        self._end_of_head = self._needed = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._send()

    def data_received(self, data: bytes) -> None:
        self._received += data
        if not self._needed and not self._read_head():
            return
        if len(self._received) >= self._needed:
            self._answered()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._fail(f"the connection was lost: {exc or 'closed by the service'}")
            self.done.set_result(None)

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _MAX_HEAD:
                self._transport.abort()
            return False
        head = self._received[:end].lower()
        _, found, rest = head.partition(_LENGTH)
        if not found:
            self._fail("an answer without a Content-Length")
            self._transport.abort()
            return False
        self._end_of_head = end + 4
        self._needed = self._end_of_head + int(rest.partition(b"\r\n")[0])
        return True

    def _answered(self) -> None:
        now = time.perf_counter()
        body = self._received[self._end_of_head :]
        if begun := self._span[0] <= now <= self._span[1]:
            good = self._received.startswith(b"HTTP/1.1 200 ")
            if good and (not body.startswith(b'{"err_no":') or body.startswith(_ANSWERED, 1)):
                self._seen.latencies_ms.append((now - self._sent_at) * 1e3)
            else:
                self._fail(body[:_ERROR_CHARS].decode(errors="replace"))
        self._received, self._needed = b"", 0
        if begun or now < self._span[0]:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        self._sent_at = time.perf_counter()
        self._transport.write(self._messages[self._next % len(self._messages)])
        self._next += 1

    def _fail(self, error: str) -> None:
        self._seen.failed += 1
        self._seen.error = self._seen.error or error


def build_http_request(path: str, body: bytes) -> bytes:
    """An HTTP request as it is sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def ask(load: Load) -> Seen:
    """Raises OSError where the service can't be reached at all."""
    seen = Seen(load.seconds)
    messages = [build_http_request(*request) for request in load.requests]
    loop = asyncio.get_running_loop()
    begin = time.perf_counter() + load.warm_s
    span = (begin, begin + load.seconds)
    stride = max(1, len(messages) // load.connections)
    connections = []
    for number in range(load.connections):
        _, protocol = await loop.create_connection(
            lambda number=number: _Connection(messages, number * stride, span, seen),  # type: ignore[misc]
            "127.0.0.1",
            load.port,
        )
        connections.append(protocol.done)
    patience_s = load.warm_s + load.seconds + load.timeout_s
    _, hanging = await asyncio.wait(connections, timeout=patience_s)
    if hanging:
        seen.failed += len(hanging)
        seen.error = seen.error or f"no answer within {load.timeout_s:g} s"
    return seen


if __name__ == "__main__":
    import uvloop

    given = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Load)
    die_with(given.parent)
    Path(sys.argv[1]).write_bytes(msgspec.msgpack.encode(uvloop.run(ask(given))))
