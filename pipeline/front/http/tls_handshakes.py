"""TlsHandshakes: accepts on the ports with TLS; who has not shaken hands yet is no connection, but counts."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable

from pipeline.config.config_file import Limits
from pipeline.config.tls import Certificates

log = logging.getLogger(__name__)

SHUTDOWN_S = 1.0  # for the other side to say that it closes, too
ALWAYS = 16  # handshakes, and a tenth of the most connections, that may be under way however many there are
_AT_ONCE = 8  # that each of two ports accepts in a turn of the loop; so the oldest of over 16 has begun
_RETRY_S = 1.0  # when the process may open no further file


class TlsHandshakes:
    """Accepts TLS connections and shakes hands, which the loop's server would neither count nor end."""

    def __init__(
        self,
        protocol: Callable[[], asyncio.Protocol],
        certificates: Certificates,
        limits: Limits,
        connections: Callable[[], int],
    ) -> None:
        """connections: how many there are whose hands are shaken."""
        self._protocol = protocol
        self._certificates = certificates
        self._limits = limits
        self._connections = connections
        self._under_way: dict[asyncio.Task[None], None] = {}  # the oldest first

    def __len__(self) -> int:
        return len(self._under_way)

    def listen(self, listening: socket.socket) -> None:
        """Shake hands with whoever connects, from now on until `close`."""
        listening.setblocking(False)
        asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def close(self, listening: socket.socket) -> None:
        """Accept nobody any more; what is under way goes on."""
        asyncio.get_running_loop().remove_reader(listening)
        listening.close()

    def begin(self, accepted: socket.socket) -> None:
        """Shake hands with who has just connected; where they are too many, the oldest handshake ends."""
        task = asyncio.create_task(self._shake_hands(accepted))
        self._under_way[task] = None
        task.add_done_callback(self._forget)
        many = len(self._under_way)
        most = self._limits.max_connections
        if many + self._connections() > most and many > max(ALWAYS, most // 10):
            self._end(next(iter(self._under_way)))

    def end_all(self) -> None:
        for task in list(self._under_way):
            self._end(task)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._forget(task)
        task.cancel()

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._under_way.pop(task, None)

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as exc:
                log.warning("No connection can be accepted for %g s: %s", _RETRY_S, exc)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(_RETRY_S, self._listen_again, listening)
                return
            self.begin(accepted)

    def _listen_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self.listen(listening)

    async def _shake_hands(self, accepted: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._protocol,
                accepted,
                ssl=self._certificates.context,  # of this moment: the files may have been read again
                ssl_handshake_timeout=self._limits.header_timeout_s,
                ssl_shutdown_timeout=SHUTDOWN_S,
            )
        except OSError as exc:  # ssl.SSLError is one
            log.debug("A handshake has failed: %s", exc)
