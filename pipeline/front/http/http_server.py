"""HTTP server of a service: opens ports, closes slow and idle connections, stops without losing a request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial

from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates
from pipeline.errors import StartFailed
from pipeline.front.http.connection import Connection, HttpApplication
from pipeline.front.http.listener import Listener
from pipeline.front.http.request_head import HttpGuard
from pipeline.front.pool.shards import Shards

log = logging.getLogger(__name__)

SHUTDOWN_S = 1.0  # wait for the close_notify of the client
MIN_HANDSHAKES = 16  # that may be open at the maximum of connections; or a tenth of the maximum, if more
_ACCEPTS_PER_TURN = 8  # of a port; with two ports the oldest of more than 16 handshakes has begun
_RETRY_S = 1.0  # pause when the process has too many open files


class Acceptor:
    """Accepts connections on listening sockets, to begin TLS handshakes or to pass connections to shards."""

    def __init__(self, accepted: Callable[[socket.socket], None]) -> None:
        """Create the acceptor. accepted: called with each new connection."""
        self._accepted = accepted

    def listen(self, listening: socket.socket) -> None:
        """Accept clients on a listening socket, until `close` is called for the socket."""
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self, listening: socket.socket) -> None:
        """Close a listening socket: accept no more clients."""
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()

    def _accept(self, listening: socket.socket) -> None:
        """Accept a limited number of waiting clients. Pauses for a second if too many files are open."""
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.warning("No connection can be accepted for %g s: %s", _RETRY_S, exc)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_RETRY_S, self._listen_again, listening)
                return
            self._accepted(connection)

    def _listen_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.listen(listening)


class TlsHandshakes:
    """Performs the TLS handshakes of new connections, with a limit on handshakes in progress.

    asyncio's own server would not limit them. A client in the handshake counts against `max_connections`.
    """

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        certificates: Certificates,
        limits: Limits,
        connections: Callable[[], int],
    ) -> None:
        """Create the limiter. protocol: creates the asyncio protocol of a new connection.

        connections: returns the number of connections whose handshake is complete.
        """
        self._protocol = protocol
        self._certificates = certificates
        self._limits = limits
        self._connections = connections
        self._open: dict[asyncio.Task[None], None] = {}  # open handshakes, oldest first

    def __len__(self) -> int:
        return len(self._open)

    def begin_handshake(self, accepted: socket.socket) -> None:
        """Begin the TLS handshake on an accepted socket.

        Over the limit, the oldest handshake is cancelled.
        """
        task = asyncio.create_task(self._shake_hands(accepted))
        self._open[task] = None
        task.add_done_callback(self._forget)
        handshakes = len(self._open)
        max_connections = self._limits.max_connections
        if handshakes + self._connections() > max_connections and handshakes > max(
            MIN_HANDSHAKES, max_connections // 10
        ):
            self._cancel(next(iter(self._open)))

    def cancel_all(self) -> None:
        """Cancel all handshakes in progress."""
        for task in list(self._open):
            self._cancel(task)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._open.pop(task, None)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._certificates.context,  # read here: certificates may be renewed
                ssl_handshake_timeout=self._limits.header_timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as exc:  # ssl.SSLError is one
            log.debug("A handshake has failed: %s", exc)


SILENT_S = 1.0  # while the server stops, connections without data for this long are closed
_BACKLOG = 2048


class HttpServer:
    """Serves an HTTP application on one or several ports, with or without TLS."""

    def __init__(
        self,
        app: HttpApplication,
        ports: Mapping[str, tuple[str, int]],
        limits: Limits,
        certificates: Certificates | None = None,
        guard: HttpGuard | None = None,
        shards: Shards | None = None,
    ) -> None:
        """Create the server, without listening.

        ports: address and port by config key. An empty address means every interface. certificates: if set,
        the ports serve only TLS. guard: checks API keys; None for no check. shards: if set, new connections
        are passed to these worker processes.
        """
        self._ports = ports
        self._sockets: list[socket.socket] = []
        self._servers: list[asyncio.Server] = []
        self._listener = listener = Listener(limits, guard)
        self._connection = partial(Connection, app, listener)
        self._handshakes: TlsHandshakes | None = None
        self._acceptor: Acceptor | None = None
        self._shards = shards
        self._adopting: set[asyncio.Task[None]] = set()
        if certificates is not None:
            connections = listener.connections
            self._handshakes = TlsHandshakes(self._connection, certificates, limits, connections.__len__)
            self._acceptor = Acceptor(self._handshakes.begin_handshake)
        elif shards is not None:
            shards.serve_here = self._adopt
            self._acceptor = Acceptor(shards.accept)

    @property
    def ports(self) -> list[int]:
        """The numbers of the open ports."""
        return [each.getsockname()[1] for each in self._sockets]

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Context manager: listens on the HTTP ports on entry; closes ports and connections on exit.

        Raises StartFailed if a port is in use.
        """
        self._sockets = bind_all(self._ports)
        for each in self._sockets:
            if self._acceptor is not None:
                self._acceptor.listen(each)
                continue
            loop = asyncio.get_running_loop()
            self._servers.append(await loop.create_server(self._connection, sock=each, backlog=_BACKLOG))
        watcher = asyncio.create_task(self._listener.watch(), name="http-watcher")
        try:
            yield
        finally:
            watcher.cancel()
            self._close_ports()
            if self._handshakes is not None:
                self._handshakes.cancel_all()
            for connection in list(self._listener.connections):
                connection.close()

    def _close_ports(self) -> None:
        for server in self._servers:
            server.close()
        if self._acceptor is not None:
            for each in self._sockets:
                self._acceptor.close(each)
        self._sockets.clear()

    async def stop_listening(self) -> None:
        """Stop accepting connections: accept those that the kernel has queued, then close the ports.

        Open connections stay open until their next response. Shards give their connections back to this
        process.
        """
        self._listener.draining = True
        self._listener.held.send_all()
        accepted = []
        for listening in self._sockets:
            waiting = listening.dup()
            waiting.setblocking(False)
            with waiting, contextlib.suppress(BlockingIOError):
                while True:
                    accepted.append(waiting.accept()[0])
        self._close_ports()
        for each in accepted:
            if self._handshakes is not None:
                self._handshakes.begin_handshake(each)
                continue
            await self._connect(each)
        if self._shards is not None:
            self._shards.pause()

    async def _connect(self, accepted: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the client has left
            await asyncio.get_running_loop().connect_accepted_socket(self._connection, accepted)

    def _adopt(self, connection: socket.socket) -> None:
        """Serve a connection in this process, because no shard serves it."""
        task = asyncio.create_task(self._connect(connection))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    @property
    def _is_open(self) -> bool:
        """Whether a connection is open, here or in a shard, or about to be, as in a TLS handshake."""
        in_shards = self._shards is not None and bool(self._shards.connections or self._adopting)
        return bool(self._listener.connections or self._handshakes or in_shards)

    async def until_silent(self, timeout_s: float) -> None:
        """Serve the open connections until all are closed, or for `timeout_s` plus SILENT_S seconds.

        Closes each connection that has had no traffic for SILENT_S seconds.
        """
        started = time.monotonic()
        over = started + timeout_s + SILENT_S
        while self._is_open and time.monotonic() < over:
            await asyncio.sleep(SILENT_S / 20)
            silent_since = time.monotonic() - SILENT_S
            if silent_since < started:
                continue
            if self._handshakes is not None:
                self._handshakes.cancel_all()
            for connection in list(self._listener.connections):
                connection.close_if_silent(silent_since)


def bind_all(ports: Mapping[str, tuple[str, int]]) -> list[socket.socket]:
    """Return a listening socket for each port. If a port is in use, raises StartFailed and opens no port."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(bind(*place, name)) for name, place in ports.items()]
        opened.pop_all()
    return sockets


def bind(address: str, port: int, name: str) -> socket.socket:
    """Return a listening socket; without an address, on all IPv4 and, if available, IPv6 interfaces.

    name: config key of the port, for the error. Raises StartFailed if the port is in use, or the address does
    not belong to this machine.
    """
    try:
        if address:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            return socket.create_server((address, port), family=family, backlog=_BACKLOG)
        if socket.has_dualstack_ipv6():
            return socket.create_server(
                ("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG
            )
        return socket.create_server(("", port), backlog=_BACKLOG)
    except OSError as exc:
        raise StartFailed(
            f"{name} {port} can't be opened{f' at {address}' if address else ''} ({exc.strerror}): stop what "
            "uses it, or choose another one"
        ) from exc
