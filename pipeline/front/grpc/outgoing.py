"""Messages of a streaming gRPC call, which wait until the client's connection accepts them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol


class Writer(Protocol):
    """The part of a gRPC call's context that writes response messages."""

    def queue_message(self, size: int) -> None: ...

    async def write(self, message: bytes) -> None: ...


class OutgoingMessages:
    """The queue of response messages of one streaming gRPC call, which are written one after the other.

    Several requests of the call, and workers, add messages without waiting. The queue needs no limit: each
    sender waits for `on_written` of its earlier messages.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._messages: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._wake = asyncio.Event()  # there is a message, or the call ends

    def add(self, message: bytes, on_written: Callable[[], None]) -> None:
        """Queue a message behind all earlier messages. `on_written` is called after its write."""
        self._messages.append((message, on_written))
        self._writer.queue_message(len(message))
        self._wake.set()

    async def write_until(self, over: asyncio.Future[Any]) -> None:
        """Write messages until a future is done and no message is left."""
        over.add_done_callback(lambda _: self._wake.set())
        while self._messages or not over.done():
            self._wake.clear()
            while self._messages:
                message, on_written = self._messages.popleft()
                await self._writer.write(message)
                on_written()
            if not over.done():
                await self._wake.wait()
