"""A pool of keep-alive HTTP client connections to one server, with one deadline for each request."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlsplit

from client.errors import BadAnswer, ClientError, RequestTimedOut, ServiceUnreachable
from client.headers import HEADER, checked_headers, find_api_key
from client.tls import Tls

MAX_BODY_BYTES = 512 * 1024 * 1024  # what the gRPC client takes at most, too


@dataclass(frozen=True)
class HttpReply:
    """An HTTP response as the client received it; `retry_after` is the header Retry-After or None."""

    status: int
    reason: str
    body: bytes
    retry_after: str | None


class _Deadline:
    """Mixin for sockets that limits all reads of a response together to one deadline.

    A socket's own timeout limits each read alone, so that a slow server could go on for ever.
    """

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
    """Keep-alive HTTP connections of a client to one server, opened on demand; threads may share the pool."""

    def __init__(
        self,
        url: str,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a pool without connecting. headers: sent with each request, in place of default headers.

        Raises ValueError unless `url` is http(s)://host[:port][/prefix], for an unusable file of `tls`, and
        for an invalid header.
        """
        key = find_api_key(api_key)
        defaults = {"Accept": "application/json", "Content-Type": "application/json"}
        defaults |= {} if key is None else {HEADER: key}
        user_headers = checked_headers(headers or {})
        replaced = {name.lower() for name in user_headers}
        merged = {
            name: value for name, value in defaults.items() if name.lower() not in replaced
        } | user_headers
        self._header_lines = "".join(f"{name}: {value}\r\n" for name, value in merged.items())
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not of the form http://host:port")
        self.url = url
        self.prefix = parts.path.rstrip("/")
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._host_header = parts.netloc.rpartition("@")[2]
        self._tls: ssl.SSLContext | None = None
        if tls is not None and parts.scheme != "https":
            raise ValueError(f"url {url!r} is not of the form https://host:port, though TLS is asked for")
        if parts.scheme == "https":
            self._tls = (tls or Tls()).context()
            self._tls.sslsocket_class = _TlsSocket
        self._idle: deque[_Socket | _TlsSocket] = deque()
        self._closed = False

    def post(self, path: str, body: bytes, timeout_s: float) -> HttpReply:
        """Send a POST request once, without retries, and return the response with any status.

        Raises RequestTimedOut, ServiceUnreachable or BadAnswer.
        """
        return self._ask("POST", path, body, timeout_s)

    def get(self, path: str, timeout_s: float) -> HttpReply:
        """Send a GET request once, and return the response with any status; raises the errors of `post`."""
        return self._ask("GET", path, b"", timeout_s)

    def _ask(self, method: str, path: str, body: bytes, timeout_s: float) -> HttpReply:
        if self._closed:
            raise ValueError("the client is closed")
        deadline = time.monotonic() + timeout_s
        connection = self._take_idle()
        reused = connection is not None
        try:
            if connection is None:
                connection = self._connect(deadline)
            reply, keep = self._exchange(connection, method, path, body, deadline)
        except BaseException as error:
            if connection is not None:
                connection.close()  # a reused connection would deliver this answer to the next request
            client_error = self._client_error(error, timeout_s)
            if client_error is None:  # raised here (BadAnswer), or not a connection error
                raise
            if reused and isinstance(client_error, ServiceUnreachable):
                # The server has closed idle connections: the next try opens a new one.
                self._close_idle()
                client_error.retry_after_s = 0.0
            raise client_error from error
        if keep and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def close(self) -> None:
        """Close the idle connections; connections in use close after their response."""
        self._closed = True
        self._close_idle()

    def _close_idle(self) -> None:
        while (connection := self._take_idle()) is not None:
            connection.close()

    def _take_idle(self) -> _Socket | _TlsSocket | None:
        try:
            return self._idle.pop()  # the last used connection is least likely to have timed out
        except IndexError:
            return None

    def _connect(self, deadline: float) -> _Socket | _TlsSocket:
        remaining_s = max(0.001, deadline - time.monotonic())
        plain = socket.create_connection((self._host, self._port), remaining_s)
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._tls is None:
            return _Socket(fileno=plain.detach())
        secured = self._tls.wrap_socket(plain, server_hostname=self._host)
        assert isinstance(secured, _TlsSocket)
        return secured

    def _exchange(
        self, connection: _Socket | _TlsSocket, method: str, path: str, body: bytes, deadline: float
    ) -> tuple[HttpReply, bool]:
        """Send a request and read the response; also return whether the connection stays open.

        deadline: `time.monotonic()` instant.
        """
        connection.deadline = deadline
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        head = (
            f"{method} {quote(path, safe='/:')} HTTP/1.1\r\nHost: {self._host_header}\r\n{self._header_lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        # In one piece: http.client's own request() sends two, and wakes the server twice.
        connection.sendall(head.encode("ascii") + body)
        response = http.client.HTTPResponse(connection, method=method)
        with response:
            response.begin()
            # Only a read to the end notices that a body of known length was cut off.
            has_length = response.length is not None and response.length <= MAX_BODY_BYTES
            content = response.read() if has_length else response.read(MAX_BODY_BYTES + 1)
        if len(content) > MAX_BODY_BYTES:
            raise BadAnswer(f"{self.url} answered with more than {MAX_BODY_BYTES} bytes")
        reply = HttpReply(response.status, response.reason, content, response.getheader("Retry-After"))
        return reply, not response.will_close

    def _client_error(self, error: BaseException, timeout_s: float) -> ClientError | None:
        if isinstance(error, TimeoutError):
            return RequestTimedOut(f"no answer from {self.url} in the {timeout_s:.3g} s left of timeout_s")
        if isinstance(error, http.client.RemoteDisconnected | http.client.IncompleteRead):
            return ServiceUnreachable(f"{self.url} closed the connection before it had answered")
        if isinstance(error, http.client.HTTPException):
            return BadAnswer(f"{self.url} does not answer in HTTP: {error!r}")
        if isinstance(error, ConnectionRefusedError):
            return ServiceUnreachable(f"nothing listens at {self.url}; is the service started?")
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = error.verify_message
            return BadAnswer(
                f"{self.url} is not trusted: {reason}; name the authority's file, Tls(ca_file=...)"
            )
        if isinstance(error, OSError):
            return ServiceUnreachable(f"no connection to {self.url}: {error}")
        return None
