"""Reading whole frames from the socket of a local process, for sending them to another node."""

from __future__ import annotations

import asyncio
import socket
from typing import NamedTuple

from pipeline.messages.frames import FRAME_LIMIT, HEADER, Arena

_BUFFER_BYTES = 1 << 20


class WholeFrame(NamedTuple):
    """A frame whose large parts follow the message, instead of lying in shared memory."""

    kind: int
    message: bytes
    tail: bytes

    @classmethod
    def unpack(cls, data: bytes) -> WholeFrame:
        """Split bytes that `pack` has returned into the frame's fields.

        Raises ValueError for other bytes.
        """
        kind, message_size, tail_size, offset = HEADER.unpack_from(data)
        tail_at = HEADER.size + message_size
        if offset >= 0 or len(data) != tail_at + tail_size:
            raise ValueError(f"{len(data)} bytes are no frame of {message_size} and {tail_size}")
        return cls(kind, data[HEADER.size : tail_at], data[tail_at:])

    def pack(self) -> bytes:
        """Return the frame as bytes, to be sent to another machine."""
        header = HEADER.pack(self.kind, len(self.message), len(self.tail), -1)
        return b"".join((header, self.message, self.tail))


class LocalSocket:
    """One end of the socketpair of a worker instance, with the shared memory of the instance.

    Raises ValueError for received bytes that are not a frame.
    """

    def __init__(self, fd: int, arena: Arena) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self._is_shut_down = False
        self.arena = arena

    async def start_reading(self) -> None:
        """Start to read from the socket in the running event loop."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._socket, limit=_BUFFER_BYTES)

    async def receive_frame(self) -> WholeFrame | None:
        """Wait for the next frame, and copy its large parts out of the shared memory.

        Returns None at end of file.
        """
        try:
            header = await self._reader.readexactly(HEADER.size)
            kind, message_size, tail_size, offset = HEADER.unpack(header)
            if message_size + tail_size > FRAME_LIMIT:
                raise ValueError(f"a frame of {message_size + tail_size} bytes is over {FRAME_LIMIT}")
            message = await self._reader.readexactly(message_size)
            if offset >= 0:
                return WholeFrame(kind, message, bytes(self.arena.view[offset : offset + tail_size]))
            return WholeFrame(kind, message, await self._reader.readexactly(tail_size))
        except (OSError, EOFError):
            return None

    async def write(self, data: bytes) -> None:
        """Send the bytes of a frame, and wait while the receiving process reads too slowly.

        After `shut_down` the frame is dropped: the front process runs the requests of an ended worker
        elsewhere.
        """
        if self._is_shut_down:
            return
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError:  # the process has ended; its exit is reported elsewhere
            return

    def shut_down(self) -> None:
        """Send end of file to the process at the other end of the socket."""
        self._is_shut_down = True
        if self._writer.can_write_eof() and not self._writer.transport.is_closing():
            self._writer.write_eof()

    def close(self) -> None:
        self._writer.close()
