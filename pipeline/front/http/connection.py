"""The server side of an HTTP/1.1 connection: receives requests within their limits, and responds in order."""

from __future__ import annotations

import asyncio
import functools
import http
import logging
import math
import time
import urllib.parse
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import cast

import httptools
import msgspec

from pipeline.errors import NotReady, ServingError
from pipeline.front.dag_run import Client
from pipeline.front.http.listener import (
    CONTINUE,
    EARLY_RETRY_S,
    HOLD_S,
    MAX_REQUESTS_PER_TURN,
    MAX_TURN_S,
    HalfClosed,
    Listener,
    OpenConnection,
    Reject,
)
from pipeline.front.http.request_head import (
    HOST,
    HTTP_1_0,
    HTTP_1_1,
    bad_request,
    body_too_large,
    check_host,
    check_transfer_encoding,
    check_version,
    headers_too_large,
    remove_upgrade_headers,
    too_slow,
)
from pipeline.front.scheduler.admission import name_peer
from pipeline.messages.frames import Part

log = logging.getLogger(__name__)

# An app may set any error status; HTTP has no phrase for some.
STATUS_LINES = {status: f"HTTP/1.1 {status} \r\n".encode() for status in range(400, 600)}
STATUS_LINES |= {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in http.HTTPStatus}
LINGER_S = 10.0  # how long the client of a rejected request may send before the connection is closed
_CHUNKED = b"transfer-encoding: chunked\r\n"
_JOIN_BYTES = 64 * 1024  # copying more than this costs more than a second system call
_PIECE_BYTES = 2048  # parsed at once, except for bodies
_CONNECTION, _TRANSFER_ENCODING = b"connection", b"transfer-encoding"

Headers = dict[bytes, bytes]
"""Values by lower-case name. The first value of a repeated header counts; the lists in Connection and
Transfer-Encoding are joined."""


class HttpRequest(msgspec.Struct, eq=False):
    """A completely received HTTP request. Call `respond` once to send its response."""

    _connection: Connection
    client: Client  # for fairness and limits
    method: str
    path: str  # percent-decoded, without the query
    headers: Headers
    body: bytes
    keep_alive: bool
    takes_chunks: bool = False
    began: float = 0.0  # when it was complete and earlier requests had their responses (time.monotonic)
    on_left: Callable[[], None] | None = None  # called if the client leaves before the response
    has_begun: bool = False  # whether the response is sent in chunks, and the first is sent

    @property
    def peer(self) -> str:
        """The client's address and, if any, the name of its API key, for the log."""
        return name_peer(self._connection.peer, self.client)

    def respond(self, status: int, head: bytes, body: Part, *, chunked: bool = False) -> None:
        """Send the response, once. Status line, Date and Content-Length are added.

        head: further header lines, each with CRLF. chunked: send the body as a single chunk
        (Transfer-Encoding: chunked), to clients of HTTP/1.1.
        """
        if chunked and self.takes_chunks:
            framed = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), bytes(body))
            self._connection.respond(self, status, head, framed, _CHUNKED)
            return
        self._connection.respond(self, status, head, body)

    def begin_chunks(self, status: int, head: bytes) -> None:
        """Begin a response whose body is sent in chunks, until `end_chunks`. head: as in `respond`."""
        self.has_begun = True
        self._connection.begin_chunks(self, status, head)

    def send_chunk(self, data: bytes, acknowledge: Callable[[], None]) -> None:
        """Send a part of the response body. acknowledge: called once the client has read earlier parts."""
        self._connection.send_chunk(self, data, acknowledge)

    def end_chunks(self) -> None:
        """End the chunked response."""
        self._connection.end_chunks(self)

    def reject_overload(self, reject: Reject, deadline: float) -> None:
        """Call `reject`, which sends an overload error: now, or delayed if the client retries without pause.

        deadline: instant of time.monotonic() at which the request expires; the response is not delayed beyond
        it.
        """
        self._connection.reject_overload(self, reject, deadline)


class HttpApplication(ABC):
    """Base class of the applications behind the HTTP server. A subclass responds to requests."""

    @abstractmethod
    def handle(self, request: HttpRequest) -> None:
        """Respond to a complete request by `request.respond`, now or later. Must not block."""

    @abstractmethod
    def check_body(self, method: str, path: str, length: int | None) -> None:
        """Raise ServingError to reject a request because of its headers, before the server receives its body.

        length: bytes of the body; None for a chunked body. Called only for bodies that are larger than the
        headers may be.
        """

    @abstractmethod
    def refusal(self, error: ServingError, url: bytes) -> tuple[bytes, bytes]:
        """Return header lines and body of the error response to an incomplete or invalid request.

        url: the request target, as far as it was received.
        """

    @abstractmethod
    def log_refusal(self, error: ServingError, client: str) -> None:
        """Log that an incomplete or invalid request was rejected. client: the client's address."""

    @abstractmethod
    def log_unread(self, message: str) -> None:
        """Log a message about a client that does not read its responses."""


class Connection(OpenConnection):
    """The server side of one HTTP/1.1 connection, as an asyncio protocol.

    Responses are sent in the order of the requests: a pipelined request waits for all earlier requests.
    """

    def __init__(self, app: HttpApplication, listener: Listener) -> None:
        self._app = app
        self._listener = listener
        self._transport: asyncio.Transport
        self.seen_at = time.monotonic()
        self._current: HttpRequest | None = None
        self._waiting: deque[HttpRequest] = deque()
        self._reader = RequestReader(self, app, listener, self._waiting)
        self._unparsed = b""  # data behind the waiting requests
        self._going_on = False
        self._pipelined = False  # the next request was here before the answer to the previous one was sent
        self._reading_paused = False
        self._write_paused = False
        self._unread_chunks: list[Callable[[], None]] = []  # of chunks behind unread data, see `send_chunk`
        self._half_closed: HalfClosed | None = None
        self._refusal: ServingError | None = None
        self._refused_at = 0.0
        self._overloaded_at = -math.inf  # time of the last rejection for overload (time.monotonic)

    # Receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection.

        Over `limits.max_connections`, an idle connection or the new one is closed.
        """
        self._transport = cast(asyncio.Transport, transport)
        connections = self._listener.connections
        connections.add(self)
        max_connections = self._listener.limits.max_connections
        if len(connections) <= max_connections or self._listener.make_room():
            return
        self._send_error(NotReady(f"{max_connections} connections are busy, the most allowed"))
        self._listener.close_later(self)

    def data_received(self, data: bytes) -> None:
        """Parse data from the client, and begin the requests that it completes."""
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
        """Parse data until a request is complete. Invalid data ends the connection with an error response."""
        try:
            self._unparsed = self._reader.parse(data, self.seen_at)
        except ServingError as error:
            self._send_error(error)

    def eof_received(self) -> bool:
        """Return whether to keep the connection open after the client has closed its sending side.

        A client that half-closes its connection (`nc -N`) gets the responses to its complete requests. Called
        by asyncio.
        """
        if self._current is None and not self._waiting and not self._unparsed:
            return False
        # TLS has no half-closed connections, and a client of HTTP/1.0 can't be probed with a 100.
        if not self._transport.can_write_eof() or not self._reader.http_1_1:
            return False
        self._half_closed = HalfClosed(
            self._transport, lambda: self._current is not None, self._transport.abort
        )
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection's buffers, and cancel the request in progress."""
        self._listener.connections.discard(self)
        self._listener.remove_unread(self)
        if self._half_closed is not None:
            self._half_closed.cancel()
            self._half_closed = None  # a reference cycle
        current, self._current = self._current, None
        requests = self._waiting if current is None else (current, *self._waiting)
        self._listener.bodies_bytes -= sum(len(request.body) for request in requests)
        self._waiting.clear()
        self._unread_chunks.clear()
        self._unparsed = b""
        self._reading_paused = False
        self._reader.close()
        if current is not None and current.on_left is not None:
            current.on_left()

    # Responding

    def respond(
        self, request: HttpRequest, status: int, head: bytes, body: Part, length: bytes | None = None
    ) -> None:
        """Send the response to the current request, unless the client has left, and begin the next request.

        length: a header line to send in place of Content-Length.
        """
        if request is not self._current or self._transport.is_closing():
            return
        last = self._is_last(request)
        if last:
            head = b"%bconnection: close\r\n" % head
        self._write_response(status, head, body, request.method, length)
        self._end_response(request, last=last)

    def _is_last(self, request: HttpRequest) -> bool:
        """Return whether the connection closes after the response to this request."""
        last = self._listener.draining or not request.keep_alive
        return last or (self._half_closed is not None and not self._waiting)

    def begin_chunks(self, request: HttpRequest, status: int, head: bytes) -> None:
        """Begin the response to the current request; its body follows in chunks.

        Clients of HTTP/1.0 get the body without chunks, until the end of the connection.
        """
        if request is not self._current or self._transport.is_closing():
            return
        request.keep_alive = request.takes_chunks and not self._is_last(request)
        if not request.keep_alive:
            head = b"%bconnection: close\r\n" % head
        self._write_response(status, head, b"", length=_CHUNKED if request.takes_chunks else b"")

    def send_chunk(self, request: HttpRequest, data: bytes, acknowledge: Callable[[], None]) -> None:
        """Send a chunk of the current response.

        acknowledge: called now, or as soon as a client that does not read has read on.
        """
        if request is not self._current or self._transport.is_closing():
            return
        self._transport.write(b"%x\r\n%b\r\n" % (len(data), data) if request.takes_chunks else data)
        self.seen_at = time.monotonic()
        if self._write_paused:
            self._unread_chunks.append(acknowledge)
            self._listener.add_unread(self)
        else:
            acknowledge()

    def end_chunks(self, request: HttpRequest) -> None:
        """End the current response, and begin the next request."""
        if request is not self._current or self._transport.is_closing():
            return
        if request.takes_chunks:
            self._transport.write(b"0\r\n\r\n")
        self._end_response(request, last=not request.keep_alive)

    def _end_response(self, request: HttpRequest, *, last: bool) -> None:
        self._current = None
        self._listener.bodies_bytes -= len(request.body)
        request.on_left = None  # breaks a reference cycle: the DAG run holds the request
        self.seen_at = time.monotonic()
        if last:
            self._transport.close()
        elif self._waiting or self._unparsed or self._reader.continue_due:
            self._pipelined = True
            self.go_on()

    def reject_overload(self, request: HttpRequest, reject: Reject, deadline: float) -> None:
        """Call `reject`, which sends an overload error: now, or HOLD_S later if the client retries early.

        deadline: instant of time.monotonic(); the error is sent now if HOLD_S would end after the deadline.
        """

        def send_rejection() -> None:
            self._overloaded_at = time.monotonic()
            try:
                reject()
            except Exception:
                log.exception("A fault of ours in refusing %s %s", request.method, request.path)
                self._transport.close()

        now, listener = self.seen_at, self._listener
        if listener.draining or now > self._overloaded_at + EARLY_RETRY_S or now + HOLD_S >= deadline:
            send_rejection()
            return
        listener.bodies_bytes -= len(request.body)
        request.body = b""  # many rejections may be held
        listener.held.hold(send_rejection, now)

    def _write_response(
        self, status: int, head: bytes, body: Part, method: str = "", length: bytes | None = None
    ) -> None:
        """Write a response to the socket.

        method: method of the request; no body is sent for HEAD. length: a header line to send in place of
        Content-Length.
        """
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
        """Begin the next received request, or resume reading from the socket.

        After an immediate response, the next pipelined request begins in a later iteration of the event loop.
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
            if reader.receiving_since is not None:  # reading was paused, not the client
                reader.receiving_since = self.seen_at
        if reader.continue_due and reader.in_body and self._current is None and not self._waiting:
            reader.continue_due = False
            self._transport.write(CONTINUE)

    def _begin_waiting(self) -> None:
        """Begin the next complete request, unless one is in progress or this event loop iteration is full."""
        if not self._waiting or self._current is not None or self._write_paused:
            return
        listener = self._listener
        if self._transport.is_closing():
            listener.bodies_bytes -= sum(len(request.body) for request in self._waiting)
            self._waiting.clear()
            return
        if listener.begun >= MAX_REQUESTS_PER_TURN or listener.spent_s > MAX_TURN_S:
            listener.postpone(self, pipelined=self._pipelined)
            return
        self._current = request = self._waiting.popleft()
        request.began = self.seen_at
        began = time.monotonic()
        try:
            self._handle(request)
        except Exception:
            log.exception("A fault of ours in %s %s", request.method, request.path)
            self._transport.close()
        listener.begun += 1
        listener.spent_s += time.monotonic() - began
        if listener.begun >= MAX_REQUESTS_PER_TURN or listener.spent_s > MAX_TURN_S:
            listener.end_turn()
        if self._waiting and self._current is None:
            listener.postpone(self, pipelined=True)

    def _handle(self, request: HttpRequest) -> None:
        """Pass a complete request to the application."""
        self._app.handle(request)

    def pause_writing(self) -> None:
        """Begin no more requests, because the client does not read its responses. Called by asyncio."""
        self._write_paused = True
        self._listener.add_unread(self)

    def resume_writing(self) -> None:
        """Begin requests again, because the client reads its responses. Called by asyncio."""
        self._write_paused = False
        self._listener.remove_unread(self)
        acknowledgements, self._unread_chunks = self._unread_chunks, []
        for acknowledge in acknowledgements:
            acknowledge()
        self.go_on()

    # Rejecting

    def _send_error(self, error: ServingError) -> None:
        """Send an error for invalid or oversized data, then close the connection.

        If earlier requests are in progress, the error is not sent: the last of their responses closes the
        connection.
        """
        self._refusal = error
        self._refused_at = self.seen_at
        self._unparsed = b""
        self._reader.drop()
        last = self._waiting[-1] if self._waiting else self._current
        if last is not None:  # the response to the latest complete request ends the connection
            last.keep_alive = False
            return
        head, body = self._app.refusal(error, self._reader.url)
        head += b"connection: close\r\n"
        self._write_response(error.http_status, head, body)
        self._app.log_refusal(error, self.peer)
        # Closed later: with unread input the kernel would reset the connection, and a client that sends all
        # before it reads would never see the response. `data_received` discards further data.
        if self._transport.can_write_eof():  # TLS has no half-closed connections
            self._transport.write_eof()
        self._transport.resume_reading()

    @property
    def arriving_bytes(self) -> int:
        """Number of bytes received so far of an incomplete body."""
        return self._reader.arriving_bytes

    def refuse_body(self, error: ServingError) -> None:
        """Reject the request whose body is arriving, if any, and free the received part of the body."""
        if self.arriving_bytes:
            self._send_error(error)

    def close_if_slow(self, now: float) -> None:
        """Reject a request that arrives too slowly (slow loris); abort if the client reads no responses.

        Called regularly. now: time.monotonic().
        """
        if self._refusal is not None and self._current is None and now - self._refused_at > LINGER_S:
            self._transport.close()
        self.abort_if_unread(now)
        if self._reading_paused or self._transport.is_closing():
            return
        error = self._reader.overdue(now)
        if error is not None:
            self._send_error(error)

    def log_abort(self, reason: str) -> None:
        """Log that the connection is aborted because its client does not read. reason: text for the log."""
        self._app.log_unread(f"{self.peer} is sent away, {self.unsent_bytes} bytes are held for it: {reason}")

    @property
    def busy(self) -> bool:
        """Whether a request is arriving or being processed."""
        return self._reader.receiving_since is not None or self._current is not None


class RequestReader:
    """HTTP parser of one connection, built on httptools: appends each complete request to `requests`."""

    def __init__(
        self, connection: Connection, app: HttpApplication, listener: Listener, requests: deque[HttpRequest]
    ) -> None:
        self._connection = connection
        self._app = app
        self._listener = listener
        self._requests = requests
        limits = listener.limits
        # Limits that are checked for each request: an attribute of a pydantic model is slower.
        self._max_headers, self._max_header_bytes = limits.header_count, limits.header_bytes
        self._max_body_bytes, self._max_bodies_bytes = limits.body_bytes, limits.bodies_bytes
        self._parser = _parser(self)
        self._read_at = 0.0
        self.receiving_since: float | None = None  # when the incomplete request began
        self.in_body = False  # whether the headers of that request are complete
        self.continue_due = False  # whether the client waits for a 100 before it sends the body
        self._header_bytes = 0
        self._body_length = 0  # Content-Length
        self._body_bytes = 0
        self._arrived_bytes = 0  # since the last part of a body: headers, trailers, chunk extensions
        self._client = Client()  # until a request has an API key
        self._valid_host: bytes | None = None  # the last Host that was checked
        self.url = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._refusal: ServingError | None = None

    def parse(self, data: bytes, now: float) -> bytes:
        """Parse received data until a request is complete. Return the data that is not parsed yet.

        now: time.monotonic(). Raises ServingError for invalid or oversized data. A parsed request of 18 bytes
        takes 400 bytes of memory, so pipelined requests are parsed one by one.
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
            plain = self._parse_piece(piece)
            if plain:
                data, start = plain + data[start:], 0
        return b""

    def overdue(self, now: float) -> ServingError | None:
        """Return the error (408) for a request that takes too long to arrive; None if it is in time."""
        if self.receiving_since is None:
            return None
        limits = self._listener.limits
        limit_s = limits.body_timeout_s if self.in_body else limits.header_timeout_s
        if now - self.receiving_since <= limit_s:
            return None
        return too_slow("body" if self.in_body else "headers", limit_s)

    @property
    def announced_bytes(self) -> int:
        """Content-Length of the request whose body is arriving; 0 before its headers are complete."""
        return self._body_length if self.in_body else 0

    @property
    def http_1_1(self) -> bool:
        """Whether the client's latest request uses HTTP/1.1 or later, not HTTP/1.0."""
        return bool(self._parser.get_http_version() != HTTP_1_0)

    @property
    def arriving_bytes(self) -> int:
        """Number of bytes received so far of an incomplete body."""
        return len(self._body)

    def drop(self) -> None:
        """Discard an incomplete request, and free the bytes received of its body."""
        self.receiving_since = None
        self.continue_due = False
        self._listener.bodies_bytes -= len(self._body)
        self._body = b""

    def close(self) -> None:
        """Free the parser and the buffers when the connection ends; this breaks a reference cycle."""
        self.drop()
        del self._parser, self._connection

    def _parse_piece(self, piece: bytes | memoryview) -> bytes:
        """Feed data to the parser. Return the data to parse next.

        The data is empty except for an upgrade request, which is parsed again without its upgrade headers.
        Raises ServingError for invalid or oversized data.
        """
        self._arrived_bytes += len(piece)
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade as stopped:
            return self._remove_upgrade(bytes(piece[stopped.args[0] :]))
        except httptools.HttpParserError:
            raise self._refusal or bad_request("Invalid HTTP request received.") from None
        if self._arrived_bytes > self._max_header_bytes:
            raise headers_too_large(f"headers over {self._max_header_bytes} bytes")
        return b""

    def _remove_upgrade(self, rest: bytes) -> bytes:
        """Return an upgrade request without its upgrade headers (RFC 9110 section 7.8), followed by `rest`.

        rest: the data after the headers. Java's client requests h2c with its first request. The parser stops
        there, before the body.
        """
        method: bytes = self._parser.get_method()
        if method == b"CONNECT":
            raise bad_request("CONNECT is not served.")
        headers = remove_upgrade_headers(self._headers)
        lines = [b"%b %b HTTP/%b" % (method, self.url, self._parser.get_http_version().encode())]
        lines += [b"%b: %b" % header for header in headers.items()]
        self._parser = _parser(self)
        self._arrived_bytes = 0
        return b"\r\n".join(lines) + b"\r\n\r\n" + rest

    # Callbacks of the parser

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
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self._max_header_bytes:
            self._leave_parser(headers_too_large(f"headers over {self._max_header_bytes} bytes"))
        if len(headers) >= self._max_headers:
            self._leave_parser(headers_too_large(f"more than {self._max_headers} headers"))
        name = name.lower()
        if name in headers:
            self._repeat(name, value)
        else:
            headers[name] = value

    def _repeat(self, name: bytes, value: bytes) -> None:
        """Handle a repeated header: reject a second Host, join values of Connection and Transfer-Encoding."""
        if name == b"host":
            self._leave_parser(bad_request("The request has more than one Host header."))
        if name in (_CONNECTION, _TRANSFER_ENCODING):
            self._headers[name] += b", " + value

    def on_headers_complete(self) -> None:
        try:
            self._check_head()
        except ServingError as error:
            self._leave_parser(error)
        if self._parser.should_upgrade():  # the request is parsed again, see `_remove_upgrade`
            return
        self.in_body = True
        self._body_bytes = 0

    def _check_head(self) -> None:
        """Check the headers before the body is received: version, Host, length, API key, and path.

        Raises ServingError for a request that gets an error response without its body.
        """
        headers, version = self._headers, self._parser.get_http_version()
        host = headers.get(b"host")
        # Clients send the same Host again.
        if version != HTTP_1_1 or host is None or host != self._valid_host:
            if version != HTTP_1_1 or host is None or not HOST.fullmatch(host):
                check_version(version)
                check_host(version, host)
            self._valid_host = host
        self._body_length = 0
        if (length := headers.get(b"content-length")) is not None and length.isdigit():
            self._body_length = int(length)
            if self._body_length > self._max_body_bytes:
                raise body_too_large(f"content-length {length.decode()} is over {self._max_body_bytes} bytes")
        if b"expect" in headers:
            self.continue_due = version != HTTP_1_0 and headers[b"expect"].lower() == b"100-continue"
        chunked = _TRANSFER_ENCODING in headers
        if chunked:
            check_transfer_encoding(version, headers[_TRANSFER_ENCODING])
        guard = self._listener.guard
        if guard is not None:  # an unauthenticated client must not fill the memory
            self._client = guard.client(self.url, headers.items(), self._client)
        if chunked or self._body_length > self._max_header_bytes:  # smaller bodies cost no more than headers
            method = self._parser.get_method().decode()
            self._app.check_body(method, path_of_url(self.url), None if chunked else self._body_length)

    def on_body(self, body: bytes) -> None:
        self._arrived_bytes = 0
        self._body_bytes += len(body)
        if self._body_bytes > self._max_body_bytes:
            self._leave_parser(body_too_large(f"the body is over {self._max_body_bytes} bytes"))
        if not self._body:
            self._body = body
        elif isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body)
        listener = self._listener
        listener.bodies_bytes += len(body)
        if listener.bodies_bytes > self._max_bodies_bytes:
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
            keep_alive = False  # an HTTP/1.0 client expects a keep-alive header in the response
        request = HttpRequest(
            self._connection, self._client, method, path, headers, body, keep_alive, not is_old
        )
        self._requests.append(request)

    def _shed_bodies(self) -> None:
        """Keep all bodies together within `limits.bodies_bytes`: reject (503) the largest incomplete bodies.

        Requests with small bodies continue.
        """
        max_bytes = self._max_bodies_bytes
        error = NotReady(
            f"bodies of more than {max_bytes} bytes are here; limits.bodies_bytes allows no more"
        )
        while self._listener.bodies_bytes > max_bytes:
            for connection in self._listener.largest_bodies():
                if connection is self._connection:
                    self._leave_parser(error)
                connection.refuse_body(error)

    def _leave_parser(self, error: ServingError) -> None:
        """Stop the parser, from one of its callbacks, with an exception.

        The parser hides the cause of the exception, so `_parse_piece` raises the stored `error`.
        """
        self._refusal = error
        raise httptools.HttpParserError(error.message)


def _parser(reader: RequestReader) -> httptools.HttpRequestParser:
    """Return a parser that calls the reader's callbacks (`on_url`, `on_header`, ...)."""
    parser = httptools.HttpRequestParser(reader)
    # `check_version` checks versions, for status 505.
    parser.set_dangerous_leniencies(lenient_data_after_close=True, lenient_version=True)
    return parser


@functools.lru_cache(maxsize=64)  # most requests have one of a few targets
def path_of_url(url: bytes) -> str:
    """Return the percent-decoded path of a request target such as "/v2/models?x=1".

    Raises HttpParserError for an invalid target.
    """
    if b"?" in url or b"#" in url or not url.startswith(b"/"):
        url = httptools.parse_url(url).path or b"/"
    try:
        path = url.decode("ascii")
    except UnicodeDecodeError as exc:
        raise httptools.HttpParserError("the path is not ASCII") from exc
    return urllib.parse.unquote(path) if "%" in path else path
