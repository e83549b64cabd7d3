"""The HTTP listener: binds, accepts, watches over slow connections, and stops without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import socket
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from pipeline.config import Limits
from pipeline.errors import StartFailed
from pipeline.server.doors.http_listener import Listener
from pipeline.server.doors.http_protocol import Connection
from pipeline.server.doors.http_request import RequestTaker
from pipeline.server.engine.clients import HttpGuard
from pipeline.tls import Certificates

SILENT_S = 1.0  # while stopping, a connection without a word for this long is closed
_BACKLOG = 2048
_WATCH_EVERY_S = 0.5


class HttpServer:
    """Serves an app on ports of every interface; over TLS alone where there are certificates.

    ports: by their keys in config.yml.
    """

    def __init__(
        self,
        app: RequestTaker,
        ports: Mapping[str, int],
        limits: Limits,
        certificates: Certificates | None = None,
        guard: HttpGuard | None = None,
    ) -> None:
        self._ports = ports
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._listener = Listener(app, limits, guard)
        self._certificates = certificates

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Listens on entry; on exit whatever is left is closed. Raises StartFailed for a used port."""
        self._sockets = bind_all(self._ports)
        self._servers = [await self._accept(each) for each in self._sockets]
        watcher = asyncio.create_task(self._watch(), name="http-watcher")
        try:
            yield
        finally:
            watcher.cancel()
            for server in self._servers:
                server.close()
            for connection in list(self._listener.connections):
                connection.close()

    async def renew_certificates(self) -> None:
        """Show connections that come from now on what the certificates are now; the others keep theirs."""
        for number, listening in enumerate(self._sockets):
            if self._listener.draining:
                break
            again = listening.dup()  # the same queue of connections, so none is lost in between
            accepting = await self._accept(again)
            self._servers[number].close()
            self._sockets[number], self._servers[number] = again, accepting

    async def stop_listening(self) -> None:
        """Accept what the kernel has accepted already, then close the ports. Open connections stay."""
        self._listener.draining = True
        loop = asyncio.get_running_loop()
        accepted = []
        for listening, server in zip(self._sockets, self._servers, strict=True):
            waiting = listening.dup()
            waiting.setblocking(False)
            with waiting, contextlib.suppress(BlockingIOError):
                while True:
                    accepted.append(waiting.accept()[0])
            server.close()
        tls = self._tls()
        served = (loop.connect_accepted_socket(self._connection, each, **tls) for each in accepted)
        await asyncio.gather(*served, return_exceptions=True)  # with TLS, some may not shake hands

    async def until_silent(self, timeout_s: float) -> None:
        """Answer what still comes on open connections, and close each that says nothing for a second."""
        started = time.monotonic()
        # Those that shake hands are no connections yet.
        shaking_hands_until = started + SILENT_S if self._certificates else started
        while (
            self._listener.connections and time.monotonic() < started + timeout_s + SILENT_S
        ) or time.monotonic() < shaking_hands_until:
            await asyncio.sleep(SILENT_S / 20)
            silent_since = time.monotonic() - SILENT_S
            if silent_since < started:
                continue
            for connection in list(self._listener.connections):
                connection.close_if_silent(silent_since)

    async def _accept(self, listening: socket.socket) -> asyncio.Server:
        loop = asyncio.get_running_loop()
        return await loop.create_server(self._connection, sock=listening, backlog=_BACKLOG, **self._tls())

    def _tls(self) -> dict[str, Any]:
        """Arguments of the loop's, none without certificates."""
        if self._certificates is None:
            return {}
        return {
            "ssl": self._certificates.context,
            "ssl_handshake_timeout": self._listener.limits.header_timeout_s,
            "ssl_shutdown_timeout": SILENT_S,
        }

    def _connection(self) -> asyncio.Protocol:
        return Connection(self._listener)

    async def _watch(self) -> None:
        """Once in a while: the date header, requests that take too long to arrive, and idle connections."""
        while True:
            date = email.utils.formatdate(usegmt=True).encode()
            self._listener.date_line = b"date: %b\r\n" % date
            now = time.monotonic()
            for connection in list(self._listener.connections):
                connection.close_if_slow(now)
                connection.close_if_silent(now - self._listener.limits.idle_timeout_s)
            await asyncio.sleep(_WATCH_EVERY_S)


def bind_all(ports: Mapping[str, int]) -> list[socket.socket]:
    """A listening socket for each. Raises StartFailed, with none left open, when one is taken."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(bind(port, name)) for name, port in ports.items()]
        opened.pop_all()
    return sockets


def bind(port: int, name: str = "http_port") -> socket.socket:
    """A listening socket on IPv4 and, where the system has it, IPv6. Raises StartFailed when it is taken."""
    try:
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as exc:
        raise StartFailed(
            f"{name} {port} can't be opened ({exc.strerror}): stop what uses it, or choose another one"
        ) from exc
