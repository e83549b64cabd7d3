"""Kept-alive HTTP connections, each exchange under one deadline."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from client.errors import BadAnswer, ClientError, RequestTimedOut, ServiceUnreachable

MAX_BODY_BYTES = 512 * 1024 * 1024  # what the gRPC client takes at most, too


@dataclass(frozen=True)
class HttpReply:
    status: int
    reason: str
    body: bytes
    retry_after: str | None


class _Deadline:
    """A socket's time-out bounds each read; a server that drips a byte at a time would never exceed it."""

    deadline = 0.0

    def recv_into(self, *args: Any) -> Any:
        remaining_s = self.deadline - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError
        self.settimeout(remaining_s)  # type: ignore[attr-defined]
        return super().recv_into(*args)  # type: ignore[misc]


class _Socket(_Deadline, socket.socket):
    pass


class _TlsSocket(_Deadline, ssl.SSLSocket):
    pass


class ConnectionPool:
    """The connections to one server; each serves one exchange at a time, and any thread the next."""

    def __init__(self, url: str) -> None:
        """Raises ValueError when `url` is not http(s)://host[:port][/prefix]."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not of the form http://host:port")
        self.url = url
        self.prefix = parts.path.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port
        self._tls: ssl.SSLContext | None = None
        if parts.scheme == "https":
            self._tls = ssl.create_default_context()
            self._tls.sslsocket_class = _TlsSocket
        self._idle: deque[http.client.HTTPConnection] = deque()
        self._closed = False

    def post(self, path: str, body: bytes, timeout_s: float) -> HttpReply:
        """One exchange. Raises RequestTimedOut, ServiceUnreachable or BadAnswer; never tries twice."""
        deadline = time.monotonic() + timeout_s
        connection = self._take()
        reused = connection.sock is not None
        try:
            reply = self._exchange(connection, path, body, deadline)
        except BaseException as error:
            # Half an exchange is on it; the next would read this one's answer.
            connection.close()
            found = self._client_error(error, timeout_s)
            if found is None:  # a BadAnswer of our own, or not the connection's fault
                raise
            if reused and isinstance(found, ServiceUnreachable):
                # The server has closed it as idle, and then the others too: the next try gets a fresh one.
                self._close_idle()
                found.retry_after_s = 0.0
            raise found from error
        if connection.sock is not None and not self._closed:
            self._idle.append(connection)
        return reply

    def close(self) -> None:
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        with suppress(IndexError):  # other threads take from it too
            while True:
                self._idle.pop().close()

    def _take(self) -> http.client.HTTPConnection:
        if self._closed:
            raise ValueError("the client is closed")
        with suppress(IndexError):
            return self._idle.pop()  # the one used last: the least likely to have been closed as idle
        if self._tls is not None:
            return http.client.HTTPSConnection(self._host, self._port, context=self._tls)
        return http.client.HTTPConnection(self._host, self._port)

    def _exchange(self, connection: Any, path: str, body: bytes, deadline: float) -> HttpReply:
        if connection.sock is None:
            self._connect(connection, deadline)
        connection.sock.deadline = deadline
        connection.sock.settimeout(max(0.001, deadline - time.monotonic()))
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        # Only a read to the end notices that a body of known length was cut off.
        known = response.length is not None and response.length <= MAX_BODY_BYTES
        content = response.read() if known else response.read(MAX_BODY_BYTES + 1)
        if len(content) > MAX_BODY_BYTES:
            raise BadAnswer(f"{self.url} answered with more than {MAX_BODY_BYTES} bytes")
        return HttpReply(response.status, response.reason, content, response.getheader("Retry-After"))

    def _connect(self, connection: Any, deadline: float) -> None:
        connection.timeout = max(0.001, deadline - time.monotonic())
        connection.connect()
        if self._tls is None:
            connection.sock = _Socket(fileno=connection.sock.detach())

    def _client_error(self, error: BaseException, timeout_s: float) -> ClientError | None:
        if isinstance(error, TimeoutError):
            return RequestTimedOut(f"no answer from {self.url} in the {timeout_s:.3g} s left of timeout_s")
        if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead):
            return ServiceUnreachable(f"{self.url} closed the connection before it had answered")
        if isinstance(error, http.client.HTTPException):
            return BadAnswer(f"{self.url} does not answer in HTTP: {error!r}")
        if isinstance(error, ConnectionRefusedError):
            return ServiceUnreachable(f"nothing listens at {self.url}; is the service started?")
        if isinstance(error, OSError):
            return ServiceUnreachable(f"no connection to {self.url}: {error}")
        return None
