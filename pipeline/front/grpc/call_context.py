"""CallContext: the context of a gRPC call for its handler, with bounded reads and writes."""

from __future__ import annotations

import asyncio
import string
import urllib.parse
from collections.abc import Callable
from typing import Any, Never

import grpc
import grpc.aio

from pipeline.front.grpc.slow_clients import ClientBounds

# gRPC sends the text of a status percent-encoded in a header. Clients reject headers over 8 KiB.
_MAX_DETAILS_BYTES = 4096
_UNESCAPED = string.digits + string.ascii_letters + string.punctuation.replace("%", "") + " "


class CallContext:
    """Wraps the grpc.aio context of a call, and counts its buffered bytes against the bounds of the server.

    Compared by identity. Attributes that are not defined here are those of `grpc.aio.ServicerContext`.
    """

    on_stop: Callable[[], None] | None = None  # called when the server stops; set by streams
    _slow = False  # a unary call that takes longer than 20 ms
    _finished = False
    _reader: asyncio.Task[Any] | None = None  # waits for the message of a unary call
    _timed_out = False
    _response_bytes: int | None = None  # of the last message, while gRPC sends it
    _queued_bytes = 0  # messages of a stream that are not written yet
    _writing = False

    def __init__(self, context: grpc.aio.ServicerContext[bytes, bytes], bounds: ClientBounds) -> None:
        self._context = context
        self._bounds = bounds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    def peer(self) -> str:
        """Return the address of the client as gRPC writes it."""
        return self._context.peer()

    def time_remaining(self) -> float | None:
        """Return the seconds until the deadline of the client; None without a deadline."""
        return self._context.time_remaining()

    async def read_unary(self) -> bytes:
        """Return the message of a unary call. Aborts the call if no message arrives in time."""
        self._reader = asyncio.current_task()
        try:
            message = await self._context.read()
        except asyncio.CancelledError:
            if not self._timed_out or self._reader is None:
                raise
            self._reader.uncancel()
            await self.abort(
                grpc.StatusCode.DEADLINE_EXCEEDED, "the message did not arrive within limits.body_timeout_s"
            )
        finally:
            self._reader = None
            if self._slow:
                self._bounds.messages.remove(self)
        if message is grpc.aio.EOF:  # type: ignore[attr-defined]
            await self.abort(grpc.StatusCode.INTERNAL, "the call has no message")
        return message

    def become_slow(self) -> None:
        """Count the message or the response of a unary call from now on."""
        self._slow = True
        if self._reader is not None:
            self._bounds.messages.add(self, unary=True)
        elif self._response_bytes is not None:
            self._bounds.responses.add(self, self._response_bytes)

    def time_out_message(self) -> None:
        """End the wait of `read_unary`."""
        if self._reader is not None:
            self._timed_out = True
            self._reader.cancel()

    async def read(self) -> Any:
        """Return the next message of a stream, `grpc.aio.EOF` after the last."""
        self._bounds.messages.add(self, unary=False)
        try:
            return await self._context.read()
        finally:
            self._bounds.messages.remove(self)

    def queue_message(self, size: int) -> None:
        """Count a message of a stream that waits for its `write`."""
        self._queued_bytes += size
        if self._writing:
            self._bounds.responses.add(self, size)

    async def write(self, message: bytes) -> None:
        """Send a message of a stream."""
        self._writing = True
        self._bounds.responses.add(self, self._queued_bytes)
        try:
            await self._context.write(message)
        finally:
            self._writing = False
            self._queued_bytes -= len(message)
            self._bounds.responses.remove(self)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> Never:
        """End the call with a status. Raises grpc.aio.AbortError."""
        self._bounds.responses.add(self, 0)
        try:
            await self._context.abort(code, _truncate(details))
        finally:
            self._bounds.responses.remove(self)
        raise AssertionError("abort raises AbortError")

    def begin_unary(self) -> None:
        """Watch whether the call becomes slow, until `finish`."""
        self._bounds.slow_calls.add(self)

    def begin_last_response(self, size: int) -> None:
        """Count the last message and the status, if the call is or becomes slow, until `finish`."""
        self._response_bytes = size
        if self._slow:
            self._bounds.responses.add(self, size)

    def begin_status(self) -> None:
        """Count the status of a stream until `finish`."""
        if not self._finished:
            self._bounds.responses.add(self, 0)

    def finish(self) -> None:
        """Stop counting: the call is over."""
        self._finished = True
        self._bounds.slow_calls.remove(self)
        self._bounds.responses.remove(self)


def _truncate(details: str) -> str:
    text = details[:_MAX_DETAILS_BYTES]
    while len(urllib.parse.quote(text, safe=_UNESCAPED)) > _MAX_DETAILS_BYTES:
        text = text[: len(text) // 2]
    return text if len(text) == len(details) else f"{text}..."
