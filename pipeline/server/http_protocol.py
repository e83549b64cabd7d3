"""One HTTP connection: uvicorn's protocol with the limits it lacks, and an end that loses no request."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import struct
import termios
import time
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from pipeline.answers import render_error
from pipeline.config import Limits
from pipeline.errors import InvalidInput, NotReady, ServingError, TooLarge
from pipeline.request import AnswerForm
from pipeline.server.codecs.key_value import EXAMPLE

logging.getLogger("uvicorn.error").setLevel(
    logging.CRITICAL
)  # what it reports are clients' doings, counted here

_JOIN_BYTES = 64 * 1024  # copying more than this costs more than a second system call
_USAGE = f"Send POST /{{service}}/{{method}} with a body like {EXAMPLE}"
_CONTINUE = b"HTTP/1.1 100"
_UPGRADE_HEADERS = (b"upgrade", b"connection", b"http2-settings")
LINGER_S = 10.0  # how long a refused client may go on sending before the connection is closed
HEADER_TOO_LARGE = 431
REQUEST_TIMEOUT = 408


class Connection(HttpToolsProtocol):  # type: ignore[misc]
    """Refuses headers and bodies over `limits` while they arrive; drops the work of a client that left."""

    limits: Limits  # set on the subclass that `http_server` makes for its service

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen_at = time.monotonic()
        self._receiving_since: float | None = None  # when the request that is still arriving began
        self._in_body = False
        self._header_bytes = 0
        self._body_bytes = 0
        self._arrived_bytes = 0
        self._refusal: ServingError | None = None
        self._refused_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._answer: _JoinedWrites | None = None

    # What arrives:

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.limits.max_connections:
            self._refuse_at_once(
                NotReady(f"{self.limits.max_connections} connections are open, the most allowed")
            )

    def data_received(self, data: bytes) -> None:
        self.seen_at = time.monotonic()
        if self._refusal is not None:
            return
        if self._receiving_since is None:
            self._receiving_since = self.seen_at
        if not self._in_body:
            self._arrived_bytes += len(data)
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as stopped:
            self._go_on_without_upgrade(data[stopped.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")
        else:
            if not self._in_body and self._arrived_bytes > self.limits.header_bytes:
                self._refuse_at_once(_headers_too_large(f"headers over {self.limits.header_bytes} bytes"))

    def _go_on_without_upgrade(self, rest: bytes) -> None:
        """Feed the request again without its wish for another protocol (RFC 9110 section 7.8).

        Java's client wishes for h2c with its first request; the parser stops there, before the body.
        """
        method: bytes = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("CONNECT is not served.")
            return
        lines = [b"%b %b HTTP/1.1" % (method, self.url)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] not in _UPGRADE_HEADERS]
        self.parser: Any = httptools.HttpRequestParser(self)
        self.data_received(b"\r\n".join(lines) + b"\r\n\r\n" + rest)

    def on_message_begin(self) -> None:
        self._receiving_since = self.seen_at
        self._header_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + 4
        if self._header_bytes > self.limits.header_bytes:
            self._refuse(_headers_too_large(f"headers over {self.limits.header_bytes} bytes"))
        if len(self.headers) >= self.limits.header_count:
            self._refuse(_headers_too_large(f"more than {self.limits.header_count} headers"))
        super().on_header(name, value)
        if name.lower() == b"content-length" and value.isdigit() and int(value) > self.limits.body_bytes:
            self._refuse(
                _too_large(f"content-length {value.decode()} is over {self.limits.body_bytes} bytes")
            )

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_body = True
        self._body_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.limits.body_bytes:
            self._refuse(_too_large(f"the body is over {self.limits.body_bytes} bytes"))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._receiving_since = None
        self._in_body = False
        self._arrived_bytes = 0
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answer = cycle.transport = _JoinedWrites(self.transport)
        self._task = self.loop.create_task(cycle.run_asgi(app))

    def on_response_complete(self) -> None:
        if self._answer is not None:
            self._answer.flush()
        super().on_response_complete()

    # What is refused:

    def _refuse(self, error: ServingError) -> None:
        """Leave the parser with an exception; `send_400_response` answers with the error."""
        self._refusal = error
        raise httptools.HttpParserError(error.message)

    def _refuse_at_once(self, error: ServingError) -> None:
        self._refusal = error
        self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP, or over a limit, and end the connection."""
        error = self._refusal or InvalidInput(f"{msg} {_USAGE}")
        self._refusal = error
        self._refused_at = self.seen_at
        self._receiving_since = None
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # a whole request came before: its answer is the last of the connection
                cycle.keep_alive = False
                return
            cycle.disconnected = True  # this answer takes the place of the app's
            cycle.message_event.set()
        body = render_error(error, AnswerForm.JSON)
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(
            body
        )
        self.transport.write(STATUS_LINE[error.http_status] + head + body)
        # Not closed yet: with input unread the kernel would reset the connection, and a client that sends all
        # before it reads would never see the answer. `data_received` discards what still comes.
        if self.transport.can_write_eof():  # TLS knows no half-closed connection
            self.transport.write_eof()
        self.flow.resume_reading()

    def close_if_slow(self, now: float) -> None:
        """Refuse a request that takes too long to arrive (slow loris)."""
        if self._refusal is not None and now - self._refused_at > LINGER_S:
            self.transport.close()
        if self._receiving_since is None or self.transport.is_closing():
            return
        limit_s = self.limits.body_timeout_s if self._in_body else self.limits.header_timeout_s
        if now - self._receiving_since > limit_s:
            what = "body" if self._in_body else "headers"
            error = InvalidInput(f"the {what} did not arrive within {limit_s:g} s. {_USAGE}")
            error.http_status = REQUEST_TIMEOUT
            self._refuse_at_once(error)

    # How it ends:

    def close_if_silent(self, silent_since: float) -> None:
        """Close when nothing is being answered and nothing arrived since `silent_since` (time.monotonic)."""
        busy = self._receiving_since is not None or (
            self.cycle is not None and not self.cycle.response_complete
        )
        if busy or self.seen_at > silent_since or self.transport.is_closing() or self._unread():
            return
        self.transport.close()

    def _unread(self) -> int:
        """Bytes that the kernel has for us: a request that was sent before we closed is still answered."""
        sock = self.transport.get_extra_info("socket")
        counted = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0" * 4)
        return int(struct.unpack("i", counted)[0])


class _JoinedWrites:
    """A transport that keeps an answer's head until its body comes: one system call for both, not two."""

    __slots__ = ("_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._head: bytes | None = b""
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head is None or data.startswith(_CONTINUE):
            self._transport.write(data)
        elif self._head == b"":
            self._head = data
        else:
            head, self._head = self._head, None
            if len(data) < _JOIN_BYTES:
                self._transport.write(head + data)
            else:
                self._transport.write(head)
                self._transport.write(data)

    def flush(self) -> None:
        """Write a head that no body followed."""
        if self._head:
            self._transport.write(self._head)
        self._head = None

    def close(self) -> None:
        self.flush()
        self._transport.close()


def _headers_too_large(what: str) -> ServingError:
    return _too_large(f"the request has {what}", HEADER_TOO_LARGE)


def _too_large(what: str, http_status: int = 413) -> ServingError:
    error = TooLarge(f"{what}; the limits of this service are in config.yml under limits")
    error.http_status = http_status
    return error
