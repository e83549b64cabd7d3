"""One HTTP/1.1 connection: answers in order, refuses what its reader does, ends without losing a request."""

from __future__ import annotations

import asyncio
import fcntl
import http
import logging
import struct
import termios
import time
from collections import deque
from typing import cast

from pipeline.errors import NotReady, ServingError, Unauthenticated
from pipeline.front.http.half_closed import CONTINUE, HalfClosed
from pipeline.front.http.http_request import HttpRequest
from pipeline.front.http.listener import Listener
from pipeline.front.http.reader import RequestReader
from pipeline.messages.values import Part

log = logging.getLogger(__name__)

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
_JOIN_BYTES = 64 * 1024  # copying more than this costs more than a second system call
LINGER_S = 10.0  # how long a refused client may go on sending before the connection is closed


class Connection(asyncio.Protocol):
    """Answers in the order of the requests: a pipelined one waits for those before it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._transport: asyncio.Transport
        self.seen_at = time.monotonic()
        self._current: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._reader = RequestReader(self, listener, self._waiting)
        self._unparsed = b""  # what has arrived behind those that wait
        self._going_on = False
        self._reading_paused = False
        self._write_paused = False
        self._half_closed: HalfClosed | None = None
        self._unsent_bytes = 0  # when `close_if_slow` last looked
        self._unsent_since = 0.0  # when it last saw the number change
        self._refusal: ServingError | None = None
        self._refused_at = 0.0

    # What arrives:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connections = self._listener.connections
        connections.add(self)
        most = self._listener.limits.max_connections
        if len(connections) <= most or self._listener.make_room():
            return
        self._refuse(NotReady(f"{most} connections are busy, the most allowed"))
        self._listener.see_off(self)

    def data_received(self, data: bytes) -> None:
        self.seen_at = time.monotonic()
        if self._refusal is not None:
            return
        if self._unparsed:
            self._unparsed += data
            self._reader.receiving_since = self._reader.receiving_since or self.seen_at
            return
        self._read(data)
        if self._waiting or self._reader.continue_due:
            self.go_on()

    def _read(self, data: bytes) -> None:
        try:
            self._unparsed = self._reader.read(data, self.seen_at)
        except ServingError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """Whether to stay: who sends no more (`nc -N`) is still answered what was asked as a whole."""
        if self._current is None and not self._waiting:
            return False
        # TLS knows no half-closed connection. Of a client of HTTP/1.0 it can't be told whether it has left.
        if not self._transport.can_write_eof() or not self._reader.http_1_1:
            return False
        self._half_closed = HalfClosed(
            self._transport, lambda: self._current is not None, self._transport.abort
        )
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._listener.let_go_unread(self)
        if self._half_closed is not None:
            self._half_closed.cancel()
            self._half_closed = None  # it holds this connection
        current, self._current = self._current, None
        held = self._waiting if current is None else (current, *self._waiting)
        self._listener.bodies_bytes -= sum(len(request.body) for request in held)
        self._waiting.clear()
        self._unparsed = b""
        self._reader.end()
        if current is not None and current.on_left is not None:
            current.on_left()

    # What is answered:

    def respond(self, request: HttpRequest, status: int, head: bytes, body: Part) -> None:
        """Send the answer to the current request, unless its client has left, and go on to the next."""
        if request is not self._current or self._transport.is_closing():
            return
        last = self._listener.draining or not request.keep_alive
        last = last or (self._half_closed is not None and not self._waiting)
        self._write(status, b"%bconnection: close\r\n" % head if last else head, body, request.method)
        self._current = None
        self._listener.bodies_bytes -= len(request.body)
        request.on_left = None  # it holds the work on the request, which holds the request: garbage in a ring
        self.seen_at = time.monotonic()
        if last:
            self._transport.close()
        elif self._waiting or self._unparsed or self._reader.continue_due:
            self.go_on()

    def _write(self, status: int, head: bytes, body: Part, method: str = "") -> None:
        start = b"%b%b%bcontent-length: %d\r\n\r\n" % (
            STATUS_LINES[status],
            self._listener.date_line,
            head,
            len(body),
        )
        if method == "HEAD":
            self._transport.write(start)
        elif len(body) < _JOIN_BYTES:
            self._transport.write(start + body)
        else:
            self._transport.write(start)
            self._transport.write(body)

    def go_on(self) -> None:
        """Begin with what waits for its turn; read on when nothing does."""
        if self._going_on:  # called for an answer that was given at once; the loop below sees to the next
            return
        self._going_on = True
        self._begin_waiting()
        reader = self._reader
        while self._unparsed and self._current is None and not self._waiting:
            data, self._unparsed = self._unparsed, b""
            reader.receiving_since = self.seen_at
            self._read(data)
            self._begin_waiting()
        self._going_on = False
        if self._waiting or self._unparsed:
            self._transport.pause_reading()
            self._reading_paused = True
        elif self._reading_paused:
            self._transport.resume_reading()
            self._reading_paused = False
            if reader.receiving_since is not None:  # its rest has waited for us
                reader.receiving_since = self.seen_at
        if reader.continue_due and reader.in_body and self._current is None and not self._waiting:
            reader.continue_due = False
            self._transport.write(CONTINUE)

    def _begin_waiting(self) -> None:
        while self._waiting and self._current is None and not self._write_paused:
            if not self._listener.may_begin(self):
                break
            request = self._waiting.popleft()
            if self._transport.is_closing():
                self._listener.bodies_bytes -= len(request.body)
                continue
            self._current = request
            request.began = self.seen_at
            try:
                self._listener.app.take(request)
            except Exception:
                log.exception("A fault of ours in %s %s", request.method, request.path)
                self._transport.close()

    def pause_writing(self) -> None:
        """A client that does not read its answers gets no further ones."""
        self._write_paused = True
        self._listener.hold_unread(self)

    def resume_writing(self) -> None:
        self._write_paused = False
        self._listener.let_go_unread(self)
        self.go_on()

    # What is refused:

    def _refuse(self, error: ServingError) -> None:
        """Answer what is no HTTP, or over a limit, after what came before it, and end the connection."""
        self._refusal = error
        self._refused_at = self.seen_at
        self._unparsed = b""
        self._reader.drop()
        last = self._waiting[-1] if self._waiting else self._current
        if last is not None:  # whole requests came before: the answer to the latest is the connection's last
            last.keep_alive = False
            return
        app = self._listener.app
        head, body = app.refusal(error, self._reader.url)
        head += b"connection: close\r\n"
        if isinstance(error, Unauthenticated):
            head += b"www-authenticate: Bearer\r\n"
        self._write(error.http_status, head, body)
        app.note_refusal(error)
        # Not closed yet: with input unread the kernel would reset the connection, and a client that sends all
        # before it reads would never see the answer. `data_received` discards what still comes.
        if self._transport.can_write_eof():  # TLS knows no half-closed connection
            self._transport.write_eof()
        self._transport.resume_reading()

    @property
    def arriving_bytes(self) -> int:
        return self._reader.arriving_bytes

    def refuse_body(self, error: ServingError) -> None:
        """Refuse the request of which a part is here, if there is one, and let go of that."""
        if self.arriving_bytes:
            self._refuse(error)

    def close_if_slow(self, now: float) -> None:
        """Refuse a request that takes too long to arrive (slow loris); drop a client that does not read."""
        if self._refusal is not None and self._current is None and now - self._refused_at > LINGER_S:
            self._transport.close()
        self._abort_if_unread(now)
        if self._reading_paused or self._transport.is_closing():
            return
        error = self._reader.overdue(now)
        if error is not None:
            self._refuse(error)

    def _abort_if_unread(self, now: float) -> None:
        """Also where little is unsent: such a connection would not close, whoever asked it to."""
        unsent = self.unsent_bytes
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._listener.limits.body_timeout_s:
            self.send_away("it has not read on for limits.body_timeout_s")

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def send_away(self, why: str) -> None:
        """End the connection of a client that does not read."""
        self._listener.app.note_unread(
            f"{self.peer} is sent away, {self.unsent_bytes} bytes are held for it: {why}"
        )
        self._transport.abort()

    # How it ends:

    @property
    def busy(self) -> bool:
        """Whether a request is arriving, or being answered."""
        return self._reader.receiving_since is not None or self._current is not None

    def close_if_silent(self, silent_since: float) -> bool:
        """Close when not busy and nothing arrived since `silent_since` (time.monotonic); whether it did."""
        if self.busy or self.seen_at > silent_since or self._transport.is_closing() or self._unread():
            return False
        self._transport.close()
        return True

    def close(self) -> None:
        self._transport.close()

    @property
    def peer(self) -> str:
        address = self._transport.get_extra_info("peername")
        return str(address[0]) if address else "?"

    def _unread(self) -> int:
        """Bytes that the kernel has for us: a request that was sent before we closed is still answered."""
        sock = self._transport.get_extra_info("socket")
        counted = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", counted)[0])
