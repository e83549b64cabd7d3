"""FrameWatch: notices that a worker has stopped in the middle of a frame."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from pipeline.messages.frames import FrameReader

STOPPED_S = 5.0  # without a byte; one call of the system's sends a frame on without any work in between


class FrameWatch:
    """stopped: called when the rest of a frame does not come."""

    def __init__(self, connection: socket.socket, reader: FrameReader, stopped: Callable[[], None]) -> None:
        self._connection = connection
        self._reader = reader
        self._stopped = stopped
        self._timer: asyncio.TimerHandle | None = None

    def look(self) -> None:
        """To be called when all that has arrived is settled."""
        self.cancel()
        if self._reader.halfway:
            self._timer = asyncio.get_running_loop().call_later(STOPPED_S, self._check)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self) -> None:
        self._timer = None
        with contextlib.suppress(BlockingIOError):
            self._connection.recv(1, socket.MSG_PEEK)
            return  # it is here, and the loop was late: `look` is called when it is read
        self._stopped()
