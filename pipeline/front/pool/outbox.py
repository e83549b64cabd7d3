"""Outbox: what the front sends to an instance, as fast as its socket takes it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Sequence

from pipeline.messages.values import Part


class Outbox:
    """Sends in order, and never waits: what the socket does not take yet is kept here."""

    def __init__(self, to: socket.socket) -> None:
        self._socket = to
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._ending = False

    def send(self, buffers: Sequence[Part]) -> None:
        for buffer in buffers:
            view = memoryview(buffer)
            if not self._unsent:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    pass
                except OSError:  # the worker is dying; its pidfd will say so
                    return
            if len(view):
                self._unsent.append(view)
        if self._unsent:
            self._loop.add_writer(self._socket, self._send_on)

    def end(self) -> None:
        """Close our end once all is sent."""
        self._ending = True
        if not self._unsent:
            self._close_our_end()

    def give_up(self) -> None:
        """Send nothing more; to be called before the socket is closed."""
        self._loop.remove_writer(self._socket)

    def _send_on(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            try:
                sent = self._socket.send(view)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                break
            if sent < len(view):
                self._unsent[0] = view[sent:]
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)
        if self._ending:
            self._close_our_end()

    def _close_our_end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
