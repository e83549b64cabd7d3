"""One HTTP/1.1 connection: parsed by httptools, bounded while it reads, ended without losing a request."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import http
import logging
import struct
import termios
import time
import urllib.parse
from collections import deque
from typing import cast

import httptools

from pipeline.errors import NotReady, ServingError, Unauthenticated
from pipeline.server.doors.http_listener import Listener
from pipeline.server.doors.http_refusals import headers_too_large, no_http, refusal, too_large, too_slow
from pipeline.server.doors.http_request import Headers, HttpRequest
from pipeline.server.engine.clients import Client
from pipeline.values import Part

log = logging.getLogger(__name__)

STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
_PIECE_BYTES = 2048  # that are parsed at once, unless they are a body's
_JOIN_BYTES = 64 * 1024  # copying more than this costs more than a second system call
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
LINGER_S = 10.0  # how long a refused client may go on sending before the connection is closed


class Connection(asyncio.Protocol):
    """Answers in the order of the requests: a pipelined one waits for those before it."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._limits = limits = listener.limits
        # What is looked at for each request; an attribute of a model of pydantic's costs more.
        self._most_headers, self._most_header_bytes = limits.header_count, limits.header_bytes
        self._most_body_bytes, self._most_bodies_bytes = limits.body_bytes, limits.bodies_bytes
        self._parser = _parser(self)
        self._transport: asyncio.Transport
        self.seen_at = time.monotonic()
        self._receiving_since: float | None = None  # when the request that is still arriving began
        self._in_body = False
        self._header_bytes = 0
        self._body_length = 0  # as declared
        self._body_bytes = 0
        self._arrived_bytes = 0  # since the last piece of a body: headers, trailers, extensions of chunks
        self._client = Client()  # until a request shows a key
        self._url = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._held_bytes = 0  # of bodies that are arriving, or not answered yet
        self._current: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._unparsed = b""  # what has arrived behind those that wait
        self._going_on = False
        self._reading_paused = False
        self._continue_due = False  # the client waits for a 100 before it sends its body
        self._write_paused = False
        self._unsent_bytes = 0  # when `close_if_slow` last looked
        self._unsent_since = 0.0  # when it last saw the number change
        self._refusal: ServingError | None = None
        self._refused_at = 0.0

    # What arrives:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connections = self._listener.connections
        connections.add(self)
        most = self._limits.max_connections
        if len(connections) <= most or self._listener.make_room():
            return
        self._refuse_at_once(NotReady(f"{most} connections are busy, the most allowed"))
        self._listener.see_off(self)

    def data_received(self, data: bytes) -> None:
        self.seen_at = time.monotonic()
        if self._refusal is not None:
            return
        if self._receiving_since is None:
            self._receiving_since = self.seen_at
        if self._unparsed:
            self._unparsed += data
            return
        self._parse(data)
        if self._waiting or self._continue_due:
            self.go_on()

    def _parse(self, data: bytes) -> None:
        """Parse until there is a request to begin with; `go_on` sees to the rest.

        A request of 18 bytes takes 400 once it is parsed: not all of a pipeline are to be there at once.
        """
        start = 0
        while start < len(data) and self._refusal is None:
            if self._waiting:
                self._unparsed = data[start:]
                return
            most = _PIECE_BYTES
            if self._in_body:
                most = max(most, self._body_length - self._body_bytes)
            whole = not start and len(data) <= most
            piece = data if whole else memoryview(data)[start : start + most]
            start += len(piece)
            plain = self._parse_piece(piece)
            if plain:
                data, start = plain + data[start:], 0

    def _parse_piece(self, piece: bytes | memoryview) -> bytes:
        """Returns what is to be parsed in place of a request to upgrade; nothing for others."""
        self._arrived_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stopped:
            return self._without_upgrade(bytes(piece[stopped.args[0] :]))
        except httptools.HttpParserError:
            self._refuse_now("Invalid HTTP request received.")
        else:
            if self._arrived_bytes > self._most_header_bytes:
                self._refuse_at_once(headers_too_large(f"headers over {self._most_header_bytes} bytes"))
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request as it is without its wish for another protocol (RFC 9110 section 7.8), and the rest.

        Java's client wishes for h2c with its first request; the parser stops there, before the body.
        """
        method: bytes = self._parser.get_method()
        if method == b"CONNECT":
            self._refuse_now("CONNECT is not served.")
            return b""
        lines = [b"%b %b HTTP/1.1" % (method, self._url)]
        lines += [b"%b: %b" % header for header in self._headers.items() if header[0] not in _UPGRADE_HEADERS]
        self._parser = _parser(self)
        self._arrived_bytes = 0
        return b"\r\n".join(lines) + b"\r\n\r\n" + rest

    def on_message_begin(self) -> None:
        self._receiving_since = self.seen_at
        self._header_bytes = 0
        self._url = b""
        self._headers = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        size = self._header_bytes = self._header_bytes + len(name) + len(value) + 4
        if size > self._most_header_bytes:
            self._refuse(headers_too_large(f"headers over {self._most_header_bytes} bytes"))
        if len(headers) >= self._most_headers:
            self._refuse(headers_too_large(f"more than {self._most_headers} headers"))
        headers.setdefault(name.lower(), value)

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade():
            return
        headers = self._headers
        length, most = headers.get(b"content-length", b""), self._most_body_bytes
        self._body_length = int(length) if length.isdigit() else 0
        if self._body_length > most:
            self._refuse(too_large(f"content-length {length.decode()} is over {most} bytes"))
        if b"expect" in headers:
            self._continue_due = headers[b"expect"].lower() == b"100-continue"
        guard = self._listener.guard
        if guard is not None:  # before the body: who may not ask may not fill our memory either
            try:
                self._client = guard.client(self._url, headers.items())
            except Unauthenticated as error:
                self._refuse(error)
        self._in_body = True
        self._body_bytes = 0

    def on_body(self, body: bytes) -> None:
        self._arrived_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._most_body_bytes:
            self._refuse(too_large(f"the body is over {self._most_body_bytes} bytes"))
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body)
        self._hold(len(body))
        if self._listener.bodies_bytes > self._most_bodies_bytes:
            self._shed_bodies()

    def _shed_bodies(self) -> None:
        """Refuse the largest of those that are arriving: who sends little is served on."""
        most = self._most_bodies_bytes
        error = NotReady(f"bodies of more than {most} bytes are here; limits.bodies_bytes allows no more")
        while self._listener.bodies_bytes > most:
            for connection in self._listener.largest_bodies():
                if connection is self:
                    self._refuse(error)
                connection.refuse_body(error)

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return
        self._receiving_since = None
        self._in_body = False
        self._continue_due = False
        self._arrived_bytes = 0
        headers, body, self._body = self._headers, self._body, b""
        if isinstance(body, bytearray):
            body = bytes(body)
        method, path = parser.get_method().decode(), _path(self._url)
        keep_alive = parser.should_keep_alive()
        if b"connection" in headers and parser.get_http_version() == "1.0":
            keep_alive = False  # such a client would wait for a header of ours that says so
        self._waiting.append(HttpRequest(self, self._client, method, path, headers, body, keep_alive))

    def connection_lost(self, exc: Exception | None) -> None:
        self._listener.connections.discard(self)
        self._waiting.clear()
        self._unparsed = b""
        self._hold(-self._held_bytes)
        self._body = b""  # parser and connection hold each other, until garbage is collected
        current, self._current = self._current, None
        if current is not None and current.on_left is not None:
            current.on_left()

    # What is answered:

    def respond(self, request: HttpRequest, status: int, head: bytes, body: Part) -> None:
        """Send the answer to the current request, unless its client has left, and go on to the next."""
        if request is not self._current or self._transport.is_closing():
            return
        last = self._listener.draining or not request.keep_alive
        self._write(status, b"%bconnection: close\r\n" % head if last else head, body, request.method)
        self._current = None
        self._hold(-len(request.body))
        request.on_left = None  # it holds the work on the request, which holds the request: garbage in a ring
        self.seen_at = time.monotonic()
        if last:
            self._transport.close()
        elif self._waiting or self._unparsed or self._continue_due:
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
        while self._unparsed and self._current is None and not self._waiting:
            data, self._unparsed = self._unparsed, b""
            self._receiving_since = self.seen_at
            self._parse(data)
            self._begin_waiting()
        self._going_on = False
        if self._waiting or self._unparsed:
            self._transport.pause_reading()
            self._reading_paused = True
        elif self._reading_paused:
            self._transport.resume_reading()
            self._reading_paused = False
            if self._receiving_since is not None:  # its rest has waited for us
                self._receiving_since = self.seen_at
        if self._continue_due and self._in_body and self._current is None and not self._waiting:
            self._continue_due = False
            self._transport.write(_CONTINUE)

    def _begin_waiting(self) -> None:
        while self._waiting and self._current is None and not self._write_paused:
            if not self._listener.may_begin(self):
                break
            request = self._waiting.popleft()
            if self._transport.is_closing():
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

    def resume_writing(self) -> None:
        self._write_paused = False
        self.go_on()

    # What is refused:

    def _refuse(self, error: ServingError) -> None:
        """Leave the parser with an exception; `_refuse_now` answers with the error."""
        self._refusal = error
        raise httptools.HttpParserError(error.message)

    def _refuse_now(self, message: str) -> None:
        self._refuse_at_once(self._refusal or no_http(message))

    def _refuse_at_once(self, error: ServingError) -> None:
        """Answer what is no HTTP, or over a limit, after what came before it, and end the connection."""
        self._refusal = error
        self._refused_at = self.seen_at
        self._receiving_since = None
        self._unparsed = b""
        self._hold(-len(self._body))
        self._body = b""
        last = self._waiting[-1] if self._waiting else self._current
        if last is not None:  # whole requests came before: the answer to the latest is the connection's last
            last.keep_alive = False
            return
        head, body = refusal(error, self._url)
        self._write(error.http_status, head, body)
        self._listener.app.note_refusal(error)
        # Not closed yet: with input unread the kernel would reset the connection, and a client that sends all
        # before it reads would never see the answer. `data_received` discards what still comes.
        if self._transport.can_write_eof():  # TLS knows no half-closed connection
            self._transport.write_eof()
        self._transport.resume_reading()

    @property
    def arriving_bytes(self) -> int:
        """Of a body that is not all here."""
        return len(self._body)

    def refuse_body(self, error: ServingError) -> None:
        """Refuse the request of which a part is here, if there is one, and let go of that."""
        if self._body:
            self._refuse_at_once(error)

    def _hold(self, size: int) -> None:
        self._held_bytes += size
        self._listener.bodies_bytes += size

    def close_if_slow(self, now: float) -> None:
        """Refuse a request that takes too long to arrive (slow loris); drop a client that does not read."""
        if self._refusal is not None and self._current is None and now - self._refused_at > LINGER_S:
            self._transport.close()
        self._abort_if_unread(now)
        if self._receiving_since is None or self._reading_paused or self._transport.is_closing():
            return
        limit_s = self._limits.body_timeout_s if self._in_body else self._limits.header_timeout_s
        if now - self._receiving_since > limit_s:
            what = "body" if self._in_body else "headers"
            self._refuse_at_once(too_slow(what, limit_s))

    def _abort_if_unread(self, now: float) -> None:
        """Also where little is unsent: such a connection would not close, whoever asked it to."""
        unsent = self._transport.get_write_buffer_size()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._limits.body_timeout_s:
            self._transport.abort()

    # How it ends:

    @property
    def busy(self) -> bool:
        """Whether a request is arriving, or being answered."""
        return self._receiving_since is not None or self._current is not None

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


def _parser(connection: Connection) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(connection)
    parser.set_dangerous_leniencies(lenient_data_after_close=True)
    return parser


@functools.lru_cache(maxsize=64)  # nearly all requests have one of a few targets
def _path(url: bytes) -> str:
    """Raises HttpParserError for a target that is no path."""
    if b"?" in url or b"#" in url or not url.startswith(b"/"):
        url = httptools.parse_url(url).path or b"/"
    try:
        path = url.decode("ascii")
    except UnicodeDecodeError as exc:
        raise httptools.HttpParserError("the path is not ASCII") from exc
    return urllib.parse.unquote(path) if "%" in path else path
