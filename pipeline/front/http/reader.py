"""Requests out of the bytes of one HTTP/1.1 connection: parsed by httptools, bounded while they arrive."""

from __future__ import annotations

import functools
import urllib.parse
from collections import deque

import httptools

from pipeline.errors import NotReady, ServingError, Unauthenticated
from pipeline.front.http.http_request import Headers, HttpRequest
from pipeline.front.http.listener import Listener, OpenConnection
from pipeline.front.http.refusals import headers_too_large, no_http, too_large, too_slow
from pipeline.front.scheduler.admission import Client

_PIECE_BYTES = 2048  # that are parsed at once, unless they are a body's
_UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")


class RequestReader:
    """Puts each whole request into `requests`; what is refused instead is raised by `read`.

    receiving_since: when the request that is still arriving began, else None. in_body: its headers are here.
    continue_due: its client waits for a 100 before it sends the body.
    """

    def __init__(self, connection: OpenConnection, listener: Listener, requests: deque[HttpRequest]) -> None:
        self._connection = connection
        self._listener = listener
        self._requests = requests
        limits = listener.limits
        # What is looked at for each request; an attribute of a model of pydantic's costs more.
        self._most_headers, self._most_header_bytes = limits.header_count, limits.header_bytes
        self._most_body_bytes, self._most_bodies_bytes = limits.body_bytes, limits.bodies_bytes
        self._parser = _parser(self)
        self._read_at = 0.0
        self.receiving_since: float | None = None
        self.in_body = False
        self.continue_due = False
        self._header_bytes = 0
        self._body_length = 0  # as declared
        self._body_bytes = 0
        self._arrived_bytes = 0  # since the last piece of a body: headers, trailers, extensions of chunks
        self._client = Client()  # until a request shows a key
        self.url = b""
        self._headers: Headers = {}
        self._body: bytes | bytearray = b""
        self._refusal: ServingError | None = None

    def read(self, data: bytes, now: float) -> bytes:
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
            most = _PIECE_BYTES
            if self.in_body:
                most = max(most, self._body_length - self._body_bytes)
            whole = not start and len(data) <= most
            piece = data if whole else memoryview(data)[start : start + most]
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
        return too_slow("body" if self.in_body else "headers", limit_s)

    @property
    def http_1_1(self) -> bool:
        """Whether the latest request is of that version."""
        return bool(self._parser.get_http_version() == "1.1")

    @property
    def arriving_bytes(self) -> int:
        """Of a body that is not all here."""
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
            raise self._refusal or no_http("Invalid HTTP request received.") from None
        if self._arrived_bytes > self._most_header_bytes:
            raise headers_too_large(f"headers over {self._most_header_bytes} bytes")
        return b""

    def _without_upgrade(self, rest: bytes) -> bytes:
        """The request as it is without its wish for another protocol (RFC 9110 section 7.8), and the rest.

        Java's client wishes for h2c with its first request; the parser stops there, before the body.
        """
        method: bytes = self._parser.get_method()
        if method == b"CONNECT":
            raise no_http("CONNECT is not served.")
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % header for header in self._headers.items() if header[0] not in _UPGRADE_HEADERS]
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
            self.continue_due = headers[b"expect"].lower() == b"100-continue"
        guard = self._listener.guard
        if guard is not None:  # before the body: who may not ask may not fill our memory either
            try:
                self._client = guard.client(self.url, headers.items())
            except Unauthenticated as error:
                self._refuse(error)
        self.in_body = True
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
        method, path = parser.get_method().decode(), _path(self.url)
        headers, body, self._body = self._headers, self._body, b""
        if isinstance(body, bytearray):
            body = bytes(body)
        keep_alive = parser.should_keep_alive()
        if b"connection" in headers and parser.get_http_version() == "1.0":
            keep_alive = False  # such a client would wait for a header of ours that says so
        request = HttpRequest(self._connection, self._client, method, path, headers, body, keep_alive)
        self._requests.append(request)

    def _shed_bodies(self) -> None:
        """Refuse the largest of those that are arriving: who sends little is served on."""
        most = self._most_bodies_bytes
        error = NotReady(f"bodies of more than {most} bytes are here; limits.bodies_bytes allows no more")
        while self._listener.bodies_bytes > most:
            for connection in self._listener.largest_bodies():
                if connection is self._connection:
                    self._refuse(error)
                connection.refuse_body(error)

    def _refuse(self, error: ServingError) -> None:
        """Leave the parser with an exception, of which it keeps no cause; `_read_piece` raises the error."""
        self._refusal = error
        raise httptools.HttpParserError(error.message)


def _parser(reader: RequestReader) -> httptools.HttpRequestParser:
    parser = httptools.HttpRequestParser(reader)
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
