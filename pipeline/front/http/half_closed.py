"""HalfClosed: a client that sends no more, and reads on or has left: at first both look the same."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_ASKED_AFTER_S = 0.05  # most are answered by then, and see nothing of this
_LOOK_EVERY_S = 0.05
_CLOSE_WAIT = 8  # of tcp_states.h: they have closed, we have not


class HalfClosed:
    """Finds out whether a client that sends no more has left, by telling it to wait.

    Who has left resets the connection then (RFC 9110 section 15.2: any client may be sent a 100).
    """

    def __init__(
        self, transport: asyncio.Transport, waits: Callable[[], bool], on_left: Callable[[], None]
    ) -> None:
        """waits: whether a request is being answered; else an answer, or its end, may yet be sent.

        on_left: called where the client has left.
        """
        self._transport = transport
        self._waits = waits
        self._left = on_left
        self._timer = asyncio.get_running_loop().call_later(_ASKED_AFTER_S, self._ask)

    def cancel(self) -> None:
        """The connection ends."""
        self._timer.cancel()

    def _ask(self) -> None:
        if not self._waits():
            self._timer = asyncio.get_running_loop().call_later(_ASKED_AFTER_S, self._ask)
            return
        self._transport.write(CONTINUE)
        self._look_later()

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _look(self) -> None:
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT:
            self._look_later()
        else:
            self._left()
