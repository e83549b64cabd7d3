"""Pools of keep-alive HTTP client connections to servers, with one deadline for each request.

Each stream of events has a connection of its own.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

from client.addresses import call_in_turn, split_addresses
from client.errors import BadAnswer, ClientError, RequestTimedOut, ServiceUnreachable
from client.headers import HEADER, checked_headers, find_api_key
from client.tls import Tls

MAX_BODY_BYTES = 512 * 1024 * 1024  # what the gRPC client takes at most, too
EVENT_STREAM = "text/event-stream"
AVOIDED_S = 5.0  # an unreachable server is the last choice for this time

T = TypeVar("T")
U = TypeVar("U")


@dataclass(frozen=True)
class HttpReply:
    """An HTTP response as the client received it; `retry_after` is the header Retry-After or None."""

    status: int
    reason: str
    body: bytes
    retry_after: str | None


class _Deadline:
    """Mixin for sockets that limits all reads of a response together to one deadline.

    A socket's own timeout limits each single read, so that a slow server could continue for ever.
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
    """Keep-alive HTTP connections of a client to one server, opened on demand.

    Threads may share the pool.
    """

    def __init__(
        self,
        url: str,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a pool without connecting. headers: sent with each request; they override default headers.

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
        self._header_lines = _format_headers(merged)
        event_headers = {name: value for name, value in merged.items() if name.lower() != "accept"}
        self._event_header_lines = _format_headers({**event_headers, "Accept": EVENT_STREAM})
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {url!r} is not of the form http://host:port")
        self.url = url
        self.avoided_until = 0.0  # time.monotonic() instant
        self._prefix = parts.path.rstrip("/")
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

    def send(self, method: str, path: str, body: bytes, timeout_s: float, connect_s: float) -> HttpReply:
        """Send a request once, without retries, and return the response with any status.

        path: appended to the path of the pool's URL. connect_s: seconds for a new connection. Raises
        RequestTimedOut, ServiceUnreachable or BadAnswer.
        """
        if self._closed:
            raise ValueError("the client is closed")
        deadline = time.monotonic() + timeout_s
        connection = self._take_idle()
        reused = connection is not None
        try:
            if connection is None:
                connection = self._connect(min(timeout_s, connect_s), deadline)
            reply, keep = self._exchange(connection, method, path, body, deadline)
        except BaseException as error:
            if connection is not None:
                connection.close()  # a reused connection would deliver this answer to the next request
            client_error = self._client_error(error, timeout_s)
            if client_error is None:  # raised here, or not a connection error
                raise
            if reused and isinstance(client_error, ServiceUnreachable):
                # The server has closed idle connections: the next try opens a new one.
                self._close_idle()
                client_error.retry_after_s = 0.0
            elif isinstance(client_error, ServiceUnreachable):
                self.avoided_until = time.monotonic() + AVOIDED_S
            raise client_error from error
        if keep and not self._closed:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    def post_for_events(
        self, path: str, body: bytes, timeout_s: float, connect_s: float
    ) -> Generator[HttpReply, None, None]:
        """Send a POST request once, and yield a response for each server-sent event, with its data as body.

        Any other response is yielded as it is. timeout_s: for all events. Raises the errors of `send`.
        """
        if self._closed:
            raise ValueError("the client is closed")
        deadline = time.monotonic() + timeout_s
        try:
            with self._connect(min(timeout_s, connect_s), deadline) as connection:
                response = self._request(connection, "POST", path, body, deadline, self._event_header_lines)
                with response:
                    if response.getheader("Content-Type", "").startswith(EVENT_STREAM):
                        for data in self._read_events(response):
                            yield HttpReply(response.status, response.reason, data, None)
                    else:
                        yield self._read_reply(response)
        except (OSError, http.client.HTTPException, ServiceUnreachable) as error:
            client_error = self._client_error(error, timeout_s)
            if isinstance(client_error, ServiceUnreachable):
                self.avoided_until = time.monotonic() + AVOIDED_S
            if client_error is None or client_error is error:
                raise
            raise client_error from error

    def _read_events(self, response: http.client.HTTPResponse) -> Generator[bytes, None, None]:
        """Yield the data of each server-sent event. Other fields of an event are ignored."""
        lines = list[bytes]()
        while line := response.readline(MAX_BODY_BYTES + 1):
            if sum(map(len, lines), len(line)) > MAX_BODY_BYTES:
                raise BadAnswer(f"{self.url} sent an event of more than {MAX_BODY_BYTES} bytes")
            text = line.rstrip(b"\r\n")
            if text.startswith(b"data:"):
                lines.append(text.removeprefix(b"data:").removeprefix(b" "))
            elif not text and lines:
                yield b"\n".join(lines)
                lines = []

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

    def _connect(self, timeout_s: float, deadline: float) -> _Socket | _TlsSocket:
        try:
            plain = socket.create_connection((self._host, self._port), max(0.001, timeout_s))
        except TimeoutError:
            if time.monotonic() >= deadline:
                raise
            raise ServiceUnreachable(f"no connection to {self.url} within {timeout_s:.3g} s") from None
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
        response = self._request(connection, method, path, body, deadline, self._header_lines)
        with response:
            return self._read_reply(response), not response.will_close

    def _request(
        self,
        connection: _Socket | _TlsSocket,
        method: str,
        path: str,
        body: bytes,
        deadline: float,
        header_lines: str,
    ) -> http.client.HTTPResponse:
        """Send a request, and return the response after its header is read. The body is still to be read."""
        connection.deadline = deadline
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        head = (
            f"{method} {quote(self._prefix + path, safe='/:')} HTTP/1.1\r\n"
            f"Host: {self._host_header}\r\n{header_lines}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        # In one piece: http.client's own request() sends two, and wakes the server twice.
        connection.sendall(head.encode("ascii") + body)
        response = http.client.HTTPResponse(connection, method=method)
        try:
            response.begin()
        except BaseException:
            response.close()
            raise
        return response

    def _read_reply(self, response: http.client.HTTPResponse) -> HttpReply:
        # Only a read to the end notices that a body of known length was cut off.
        has_length = response.length is not None and response.length <= MAX_BODY_BYTES
        content = response.read() if has_length else response.read(MAX_BODY_BYTES + 1)
        if len(content) > MAX_BODY_BYTES:
            raise BadAnswer(f"{self.url} answered with more than {MAX_BODY_BYTES} bytes")
        return HttpReply(response.status, response.reason, content, response.getheader("Retry-After"))

    def _client_error(self, error: BaseException, timeout_s: float) -> ClientError | None:
        if isinstance(error, ServiceUnreachable):
            return error
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


class HttpServers:
    """The servers of one service over HTTP, each with a pool of connections; threads may share an instance.

    Requests go to each server in turn. If a server is unreachable or unavailable, its request is sent to the
    next server.
    """

    def __init__(
        self,
        urls: str,
        tls: Tls | None = None,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare the pools without connecting. urls: one or several URLs, separated by commas.

        Raises the errors of ConnectionPool, and ValueError for an empty or repeated URL.
        """
        self.urls = urls
        self._pools = [ConnectionPool(url, tls, api_key, headers) for url in split_addresses(urls)]
        self._turns = itertools.count()

    def post(self, path: str, body: bytes, timeout_s: float, parse: Callable[[HttpReply], T]) -> T:
        """Send an idempotent POST request, and return the response as converted by `parse`.

        parse: raises a ClientError for an error response. Raises a ClientError.
        """
        return self._send("POST", path, body, timeout_s, parse)

    def get(self, path: str, timeout_s: float, parse: Callable[[HttpReply], T]) -> T:
        """Send a GET request, and return the response as converted by `parse`. Raises a ClientError."""
        return self._send("GET", path, b"", timeout_s, parse)

    def delete(self, path: str, timeout_s: float, parse: Callable[[HttpReply], T]) -> T:
        """Send a DELETE request, and return the response as converted by `parse`. Raises a ClientError."""
        return self._send("DELETE", path, b"", timeout_s, parse)

    def stream(
        self, path: str, body: bytes, timeout_s: float, parse: Callable[[HttpReply], T]
    ) -> Generator[T, None, None]:
        """Send a POST request, and yield each event of the response as converted by `parse`.

        Before the first event, the request is sent to the next server if a server is unreachable or
        unavailable. timeout_s: limit for all events together. Raises a ClientError.
        """

        def begin(
            pool: ConnectionPool, pools_left: int, remaining_s: float
        ) -> tuple[Generator[HttpReply, None, None], T | None]:
            events = pool.post_for_events(path, body, remaining_s, remaining_s / pools_left)
            reply = next(events, None)
            return events, None if reply is None else parse(reply)

        events, value = call_in_turn(self._list_sends(begin), timeout_s)
        with contextlib.closing(events):
            if value is not None:
                yield value
            for reply in events:
                yield parse(reply)

    def close(self) -> None:
        """Close the idle connections; connections in use close after their response."""
        for pool in self._pools:
            pool.close()

    def _send(
        self, method: str, path: str, body: bytes, timeout_s: float, parse: Callable[[HttpReply], T]
    ) -> T:
        def send(pool: ConnectionPool, pools_left: int, remaining_s: float) -> T:
            # A server that drops packets must leave time for the servers after it.
            return parse(pool.send(method, path, body, remaining_s, remaining_s / pools_left))

        return call_in_turn(self._list_sends(send), timeout_s)

    def _list_sends(self, send: Callable[[ConnectionPool, int, float], U]) -> list[Callable[[float], U]]:
        """Return a call of `send` for each pool, in the order in which to try the pools."""
        pools = self._ordered_pools()
        return [partial(send, pool, len(pools) - index) for index, pool in enumerate(pools)]

    def _ordered_pools(self) -> list[ConnectionPool]:
        """Return the pools in the order to try them: round-robin, recently unreachable servers last."""
        turn, now = next(self._turns) % len(self._pools), time.monotonic()
        return sorted([*self._pools[turn:], *self._pools[:turn]], key=lambda pool: pool.avoided_until > now)


def _format_headers(headers: Mapping[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())
