"""Frames and shared memory: how messages travel between the front process and one instance in a worker.

A frame is a header, a message of `pipeline.messages.messages` and a tail of large parts. The tail follows on
the socket, or lies in the instance's memfd when it is over `ARENA_BYTES_FROM` and fits there. The memfd has
four regions: for each of the two dispatches that may be under way, one for its requests and one for its
replies. The reader of a tail copies it out at once. So a region is free again as soon as the last reply to
its dispatch was read.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from pipeline.messages.messages import KINDS, Message, Stowed
from pipeline.messages.values import INLINE_BYTES, Part

if TYPE_CHECKING:
    import asyncio  # workers send in blocking mode, and do without asyncio

ARENA_BYTES_FROM = INLINE_BYTES  # the memfd beats the socket at every size (bench/transport.py)
REGION_BYTES = 16 * 1024 * 1024  # sparse: only touched pages cost memory
DISPATCHES_IN_FLIGHT = 2
ARENA_BYTES = 2 * DISPATCHES_IN_FLIGHT * REGION_BYTES
FRAME_LIMIT = 2**31
_REQUEST_BITS = 20  # of the count of what has begun: the requests of a dispatch, below those of dispatches
_ALL_REQUESTS = 2**_REQUEST_BITS - 1

_ARENA_NAME = "paddlewheel"
# Behind the regions: how many dispatches the instance has begun, and requests of the latest, and up to which
# dispatch the front takes back what has not begun. Then the instance's thread, by which /proc knows it.
_COUNT = struct.Struct("<q")
_BEGUN_AT, _TAKEN_BACK_AT = ARENA_BYTES, ARENA_BYTES + _COUNT.size
_THREAD_AT = _TAKEN_BACK_AT + _COUNT.size
_MAPPED_BYTES = ARENA_BYTES + 3 * _COUNT.size
_HEADER = struct.Struct("<BxxxIIi")  # kind, message bytes, tail bytes, arena offset or -1
_encode = msgspec.msgpack.Encoder().encode
Decoders = Mapping[int, Callable[[Part], Message]]


def create_decoders(kinds: Iterable[type[Message]]) -> Decoders:
    """Return the function that decodes each kind of message."""
    return {message.kind: msgspec.msgpack.Decoder(message).decode for message in kinds}


_DECODERS = create_decoders(KINDS)


class Frame(NamedTuple):
    message: Message
    tail: Tail


class Arena:
    """The memfd of one instance, mapped on both sides."""

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _MAPPED_BYTES)
        self._map.madvise(mmap.MADV_DONTFORK)  # a hook's children have no part in it, and can't keep it alive
        self.view = memoryview(self._map)

    def write(self, parts: Sequence[Part], region: Region) -> int:
        """Copy the parts into the region; their offset in the arena, or -1 when they don't fit."""
        size = sum(map(len, parts))
        offset = region.allocate(size)
        at = offset
        for part in parts if offset >= 0 else ():
            self.view[at : at + len(part)] = part
            at += len(part)
        return offset

    def note_begin(self, dispatch_id: int, requests: int = _ALL_REQUESTS) -> None:
        """Tell the front that this instance has begun with so many requests of the dispatch.

        The front reads it when the process dies, and when other instances can take what has not begun.
        """
        _COUNT.pack_into(self._map, _BEGUN_AT, ((dispatch_id + 1) << _REQUEST_BITS) + requests)

    def begun(self, dispatch_id: int) -> bool:
        """Whether the instance has begun with the dispatch; a dead one may not even have read it."""
        return bool(_COUNT.unpack_from(self._map, _BEGUN_AT)[0] >> _REQUEST_BITS > dispatch_id)

    def begun_requests(self, dispatch_id: int) -> int:
        """Return how many requests of the dispatch the instance has begun; for all, the number is larger."""
        count: int = _COUNT.unpack_from(self._map, _BEGUN_AT)[0]
        latest = (count >> _REQUEST_BITS) - 1
        if latest != dispatch_id:
            return _ALL_REQUESTS if latest > dispatch_id else 0
        requests: int = count & _ALL_REQUESTS
        return requests

    def take_back(self, dispatch_id: int) -> None:
        """Have the instance begin with nothing more of the dispatches up to this one.

        Each side writes its count before it reads that of the other, so no request is both begun and taken
        back. Where both happen in one moment, the instance declines the request, though it counts as begun.
        """
        _COUNT.pack_into(self._map, _TAKEN_BACK_AT, dispatch_id + 1)

    def taken_back(self, dispatch_id: int) -> bool:
        """Whether the front wants back what has not begun of a dispatch."""
        return bool(_COUNT.unpack_from(self._map, _TAKEN_BACK_AT)[0] > dispatch_id)

    def name_thread(self, thread_id: int) -> None:
        """Tell the front which thread runs the instance."""
        _COUNT.pack_into(self._map, _THREAD_AT, thread_id)

    @property
    def thread_id(self) -> int:
        """The thread that runs the instance; 0 before it has begun."""
        thread_id: int = _COUNT.unpack_from(self._map, _THREAD_AT)[0]
        return thread_id

    def close(self) -> None:
        self.view.release()
        self._map.close()


class Region:
    """The part of an arena for one direction of one dispatch: filled from its start, emptied as a whole."""

    def __init__(self, number: int) -> None:
        self._start = number * REGION_BYTES
        self._used = 0

    def reset(self) -> None:
        self._used = 0

    def allocate(self, size: int) -> int:
        if size > REGION_BYTES - self._used:
            return -1
        offset = self._start + self._used
        self._used += size
        return offset


def request_region(dispatch_id: int) -> Region:
    return Region(dispatch_id % DISPATCHES_IN_FLIGHT)


def reply_region(dispatch_id: int) -> Region:
    return Region(DISPATCHES_IN_FLIGHT + dispatch_id % DISPATCHES_IN_FLIGHT)


def create_arena_fd() -> int:
    """A memfd, inheritable by name only; the caller owns and closes it.

    Its size is sealed: where a worker made it shorter, the next look at it would kill the front (SIGBUS).
    """
    fd = os.memfd_create(_ARENA_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _MAPPED_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def arena_fds() -> list[int]:
    """Every descriptor of an arena that this process has; a mapping keeps one of its own."""
    fds = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that listed them
            if str(entry.readlink()).startswith(f"/memfd:{_ARENA_NAME}"):
                fds.append(int(entry.name))
    return fds


def stow(parts: Sequence[Part], tail: list[Part]) -> Stowed:
    """Parts as they go into a message: small ones themselves, of large ones the length (`tail` gets them)."""
    stowed: list[Any] = []
    for part in parts:
        if len(part) < INLINE_BYTES:
            stowed.append(part)
        else:
            tail.append(part)
            stowed.append(len(part))
    return stowed


class Tail:
    """The large parts of a frame, handed out in the order in which `stow` put them there."""

    __slots__ = ("_at", "_copy", "_data")

    def __init__(self, data: Part, writable: bool = True) -> None:
        self._data = data
        self._at = 0
        self._copy: type[bytes] | type[bytearray] = bytearray if writable else bytes

    @property
    def size(self) -> int:
        return len(self._data)

    def unstow(self, stowed: Stowed) -> list[Part]:
        """The parts that `stow` was given; the large ones are copies."""
        return [self._next(part) if isinstance(part, int) else part for part in stowed]

    def _next(self, size: int) -> bytes | bytearray:
        start = self._at
        self._at = start + size
        if self._at > len(self._data):
            raise ValueError(f"a frame's tail has {len(self._data)} bytes, {self._at} were announced")
        return self._copy(memoryview(self._data)[start : self._at])


_NO_TAIL = Tail(b"")


def frame(
    message: Message,
    tail: Sequence[Part] = (),
    arena: Arena | None = None,
    region: Region | None = None,
) -> list[Part]:
    """The buffers of one frame, to be written to the socket in order."""
    packed = _encode(message)
    size = sum(map(len, tail)) if tail else 0
    offset = -1
    if arena is not None and region is not None and size >= ARENA_BYTES_FROM:
        offset = arena.write(tail, region)
    header = _HEADER.pack(message.kind, len(packed), size, offset)
    if size == 0 or offset >= 0:
        return [header + packed]
    return [header + packed, *tail]


class FrameReader:
    """Cuts the bytes of a socket into frames.

    writable: whether large parts may be written to, as a worker's arrays; the front only passes them on.
    """

    def __init__(self, arena: Arena | None, *, writable: bool = True, decoders: Decoders = _DECODERS) -> None:
        self._decoders = decoders
        self._arena = arena
        self._writable = writable
        self._buffer = bytearray()

    @property
    def halfway(self) -> bool:
        """Whether the bytes so far end within a frame."""
        return bool(self._buffer)

    def feed(self, data: Part) -> Iterator[Frame]:
        """The frames that these bytes complete; unstow a frame's tail before asking for the next.

        Raises ValueError for bytes that are no frame.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= _HEADER.size:
            kind, message_size, tail_size, offset = _HEADER.unpack_from(buffer, at)
            if message_size + tail_size > FRAME_LIMIT:
                raise ValueError(f"a frame of {message_size + tail_size} bytes is over {FRAME_LIMIT}")
            tail_at = at + _HEADER.size + message_size
            end = tail_at if offset >= 0 else tail_at + tail_size
            if len(buffer) < end:
                break
            if kind not in self._decoders:
                raise ValueError(f"{kind} is the kind of no message")
            # msgspec.ValidationError is a ValueError. No variable refers to the message: it would stay in
            # memory until the next frame, with all that a worker adds to the calls of a dispatch.
            yield Frame(
                self._decoders[kind](memoryview(buffer)[at + _HEADER.size : tail_at]),
                self._tail(buffer, tail_at, end, tail_size, offset),
            )
            at = end
        if at:
            del buffer[:at]

    def _tail(self, buffer: bytearray, start: int, end: int, size: int, offset: int) -> Tail:
        if size == 0:
            return _NO_TAIL
        if offset < 0:
            return Tail(bytes(memoryview(buffer)[start:end]), self._writable)
        if self._arena is None or offset + size > ARENA_BYTES:
            raise ValueError("a frame points outside its arena")
        return Tail(self._arena.view[offset : offset + size], self._writable)


class Outbox:
    """Sends bytes over a socket in order, and buffers the bytes that the socket does not accept yet."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connection
        self._loop = loop
        self._unsent: deque[memoryview] = deque()
        self._ending = False

    def send(self, buffers: Sequence[Part]) -> None:
        """Send buffers after all earlier ones."""
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
        """Shut down the sending side once all buffers are sent."""
        self._ending = True
        if not self._unsent:
            self._shut_down()

    def stop(self) -> None:
        """Stop sending. Call it before the socket is closed."""
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
            self._shut_down()

    def _shut_down(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
