"""HalfClosed: a client that sends no more, and reads on or has left: at first both look the same."""

from __future__ import annotations

import asyncio
import socket

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_CLOSE_WAIT = 8  # of tcp_states.h: they have closed, we have not


class HalfClosed:
    """takes_interim: whether it may be sent a 100, which clients of HTTP/1.0 do not know."""

    def __init__(self, transport: asyncio.Transport, *, takes_interim: bool) -> None:
        self._transport = transport
        self._takes_interim = takes_interim
        self._asked = False

    def has_left(self) -> bool:
        """To be called now and then while it waits for its answer, and nothing of that is sent yet.

        Who has left resets the connection when something is sent: the first call sees to that.
        """
        if not self._asked:
            self._asked = True
            if self._takes_interim:
                self._transport.write(CONTINUE)
            return False
        connection = self._transport.get_extra_info("socket")
        return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != _CLOSE_WAIT)
