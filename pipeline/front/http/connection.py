"""One HTTP/1.1 connection: its requests are read, bounded while they arrive, and answered in order."""

from __future__ import annotations

import asyncio
import fcntl
import functools
import http
import logging
import math
import struct
import termios
import time
import urllib.parse
from collections import deque
from collections.abc import Callable
from typing import Protocol, cast

import httptools
import msgspec

from pipeline.errors import InvalidInput, NotReady, ServingError, TooLarge
from pipeline.front.dag_run import Client
from pipeline.front.http.half_closed import CONTINUE, HalfClosed
from pipeline.front.http.held_refusals import AT_ONCE_S, HELD_S, Refuse
from pipeline.front.http.listener import REQUESTS_A_TURN, TURN_S, Listener
from pipeline.front.http.request_head import (
    HOST,
    HTTP_1_0,
    HTTP_1_1,
    USAGE,
    bad_request,
    check_host,
    check_transfer_encoding,
    check_version,
)
from pipeline.front.scheduler.admission import named
from pipeline.messages.values import Part

log = logging.getLogger(__name__)

# An app may answer its errors with any of the statuses; HTTP has no words for some.
STATUS_LINES = {status: f"HTTP/1.1 {status} \r\n".encode() for status in range(400, 600)}
STATUS_LINES |= {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
LINGER_S = 10.0  # how long a refused client may go on sending before the connection is closed
_CHUNKED = b"transfer-encoding: chunked\r\n"
_JOIN_BYTES = 64 * 1024  # copying more than this costs more than a second system call
_PIECE_BYTES = 2048  # that are parsed at once, unless they are a body's
_UPGRADE, _CONNECTION, _TRANSFER_ENCODING = b"upgrade", b"connection", b"transfer-encoding"
_UPGRADE_OPTIONS = (_UPGRADE, b"http2-settings")  # headers, and options of Connection
_IPV4_MAPPED = "::ffff:"  # before the IPv4 address of a client on a socket of IPv6
_REQUEST_TIMEOUT = 408
_HEADER_TOO_LARGE = 431

Headers = dict[bytes, bytes]
"""Values by name in lower case. The first value of a repeated header counts; the lists in Connection and
Transfer-Encoding are joined."""


class HttpRequest(msgspec.Struct, eq=False):
    """A request that has arrived whole. It is answered once, by `respond`, sooner or later."""

    _connection: Connection
    client: Client  # for fairness and limits
    method: str
    path: str  # percent-decoded, without the query
    headers: Headers
    body: bytes
    keep_alive: bool
    takes_chunks: bool = False
    began: float = 0.0  # when it had come, and those before it were answered (time.monotonic)
    on_left: Callable[[], None] | None = None  # called if the client leaves before the answer

    @property
    def peer(self) -> str:
        """The client's address, and the name of its API key."""
        return named(self._connection.peer, self.client)

    def respond(self, status: int, head: bytes, body: Part, *, chunked: bool = False) -> None:
        """Answer. head: header lines, each with its CRLF; the length and the date are put in here.

        chunked: as one chunk, without its length in the header, for clients of HTTP/1.1.
        """
        if chunked and self.takes_chunks:
            framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), bytes(body))
            self._connection.respond(self, status, head, framed, _CHUNKED)
            return
        self._connection.respond(self, status, head, body)

    def refuse_for_now(self, refuse: Refuse, deadline: float) -> None:
        """Have `refuse` respond that there is no room: later where the client asks again at once, and has
        the time. deadline: of the request (time.monotonic)."""
        self._connection.refuse_for_now(self, refuse, deadline)


class RequestTaker(Protocol):
    """The application behind the connections."""

    def handle(self, request: HttpRequest) -> None: ...
    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise ServingError where a body need not be read. length: as declared; None for chunks."""

    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]: ...
    def note_refusal(self, error: ServingError, client: str) -> None: ...
    def note_unread(self, why: str) -> None: ...


class Connection(asyncio.Protocol):
    """Answers in the order of the requests: a pipelined one waits for those before it."""

    def __init__(self, app: RequestTaker, listener: Listener) -> None:
        self._app = app
        self._listener = listener
        self._transport: asyncio.Transport
        self.seen_at = time.monotonic()
        self._current: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._reader = RequestReader(self, listener, self._waiting)
        self._unparsed = b""  # what has arrived behind those that wait
        self._going_on = False
        self.postponed = False  # `go_on` will be called in a later turn of the loop
        self._pipelined = False  # the next request was here before the answer to the previous one was sent
        self._reading_paused = False
        self._write_paused = False
        self._half_closed: HalfClosed | None = None
        self._unsent_bytes = 0  # when `close_if_slow` last looked
        self._unsent_since = 0.0  # when it last saw the number change
        self._refusal: ServingError | None = None
        self._refused_at = 0.0
        self._no_room_at = -math.inf  # when it was last told so (time.monotonic)

    # What arrives:

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        connections = self._listener.connections
        connections.add(self)
        max_connections = self._listener.limits.max_connections
        if len(connections) <= max_connections or self._listener.make_room():
            return
        self._refuse(NotReady(f"{max_connections} connections are busy, the most allowed"))
        self._listener.see_off(self)

    def data_received(self, data: bytes) -> None:
        self.seen_at = time.monotonic()
        if self._refusal is not None:
            return
        if self._unparsed:
            self._unparsed += data
            self._reader.receiving_since = self._reader.receiving_since or self.seen_at
            return
        if self._current is None and not self._waiting:
            self._pipelined = False
        self._on_bytes(data)
        if self._waiting or self._reader.continue_due:
            self.go_on()

    def _on_bytes(self, data: bytes) -> None:
        try:
            self._unparsed = self._reader.parse(data, self.seen_at)
        except ServingError as error:
            self._refuse(error)

    def eof_received(self) -> bool:
        """Return whether to stay open: a client that sends no more (`nc -N`) still gets answers to whole
        requests.
        """
        if self._current is None and not self._waiting and not self._unparsed:
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
        requests = self._waiting if current is None else (current, *self._waiting)
        self._listener.bodies_bytes -= sum(len(request.body) for request in requests)
        self._waiting.clear()
        self._unparsed = b""
        self._reading_paused = False
        self._reader.end()
        if current is not None and current.on_left is not None:
            current.on_left()

    # What is answered:

    def respond(
        self, request: HttpRequest, status: int, head: bytes, body: Part, length: bytes | None = None
    ) -> None:
        """Send the answer to the current request, unless its client has left, and go on to the next."""
        if request is not self._current or self._transport.is_closing():
            return
        last = self._listener.draining or not request.keep_alive
        last = last or (self._half_closed is not None and not self._waiting)
        if last:
            head = b"%bconnection: close\r\n" % head
        self._write(status, head, body, request.method, length)
        self._current = None
        self._listener.bodies_bytes -= len(request.body)
        request.on_left = None  # it holds the work on the request, which holds the request: garbage in a ring
        self.seen_at = time.monotonic()
        if last:
            self._transport.close()
        elif self._waiting or self._unparsed or self._reader.continue_due:
            self._pipelined = True
            self.go_on()

    def refuse_for_now(self, request: HttpRequest, refuse: Refuse, deadline: float) -> None:
        """Have a request refused for want of room, at once or HELD_S later."""

        def send_refusal() -> None:
            self._no_room_at = time.monotonic()
            try:
                refuse()
            except Exception:
                log.exception("A fault of ours in refusing %s %s", request.method, request.path)
                self._transport.close()

        now, listener = self.seen_at, self._listener
        if listener.draining or now > self._no_room_at + AT_ONCE_S or now + HELD_S >= deadline:
            send_refusal()
            return
        listener.bodies_bytes -= len(request.body)
        request.body = b""  # many may be held
        listener.held.hold(send_refusal, now)

    def _write(
        self, status: int, head: bytes, body: Part, method: str = "", length: bytes | None = None
    ) -> None:
        """length: the header line that tells where the body ends, where that is not its length."""
        length_line = b"content-length: %d\r\n" % len(body) if length is None else length
        start = b"%b%b%b%b\r\n" % (STATUS_LINES[status], self._listener.date_line, head, length_line)
        if method == "HEAD":
            self._transport.write(start)
        elif len(body) < _JOIN_BYTES:
            self._transport.write(start + body)
        else:
            self._transport.write(start)
            self._transport.write(body)

    def go_on(self) -> None:
        """Begin the next request; read on when none waits.

        Where that request is answered at once, the one behind it begins in a later turn of the loop.
        """
        if self._going_on or self.postponed:
            return
        self._going_on = True
        reader = self._reader
        while self._unparsed and self._current is None and not self._waiting:
            data, self._unparsed = self._unparsed, b""
            reader.receiving_since = self.seen_at
            self._on_bytes(data)
        self._begin_waiting()
        if self._unparsed and self._current is None and not self._waiting:
            self._listener.postpone(self, pipelined=True)
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
        if not self._waiting or self._current is not None or self._write_paused:
            return
        listener = self._listener
        if self._transport.is_closing():
            listener.bodies_bytes -= sum(len(request.body) for request in self._waiting)
            self._waiting.clear()
            return
        if listener.begun >= REQUESTS_A_TURN or listener.spent_s > TURN_S:
            listener.postpone(self, pipelined=self._pipelined)
            return
        self._current = request = self._waiting.popleft()
        request.began = self.seen_at
        began = time.monotonic()
        try:
            self._app.handle(request)
        except Exception:
            log.exception("A fault of ours in %s %s", request.method, request.path)
            self._transport.close()
        listener.begun += 1
        listener.spent_s += time.monotonic() - began
        if listener.begun >= REQUESTS_A_TURN or listener.spent_s > TURN_S:
            listener.end_turn()
        if self._waiting and self._current is None:
            listener.postpone(self, pipelined=True)

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
        head, body = self._app.refusal(error, self._reader.url)
        head += b"connection: close\r\n"
        self._write(error.http_status, head, body)
        self._app.note_refusal(error, self.peer)
        # Not closed yet: with input unread the kernel would reset the connection, and a client that sends all
        # before it reads would never see the answer. `data_received` discards what still comes.
        if self._transport.can_write_eof():  # TLS knows no half-closed connection
            self._transport.write_eof()
        self._transport.resume_reading()

    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise ServingError where a body need not be read, see `RequestTaker`."""
        self._app.check_body(method, path, length)

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
        """Send a client away that reads nothing, also where little is unsent: it would not let us close."""
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
        self._app.note_unread(f"{self.peer} is sent away, {self.unsent_bytes} bytes are held for it: {why}")
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
        """The client's address; "?" where none is known any more."""
        try:
            address = self._transport.get_extra_info("peername")
        except AttributeError:  # uvloop asks the socket, which a connection that was lost has no more
            return "?"
        return str(address[0]).removeprefix(_IPV4_MAPPED) if address else "?"

    def _unread(self) -> int:
        """Bytes that the kernel has for us: a request that was sent before we closed is still answered."""
        sock = self._transport.get_extra_info("socket")
        counted = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", counted)[0])


class RequestReader:
    """Has httptools parse what arrives, and puts each whole request into `requests`."""

    def __init__(self, connection: Connection, listener: Listener, requests: deque[HttpRequest]) -> None:
        self._connection = connection
        self._listener = listener
        self._requests = requests
        limits = listener.limits
        # What is looked at for each request; an attribute of a model of pydantic's costs more.
        self._most_headers, self._most_header_bytes = limits.header_count, limits.header_bytes
        self._most_body_bytes, self._most_bodies_bytes = limits.body_bytes, limits.bodies_bytes
        self._parser = _parser(self)
        self._read_at = 0.0
        self.receiving_since: float | None = None  # when the request that is still arriving began
        self.in_body = False  # the headers of that request are here
        self.continue_due = False  # its client waits for a 100 before it sends the body
        self._header_bytes = 0
        self._body_length = 0  # as declared
        self._body_bytes = 0
        self._arrived_bytes = 0  # since the last piece of a body: headers, trailers, extensions of chunks
        self._client = Client()  # until a request shows a key
        self.url = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._refusal: ServingError | None = None

    def parse(self, data: bytes, now: float) -> bytes:
        """Parse until there is a request to begin with; returns what came behind it. Raises ServingError.

        A request of 18 bytes takes 400 once it is parsed: not all of a pipeline are to be there at once.
        """
        self._read_at = now
        if self.receiving_since is None:
            self.receiving_since = now
        start = 0
        while start < len(data):
            if self._requests:
                return data[start:]
            max_piece_bytes = _PIECE_BYTES
            if self.in_body:
                max_piece_bytes = max(max_piece_bytes, self._body_length - self._body_bytes)
            is_single = not start and len(data) <= max_piece_bytes
            piece = data if is_single else memoryview(data)[start : start + max_piece_bytes]
            start += len(piece)
            plain = self._read_piece(piece)
            if plain:
                data, start = plain + data[start:], 0
        return b""

    def overdue(self, now: float) -> ServingError | None:
        """Why to refuse a request that takes too long to arrive (slow loris); None: there is none."""
        if self.receiving_since is None:
            return None
        limits = self._listener.limits
        limit_s = limits.body_timeout_s if self.in_body else limits.header_timeout_s
        if now - self.receiving_since <= limit_s:
            return None
        return _too_slow("body" if self.in_body else "headers", limit_s)

    @property
    def http_1_1(self) -> bool:
        """Whether the latest request is of HTTP/1.1, or of a later version of HTTP/1."""
        return bool(self._parser.get_http_version() != HTTP_1_0)

    @property
    def arriving_bytes(self) -> int:
        """How much is here of a body that is not all here."""
        return len(self._body)

    def drop(self) -> None:
        """Let go of what has arrived of a request."""
        self.receiving_since = None
        self.continue_due = False
        self._listener.bodies_bytes -= len(self._body)
        self._body = b""

    def end(self) -> None:
        """The connection is gone: let go of all that holds this reader, which would be garbage in a ring."""
        self.drop()
        del self._parser, self._connection

    def _read_piece(self, piece: bytes | memoryview) -> bytes:
        """Returns what is to be parsed in place of a request to upgrade; nothing for others."""
        self._arrived_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stopped:
            return self._without_upgrade(bytes(piece[stopped.args[0] :]))
        except httptools.HttpParserError:
            raise self._refusal or bad_request("Invalid HTTP request received.") from None
        if self._arrived_bytes > self._most_header_bytes:
            raise _headers_too_large(f"headers over {self._most_header_bytes} bytes")
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request as it is without its wish for another protocol (RFC 9110 section 7.8), and the rest.

        Java's client wishes for h2c with its first request; the parser stops there, before the body.
        """
        method: bytes = self._parser.get_method()
        if method == b"CONNECT":
            raise bad_request("CONNECT is not served.")
        headers = {name: value for name, value in self._headers.items() if name not in _UPGRADE_OPTIONS}
        options = [option.strip() for option in headers.pop(_CONNECTION, b"").split(b",")]
        options = [option for option in options if option and option.lower() not in _UPGRADE_OPTIONS]
        if options:
            headers[_CONNECTION] = b", ".join(options)
        lines = [b"%b %b HTTP/%b" % (method, self.url, self._parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in headers.items()]
        self._parser = _parser(self)
        self._arrived_bytes = 0
        return b"\r\n".join(lines) + b"\r\n\r\n" + rest

    # What the parser calls:

    def on_message_begin(self) -> None:
        self.receiving_since = self._read_at
        self._header_bytes = 0
        self.url = b""
        self._headers = {}
        self._body = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        headers = self._headers
        size = self._header_bytes = self._header_bytes + len(name) + len(value) + 4
        if size > self._most_header_bytes:
            self._leave_parser(_headers_too_large(f"headers over {self._most_header_bytes} bytes"))
        if len(headers) >= self._most_headers:
            self._leave_parser(_headers_too_large(f"more than {self._most_headers} headers"))
        count = len(headers)
        name = name.lower()
        headers.setdefault(name, value)
        if len(headers) == count:
            self._repeat(name, value)

    def _repeat(self, name: bytes, value: bytes) -> None:
        if name == b"host":
            self._leave_parser(bad_request("The request has more than one Host header."))
        if name in (_CONNECTION, _TRANSFER_ENCODING):
            self._headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        try:
            self._check_head()
        except ServingError as error:
            self._leave_parser(error)
        if self._parser.should_upgrade():  # it is parsed again, see `_without_upgrade`
            return
        self.in_body = True
        self._body_bytes = 0

    def _check_head(self) -> None:
        """Raise ServingError for a request whose body need not be read."""
        headers, version = self._headers, self._parser.get_http_version()
        if version != HTTP_1_1 or not HOST.fullmatch(headers.get(b"host", b"?")):
            check_version(version)
            check_host(version, headers)
        chunked = _TRANSFER_ENCODING in headers
        if chunked:
            check_transfer_encoding(version, headers[_TRANSFER_ENCODING])
        length, max_bytes = headers.get(b"content-length", b""), self._most_body_bytes
        self._body_length = int(length) if length.isdigit() else 0
        if self._body_length > max_bytes:
            raise _body_too_large(f"content-length {length.decode()} is over {max_bytes} bytes")
        if b"expect" in headers:
            self.continue_due = version != HTTP_1_0 and headers[b"expect"].lower() == b"100-continue"
        guard = self._listener.guard
        if guard is not None:  # an unauthenticated client must not fill the memory
            self._client = guard.client(self.url, headers.items(), self._client)
        if self._body_length or chunked:
            method = self._parser.get_method().decode()
            self._connection.check_body(method, path_of_url(self.url), None if chunked else self._body_length)

    def on_body(self, body: bytes) -> None:
        self._arrived_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._most_body_bytes:
            self._leave_parser(_body_too_large(f"the body is over {self._most_body_bytes} bytes"))
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body)
        listener = self._listener
        listener.bodies_bytes += len(body)
        if listener.bodies_bytes > self._most_bodies_bytes:
            self._shed_bodies()

    def on_message_complete(self) -> None:
        parser = self._parser
        if parser.should_upgrade():
            return
        self.receiving_since = None
        self.in_body = False
        self.continue_due = False
        self._arrived_bytes = 0
        method, path = parser.get_method().decode(), path_of_url(self.url)
        headers, body, self._body = self._headers, self._body, b""
        if isinstance(body, bytearray):
            body = bytes(body)
        keep_alive = parser.should_keep_alive()
        is_old = parser.get_http_version() == HTTP_1_0
        if is_old and b"connection" in headers:
            keep_alive = False  # such a client would wait for a header of ours that says so
        request = HttpRequest(
            self._connection, self._client, method, path, headers, body, keep_alive, not is_old
        )
        self._requests.append(request)

    def _shed_bodies(self) -> None:
        """Refuse the largest of the bodies that are arriving; clients that send little are served on."""
        max_bytes = self._most_bodies_bytes
        error = NotReady(
            f"bodies of more than {max_bytes} bytes are here; limits.bodies_bytes allows no more"
        )
        while self._listener.bodies_bytes > max_bytes:
            for connection in self._listener.largest_bodies():
                if connection is self._connection:
                    self._leave_parser(error)
                connection.refuse_body(error)

    def _leave_parser(self, error: ServingError) -> None:
        """Leave the parser with an exception, of which it keeps no cause; `_read_piece` raises the error."""
        self._refusal = error
        raise httptools.HttpParserError(error.message)


def _parser(reader: RequestReader) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(reader)
    # Versions are checked by `check_version`, for a status of their own.
    parser.set_dangerous_leniencies(lenient_data_after_close=True, lenient_version=True)
    return parser


@functools.lru_cache(maxsize=64)  # nearly all requests have one of a few targets
def path_of_url(url: bytes) -> str:
    """The path of a request's target, percent-decoded. Raises HttpParserError for a target that is none."""
    if b"?" in url or b"#" in url or not url.startswith(b"/"):
        url = httptools.parse_url(url).path or b"/"
    try:
        path = url.decode("ascii")
    except UnicodeDecodeError as exc:
        raise httptools.HttpParserError("the path is not ASCII") from exc
    return urllib.parse.unquote(path) if "%" in path else path


def _too_slow(what: str, limit_s: float) -> ServingError:
    error = InvalidInput(f"the {what} did not arrive within {limit_s:g} s. {USAGE}")
    error.http_status = _REQUEST_TIMEOUT
    return error


def _headers_too_large(what: str) -> ServingError:
    return _too_large(f"the request has {what}", _HEADER_TOO_LARGE)


def _body_too_large(what: str) -> ServingError:
    return _too_large(what, 413, " (limits.body_bytes); of a model repository it is --http-max-input-size")


def _too_large(what: str, http_status: int, which: str = "") -> ServingError:
    error = TooLarge(f"{what}; the limits of this service are in config.yml under limits{which}")
    error.http_status = http_status
    return error
