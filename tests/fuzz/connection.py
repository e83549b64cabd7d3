"""The HTTP protocol without a socket: bytes in, whole answers out."""

from __future__ import annotations

import asyncio
from typing import Any

from pipeline.config.config_file import Limits
from pipeline.errors import ServingError
from pipeline.front.http.connection import Connection, HttpRequest
from pipeline.front.http.listener import Listener


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False
        self.paused = False

    def write(self, data: Any) -> None:
        assert not self.closed, "an answer was written to a closed connection"
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default


class _App:
    """Answers at once, but the first of each connection only when all has arrived."""

    def __init__(self) -> None:
        self.taken = 0
        self.first: HttpRequest | None = None
        self.refused: ServingError | None = None

    def handle(self, request: HttpRequest) -> None:
        self.taken += 1
        if self.taken == 1:
            self.first = request
        else:
            request.respond(200, b"", b"ok")

    def check_body(self, method: str, path: str, length: int | None) -> None:
        pass

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        return b"content-type: text/plain\r\n", error.message.encode()

    def log_refusal(self, error: ServingError, client: str) -> None:
        self.refused = error

    def log_unread(self, why: str) -> None:
        raise AssertionError(f"everything is read: {why}")


_loop = asyncio.new_event_loop()


def feed(data: bytes, limits: Limits) -> None:
    """Give a connection the bytes in pieces. Raises the error that it refused them with."""
    _loop.run_until_complete(_feed(data, limits))


async def _feed(data: bytes, limits: Limits) -> None:
    app, transport = _App(), _Transport()
    connection = Connection(app, Listener(limits))
    connection.connection_made(transport)
    size = 1 + data.count(b"a") % 97  # as odd as the data
    for start in range(0, len(data), size if len(data) < 4096 else 1024):
        if transport.closed:
            break
        connection.data_received(data[start : start + (size if len(data) < 4096 else 1024)])
        await asyncio.sleep(0)  # a turn of the loop begins with so many requests, and no more
        if app.taken == 1 and app.first is not None and start > len(data) // 2:
            first, app.first = app.first, None
            first.respond(200, b"", b"first")
    if app.first is not None and not transport.closed:
        app.first.respond(200, b"", b"first")
    answers = transport.sent.count(b"HTTP/1.1 ") - transport.sent.count(b"HTTP/1.1 100 ")
    assert answers <= app.taken + 1, f"{answers} answers to {app.taken} requests"
    connection.connection_lost(None)
    if app.refused is not None:
        raise app.refused
