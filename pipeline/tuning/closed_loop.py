"""`python -m pipeline.tuning.closed_loop ANSWER`: an HTTP load generator in a separate process.

Closed loop: each connection sends its next request when the previous request is answered. A `Load` is read
from standard input, and a `LoadResult` is written to the file ANSWER, both as MessagePack. `LoadGenerator` is
a forked process for many loads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

_MAX_HEAD = 64 << 10
_ERROR_CHARS = 300
_ANSWERED = b'"err_no":0'
_LENGTH = b"\r\ncontent-length:"


class Load(msgspec.Struct, frozen=True):
    """Input of the load generator: the requests, and the number of connections and seconds to send them."""

    port: int
    messages: tuple[bytes, ...]  # whole HTTP requests, sent in turn
    connections: int
    seconds: float  # counted time
    warm_s: float  # uncounted time before
    timeout_s: float  # for missing answers, after the end


class LoadResult(msgspec.Struct):
    """Result of the load generator: latencies and failures of requests answered within the counted time."""

    seconds: float
    latencies_ms: list[float] = []
    failed: int = 0
    error: str = ""
    answered: int = 0  # requests, also before and after the counted time


class _Connection(asyncio.Protocol):
    """Client connection that sends HTTP requests, one after the other, until the time is over.

    `done` is set at the end, or when the connection is lost.
    """

    def __init__(
        self, messages: Sequence[bytes], first: int, span: tuple[float, float], result: LoadResult
    ) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._messages = messages
        self._next = first
        self._span = span
        self._result = result
        self._received = b""
        self._end_of_head = self._needed = 0
        self._sent_at = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]
        self._send_request()

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
        """Parse the head of a response. Return false if it is incomplete or unusable."""
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            if len(self._received) > _MAX_HEAD:
                self._transport.abort()
            return False
        head = self._received[:end].lower()
        _, header, rest = head.partition(_LENGTH)
        if not header:
            self._fail("an answer without a Content-Length")
            self._transport.abort()
            return False
        self._end_of_head = end + 4
        self._needed = self._end_of_head + int(rest.partition(b"\r\n")[0])
        return True

    def _answered(self) -> None:
        """Record the latency of a complete response, and send the next request."""
        now = time.perf_counter()
        body = self._received[self._end_of_head :]
        self._result.answered += 1
        if begun := self._span[0] <= now <= self._span[1]:
            good = self._received.startswith(b"HTTP/1.1 200 ")
            if good and (not body.startswith(b'{"err_no":') or body.startswith(_ANSWERED, 1)):
                self._result.latencies_ms.append((now - self._sent_at) * 1e3)
            else:
                self._fail(body[:_ERROR_CHARS].decode(errors="replace"))
        self._received, self._needed = b"", 0
        if begun or now < self._span[0]:
            self._send_request()
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send_request(self) -> None:
        """Send the next request."""
        self._sent_at = time.perf_counter()
        self._transport.write(self._messages[self._next % len(self._messages)])
        self._next += 1

    def _fail(self, error: str) -> None:
        """Count a failed request, and store the error of the first failed request."""
        self._result.failed += 1
        self._result.error = self._result.error or error


def build_http_request(path: str, body: bytes, json_bytes: int = 0) -> bytes:
    """Return the bytes of an HTTP/1.1 POST request with a JSON body.

    json_bytes: length of the JSON before the tensors of a KServe v2 body; 0 without tensors in bytes.
    """
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    if json_bytes:
        head += f"Inference-Header-Content-Length: {json_bytes}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def send_load(load: Load) -> LoadResult:
    """Send requests to 127.0.0.1 as described by `load`, and return the latencies.

    Raises OSError if no connection can be opened.
    """
    result = LoadResult(load.seconds)
    messages = load.messages
    loop = asyncio.get_running_loop()
    begin = time.perf_counter() + load.warm_s
    span = (begin, begin + load.seconds)
    stride = max(1, len(messages) // load.connections)
    connections = []
    for number in range(load.connections):
        _, protocol = await loop.create_connection(
            lambda number=number: _Connection(messages, number * stride, span, result),  # type: ignore[misc]
            "127.0.0.1",
            load.port,
        )
        connections.append(protocol.done)
    patience_s = load.warm_s + load.seconds + load.timeout_s
    _, hanging = await asyncio.wait(connections, timeout=patience_s)
    if hanging:
        result.failed += len(hanging)
        result.error = result.error or f"no answer within {load.timeout_s:g} s"
    return result


_HEADER_BYTES = 8  # of a message to or from the process of a `LoadGenerator`: the length of its MessagePack


class LoadGenerator:
    """A child process that runs load tests one after the other, and returns the result of each test.

    Create the generator before the event loop and before other threads, because the child process is forked.
    """

    def __init__(self) -> None:
        self._socket, child_end = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            self._socket.close()
            try:
                uvloop.run(_answer_loads(child_end))
            finally:
                os._exit(0)
        child_end.close()
        self._socket.setblocking(False)

    async def send_load(self, load: Load) -> LoadResult:
        """Send requests as described by `load`, and return the latencies.

        Raises EOFError if the child process has ended.
        """
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(self._socket, _pack(load))
        data = bytearray()
        while len(data) < _HEADER_BYTES or len(data) < _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES]):
            received = await loop.sock_recv(self._socket, _MAX_HEAD)
            if not received:
                raise EOFError("the load generator has ended")
            data += received
        return msgspec.msgpack.decode(data[_HEADER_BYTES:], type=LoadResult)

    def close(self) -> None:
        """End the child process."""
        self._socket.close()
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


async def _answer_loads(connection: socket.socket) -> None:
    """Run each load test that arrives on a socket, and reply with the result, until the socket is closed."""
    reader, writer = await asyncio.open_connection(sock=connection)
    while True:
        try:
            size = int.from_bytes(await reader.readexactly(_HEADER_BYTES))
            load = msgspec.msgpack.decode(await reader.readexactly(size), type=Load)
        except asyncio.IncompleteReadError:
            return
        try:
            result = await send_load(load)
        except OSError as exc:
            result = LoadResult(load.seconds, failed=1, error=f"it can't be reached: {exc}")
        writer.write(_pack(result))
        await writer.drain()


def _pack(message: Load | LoadResult) -> bytes:
    data = msgspec.msgpack.encode(message)
    return len(data).to_bytes(_HEADER_BYTES) + data


if __name__ == "__main__":
    requested_load = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Load)
    Path(sys.argv[1]).write_bytes(msgspec.msgpack.encode(uvloop.run(send_load(requested_load))))
