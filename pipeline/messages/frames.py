"""Wire format between the front process and a worker instance: encoded values, frames and shared memory.

A value is encoded as a msgpack tree with its large arrays beside it. str, bytes, numbers, bool, None, lists,
tuples, dicts, ndarrays and NumPy scalars keep their type. Other objects are pickled, if `allow_pickle` says
that a worker of ours made them. The front encodes the values of clients without pickle, so no byte from
outside is ever unpickled.

A frame is a header, a message of `pipeline.messages.messages` and a tail of large parts. The tail follows on
the socket. If it is over `ARENA_BYTES_FROM`, it lies in the instance's shared memory (memfd) when it fits
there. The memfd has four regions: for each of the two dispatches that may be in flight, one for its requests
and one for its replies. The reader of a tail copies it out at once. So a region is free again as soon as the
last reply to its dispatch was read.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import mmap
import os
import pickle
import socket
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import msgpack
import msgspec
import numpy as np
from msgspec.structs import astuple

from pipeline.api import app, dag, request_options
from pipeline.messages import messages, shards
from pipeline.messages.messages import KINDS, Message, Stowed
from pipeline.models import tensor_spec
from pipeline.process.processes import Activity

if TYPE_CHECKING:
    import asyncio  # workers send in blocking mode, and do without asyncio


Part: TypeAlias = bytes | bytearray | memoryview

INLINE_BYTES = 4096  # smaller arrays stay in the tree: a part of its own costs about as much as copying 4 KB
_MAX_NESTED = 32  # tuples in one another: `decode` takes 40 KB of the stack for each

_TUPLE, _ARRAY, _ARRAY_PART, _SCALAR, _PICKLE, _UNREAD = 1, 2, 3, 4, 5, 6


class NotEncodable(TypeError):
    """Raised by `encode` for a value that can't be sent to another process; the message names its type."""


class Unread(msgspec.Struct, eq=False):
    """Base class of values that the front process forwards undecoded, such as a client's JSON.

    A worker decodes these values. Dialects (client protocols) derive their own classes, whose further fields
    are plain values.
    """

    data: Part  # as the client wrote it
    kind: ClassVar[str]  # name of the class in messages

    def describe(self) -> tuple[Any, ...]:
        """Return the fields besides `data` on which the decoded value depends."""
        return astuple(self)[1:]

    def decode(self) -> Any:
        """Return the decoded value. Raises InvalidInput for data that can't be decoded."""
        raise NotImplementedError


_unread: dict[str, type[Unread]] = {}
_pickle_forbidden = False


def forbid_pickle() -> None:
    """Never pickle and unpickle a value in this process from now on, because values cross the network.

    A worker on another machine calls this function before its first request.
    """
    global _pickle_forbidden
    _pickle_forbidden = True


def will_read(kinds: Iterable[type[Unread]]) -> None:
    """Register subclasses of `Unread`, so that `decode` decodes their values.

    A worker calls this function before its first request.
    """
    _unread.update((kind.kind, kind) for kind in kinds)


def encode(value: object, *, allow_pickle: bool) -> list[Part]:
    """Encode a value for another process. Return a list: the msgpack tree, then the large arrays.

    Arrays over `INLINE_BYTES` are not copied. allow_pickle: pickle other objects; without it they raise
    NotEncodable.
    """
    return _thread_state.encoding.encode(value, allow_pickle and not _pickle_forbidden)


def decode(parts: Sequence[Part], *, allow_pickle: bool) -> Any:
    """Return the value whose parts `encode` has returned in another process. Arrays are views of the parts.

    They are writable if the parts are. Decodes each `Unread` as well. Raises ValueError for bytes that
    `encode` did not make, and for an `Unread` of a kind that is not registered; raises InvalidInput for an
    `Unread` that can't be decoded.
    """
    return _Decoding(parts, allow_pickle and not _pickle_forbidden).unpack(parts[0])


class _Decoding:
    """Decoder of one value: the msgpack tree, and the separate parts to which the tree refers."""

    __slots__ = ("allow_pickle", "parts")

    def __init__(self, parts: Sequence[Part], allow_pickle: bool) -> None:
        self.parts = parts
        self.allow_pickle = allow_pickle

    def unpack(self, data: Part) -> Any:
        return msgpack.unpackb(
            data,
            ext_hook=self._extension,
            strict_map_key=False,
            unicode_errors="surrogatepass",
            use_list=True,
        )

    def _extension(self, code: int, data: bytes) -> Any:
        unpack, part = self.unpack, self._part
        if code == _TUPLE:
            return tuple(unpack(data))
        if code == _ARRAY:
            dtype, shape, raw = unpack(data)
            return np.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)
        if code == _ARRAY_PART:
            dtype, shape, index = unpack(data)
            return np.frombuffer(part(index), dtype=dtype).reshape(shape)
        if code == _SCALAR:
            dtype, raw = unpack(data)
            return np.frombuffer(raw, dtype=dtype)[0]
        if code == _UNREAD:
            index, kind, *fields = unpack(data)
            if kind not in _unread:
                raise ValueError(f"a value is of the kind {kind!r}, which nothing here reads")
            return _unread[kind](part(index), *fields).decode()
        if code == _PICKLE and self.allow_pickle:
            return pickle.loads(data)  # noqa: S301 - made by a worker of ours, see the module's docstring
        raise ValueError(f"unknown extension {code} in a value")

    def _part(self, index: int) -> Part:
        if not 0 < index < len(self.parts):
            raise ValueError(f"a value points to part {index} of {len(self.parts)}")
        return self.parts[index]


class _Encoding:
    """Reusable encoder of values. It keeps no reference to a value after encoding."""

    __slots__ = ("_allow_pickle", "_depth", "_pack", "_pack_plain", "_parts")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._allow_pickle = False
        self._depth = 0  # nesting depth of tuples
        self._pack = _packer(self._extension).pack
        self._pack_plain = _packer(None).pack  # of what an extension holds: `_pack` is busy

    def encode(self, value: object, allow_pickle: bool) -> list[Part]:
        self._allow_pickle = allow_pickle
        parts: list[Part] = [b""]
        self._parts = parts
        try:
            parts[0] = self._pack(value)
        except (OverflowError, ValueError, RecursionError) as exc:  # ints over 64 bits, deep nesting
            if not allow_pickle:
                raise NotEncodable(f"a {type(value).__name__} can't be passed on: {exc}") from exc
            return [_pack_ext(_PICKLE, _pickled(value))]
        finally:
            self._parts = []
        return parts

    def _extension(self, value: object) -> msgpack.ExtType:
        parts, plain = self._parts, self._pack_plain
        if type(value) is tuple:
            return msgpack.ExtType(_TUPLE, self._pack_nested(list(value)))
        if type(value) is np.ndarray and value.dtype.kind not in "OV":
            flat = np.ascontiguousarray(value)
            if flat.nbytes < INLINE_BYTES:
                return msgpack.ExtType(_ARRAY, plain([flat.dtype.str, list(value.shape), flat.tobytes()]))
            parts.append(flat.reshape(-1).view(np.uint8).data)
            return msgpack.ExtType(_ARRAY_PART, plain([flat.dtype.str, list(value.shape), len(parts) - 1]))
        if isinstance(value, np.generic) and value.dtype.kind not in "OV" and value.dtype.itemsize:
            return msgpack.ExtType(_SCALAR, plain([value.dtype.str, value.tobytes()]))
        if isinstance(value, Unread):
            data, *fields = astuple(value)
            parts.append(data)
            return msgpack.ExtType(_UNREAD, plain([len(parts) - 1, value.kind, *fields]))
        if self._allow_pickle:
            return msgpack.ExtType(_PICKLE, _pickled(value))
        hint = "; pickle is off where workers run on other nodes" if _pickle_forbidden else ""
        raise NotEncodable(f"a {type(value).__name__} can't be passed on{hint}")

    def _pack_nested(self, values: list[object]) -> bytes:
        if self._depth == _MAX_NESTED:
            raise ValueError(f"tuples are nested over {_MAX_NESTED} deep")
        self._depth += 1
        try:
            packed: bytes = _packer(self._extension).pack(values)
        finally:
            self._depth -= 1
        return packed


def _packer(default: Callable[[object], msgpack.ExtType] | None) -> msgpack.Packer:
    return msgpack.Packer(default=default, strict_types=True, unicode_errors="surrogatepass")


class _ThreadState(threading.local):
    """Holds an encoder for each thread: threads that shared a msgpack packer would mix their values."""

    def __init__(self) -> None:
        self.encoding = _Encoding()


_thread_state = _ThreadState()


def _pickled(value: object) -> bytes:
    try:
        return pickle.dumps(value, protocol=5)
    except Exception as exc:  # pickle raises whatever the object's own methods raise
        raise NotEncodable(f"a {type(value).__name__} can't be passed between Ops: {exc}") from exc


def _pack_ext(code: int, data: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(code, data))
    return packed


ARENA_BYTES_FROM = INLINE_BYTES  # the memfd beats the socket at every size (bench/transport.py)
REGION_BYTES = 16 * 1024 * 1024  # sparse: only touched pages cost memory
DISPATCHES_IN_FLIGHT = 2
ARENA_BYTES = 2 * DISPATCHES_IN_FLIGHT * REGION_BYTES
FRAME_LIMIT = 2**31
_REQUEST_BITS = 20  # low bits of the count of begun work: requests of a dispatch, below the dispatches
_ALL_REQUESTS = 2**_REQUEST_BITS - 1

_ARENA_NAME = "paddlewheel"
# Behind the regions: the numbers of begun dispatches and of begun requests of the latest dispatch; the number
# of the dispatch up to which the front recalls requests that have not begun; the instance's thread in /proc.
_COUNT = struct.Struct("<q")
_BEGUN_AT, _TAKEN_BACK_AT = ARENA_BYTES, ARENA_BYTES + _COUNT.size
_THREAD_AT = _TAKEN_BACK_AT + _COUNT.size
_ACTIVITY = struct.Struct("<dc")  # CPU time and state of a worker on another node; the state is 0 before
_ACTIVITY_AT = _THREAD_AT + _COUNT.size
_RESIDENT_AT = _ACTIVITY_AT + _ACTIVITY.size  # memory of a worker on another node
_MAPPED_BYTES = _RESIDENT_AT + _COUNT.size
HEADER = struct.Struct("<BxxxIIi")  # kind, message bytes, tail bytes, arena offset or -1
_encode = msgspec.msgpack.Encoder().encode
Decoders = Mapping[int, Callable[[Part], Message]]


def create_decoders(kinds: Iterable[type[Message]]) -> Decoders:
    """Return the msgpack decoder of each message class, by the number of the class in the frame's header."""
    return {message.kind: msgspec.msgpack.Decoder(message).decode for message in kinds}


_DECODERS = create_decoders(KINDS)


class Frame(NamedTuple):
    """A received frame: the message, and the large parts that follow the message."""

    message: Message
    tail: Tail


class Arena:
    """Shared memory (memfd) between the front process and one worker instance, mapped by both.

    It holds large parts of messages, and counters of begun and recalled requests.
    """

    def __init__(self, fd: int) -> None:
        self._map = mmap.mmap(fd, _MAPPED_BYTES)
        self._map.madvise(mmap.MADV_DONTFORK)  # children of a hook must not keep the memory alive
        self.view = memoryview(self._map)

    def write(self, parts: Sequence[Part], region: Region) -> int:
        """Copy large parts of a message into the shared memory. Return their offset, or -1 if they don't fit.

        region: the part of the memory for this direction and dispatch.
        """
        size = sum(map(len, parts))
        offset = region.allocate(size)
        at = offset
        for part in parts if offset >= 0 else ():
            self.view[at : at + len(part)] = part
            at += len(part)
        return offset

    def note_begin(self, dispatch_id: int, requests: int = _ALL_REQUESTS) -> None:
        """In the worker: publish how many requests of a dispatch (group of requests) this instance has begun.

        The front process reads the number when the worker dies, and before it gives the remaining requests to
        other instances.
        """
        _COUNT.pack_into(self._map, _BEGUN_AT, ((dispatch_id + 1) << _REQUEST_BITS) + requests)

    def begun(self, dispatch_id: int) -> bool:
        """In the front process: return whether the worker instance has begun a dispatch of requests."""
        return bool(_COUNT.unpack_from(self._map, _BEGUN_AT)[0] >> _REQUEST_BITS > dispatch_id)

    def begun_requests(self, dispatch_id: int) -> int:
        """In the front process: return how many requests of a dispatch the worker instance has begun.

        A very large number means all requests.
        """
        count: int = _COUNT.unpack_from(self._map, _BEGUN_AT)[0]
        latest = (count >> _REQUEST_BITS) - 1
        if latest != dispatch_id:
            return _ALL_REQUESTS if latest > dispatch_id else 0
        requests: int = count & _ALL_REQUESTS
        return requests

    def take_back(self, dispatch_id: int) -> None:
        """In the front process: recall requests of this and earlier dispatches that the worker has not begun.

        Each side writes its count before it reads the count of the other side, so no request is both begun
        and recalled. If both happen at the same moment, the instance declines the request.
        """
        _COUNT.pack_into(self._map, _TAKEN_BACK_AT, dispatch_id + 1)

    def taken_back(self, dispatch_id: int) -> bool:
        """In the worker: return whether the front process has recalled a dispatch's unbegun requests."""
        return bool(_COUNT.unpack_from(self._map, _TAKEN_BACK_AT)[0] > dispatch_id)

    def name_thread(self, thread_id: int) -> None:
        """In the worker: publish the id of the thread that runs the instance, by which /proc is read."""
        _COUNT.pack_into(self._map, _THREAD_AT, thread_id)

    @property
    def thread_id(self) -> int:
        """Id of the worker's thread that runs the instance; 0 before its start."""
        thread_id: int = _COUNT.unpack_from(self._map, _THREAD_AT)[0]
        return thread_id

    @property
    def begun_count(self) -> int:
        """The raw count that `note_begin` writes: dispatch and number of begun requests.

        For a worker on another machine, the front's proxy copies the count from there.
        """
        count: int = _COUNT.unpack_from(self._map, _BEGUN_AT)[0]
        return count

    @begun_count.setter
    def begun_count(self, count: int) -> None:
        _COUNT.pack_into(self._map, _BEGUN_AT, count)

    @property
    def taken_back_count(self) -> int:
        """The raw count that `take_back` writes: the last dispatch whose requests were recalled, plus 1.

        For a worker on another machine, the agent copies the count to that machine.
        """
        count: int = _COUNT.unpack_from(self._map, _TAKEN_BACK_AT)[0]
        return count

    @taken_back_count.setter
    def taken_back_count(self, count: int) -> None:
        _COUNT.pack_into(self._map, _TAKEN_BACK_AT, count)

    @property
    def activity(self) -> Activity | None:
        """State and CPU time of an instance on another machine, as last reported; None before a report."""
        cpu_s, state = _ACTIVITY.unpack_from(self._map, _ACTIVITY_AT)
        return None if state == b"\0" else Activity(state.decode("ascii"), cpu_s)

    @activity.setter
    def activity(self, activity: Activity) -> None:
        _ACTIVITY.pack_into(self._map, _ACTIVITY_AT, activity.cpu_s, activity.state.encode("ascii"))

    @property
    def resident_bytes(self) -> int:
        """Resident memory of a worker on another machine in bytes, as last reported; 0 before a report."""
        size: int = _COUNT.unpack_from(self._map, _RESIDENT_AT)[0]
        return size

    @resident_bytes.setter
    def resident_bytes(self, size: int) -> None:
        _COUNT.pack_into(self._map, _RESIDENT_AT, size)

    def close(self) -> None:
        self.view.release()
        self._map.close()


class Region:
    """One of the four parts of the shared memory, for the requests or replies of one dispatch in flight.

    A region is filled from its start, and freed as a whole.
    """

    def __init__(self, number: int) -> None:
        self._start = number * REGION_BYTES
        self._used = 0

    def reset(self) -> None:
        """Mark the whole region as free."""
        self._used = 0

    def allocate(self, size: int) -> int:
        """Reserve `size` bytes of the region.

        Return their offset in the shared memory, or -1 if they don't fit.
        """
        if size > REGION_BYTES - self._used:
            return -1
        offset = self._start + self._used
        self._used += size
        return offset


def request_region(dispatch_id: int) -> Region:
    """Return the region of the shared memory for the requests of this dispatch (group of requests)."""
    return Region(dispatch_id % DISPATCHES_IN_FLIGHT)


def reply_region(dispatch_id: int) -> Region:
    """Return the region of the shared memory for the replies to this dispatch (group of requests)."""
    return Region(DISPATCHES_IN_FLIGHT + dispatch_id % DISPATCHES_IN_FLIGHT)


def create_arena_fd() -> int:
    """Create the shared memory (memfd) of a worker instance, and return its descriptor.

    The caller closes the descriptor. Child processes do not inherit it by default. The size is sealed: if a
    worker could shrink the memory, the next access would kill the front process with SIGBUS.
    """
    fd = os.memfd_create(_ARENA_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, _MAPPED_BYTES)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


def arena_fds() -> list[int]:
    """Return this process's open file descriptors of shared memory.

    A memory mapping keeps a descriptor of its own.
    """
    fds = []
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # the descriptor that listed them
            if str(entry.readlink()).startswith(f"/memfd:{_ARENA_NAME}"):
                fds.append(int(entry.name))
    return fds


def stow(parts: Sequence[Part], tail: list[Part]) -> Stowed:
    """Split an encoded value for sending: return the small parts, and a length in place of each large part.

    The large parts are appended to `tail`, which is sent after the message. `Tail.unstow` is the inverse.
    """
    stowed: list[Any] = []
    for part in parts:
        if len(part) < INLINE_BYTES:
            stowed.append(part)
        else:
            tail.append(part)
            stowed.append(len(part))
    return stowed


class Tail:
    """Large parts that follow the message of a received frame, in the order of the sender's `stow` calls."""

    __slots__ = ("_at", "_copy", "_data")

    def __init__(self, data: Part, writable: bool = True) -> None:
        self._data = data
        self._at = 0
        self._copy: type[bytes] | type[bytearray] = bytearray if writable else bytes

    @property
    def size(self) -> int:
        """Total size of the large parts in bytes."""
        return len(self._data)

    def unstow(self, stowed: Stowed) -> list[Part]:
        """Return the parts of an encoded value, for `decode`. Large parts are copied out of the frame.

        stowed: the result of `stow` on the sending side. Call it in the same order as `stow`. Raises
        ValueError if the frame is too short.
        """
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
    """Return the buffers of a message to be written to the socket, in order: header, message, large parts.

    tail: the large parts, from `stow`. If they fit in the `region` of the shared memory `arena`, they are
    written there instead.
    """
    packed = _encode(message)
    size = sum(map(len, tail)) if tail else 0
    offset = -1
    if arena is not None and region is not None and size >= ARENA_BYTES_FROM:
        offset = arena.write(tail, region)
    header = HEADER.pack(message.kind, len(packed), size, offset)
    if size == 0 or offset >= 0:
        return [header + packed]
    return [header + packed, *tail]


class FrameReader:
    """Incremental parser of messages between front process and worker: splits bytes into frames."""

    def __init__(self, arena: Arena | None, *, writable: bool = True, decoders: Decoders = _DECODERS) -> None:
        """arena: shared memory with the large parts; None if there is none.

        writable: whether large parts are decoded as writable arrays, as hooks need; the front process only
        forwards them.
        """
        self._decoders = decoders
        self._arena = arena
        self._writable = writable
        self._buffer = bytearray()

    @property
    def halfway(self) -> bool:
        """Whether the bytes received so far end in the middle of a frame."""
        return bool(self._buffer)

    def feed(self, data: Part) -> Iterator[Frame]:
        """Add received bytes, and yield the frames that they complete.

        Raises ValueError for bytes that are no frame.

        Copy the large parts of a frame (`Tail.unstow`) before the next frame.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= HEADER.size:
            kind, message_size, tail_size, offset = HEADER.unpack_from(buffer, at)
            if message_size + tail_size > FRAME_LIMIT:
                raise ValueError(f"a frame of {message_size + tail_size} bytes is over {FRAME_LIMIT}")
            tail_at = at + HEADER.size + message_size
            end = tail_at if offset >= 0 else tail_at + tail_size
            if len(buffer) < end:
                break
            if kind not in self._decoders:
                raise ValueError(f"{kind} is the kind of no message")
            # msgspec.ValidationError is a ValueError. No variable refers to the message: it would stay in
            # memory until the next frame, with all that a worker adds to the calls of a dispatch.
            yield Frame(
                self._decoders[kind](memoryview(buffer)[at + HEADER.size : tail_at]),
                self._tail(buffer, tail_at, end, tail_size, offset),
            )
            at = end
        if at:
            del buffer[:at]

    def _tail(self, buffer: bytearray, start: int, end: int, size: int, offset: int) -> Tail:
        """Return the large parts of a frame, from the received bytes or from the shared memory.

        Raises ValueError for an invalid frame.
        """
        if size == 0:
            return _NO_TAIL
        if offset < 0:
            return Tail(bytes(memoryview(buffer)[start:end]), self._writable)
        if self._arena is None or offset + size > ARENA_BYTES:
            raise ValueError("a frame points outside its arena")
        return Tail(self._arena.view[offset : offset + size], self._writable)


class Outbox:
    """Non-blocking sender to a worker: writes bytes to its socket, and buffers bytes while it is full."""

    def __init__(self, connection: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        self._socket = connection
        self._loop = loop
        self._unsent: deque[memoryview] = deque()
        self._ending = False

    def send(self, buffers: Sequence[Part]) -> None:
        """Send buffers after all earlier buffers, without waiting."""
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

    def finish(self) -> None:
        """Shut down the sending side of the socket, once all buffers are sent."""
        self._ending = True
        if not self._unsent:
            self._shut_down()

    def stop(self) -> None:
        """Stop sending, and drop unsent bytes. Call it before the socket is closed."""
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


# Modules that define the messages between front and workers.
DEFINITIONS = (
    sys.modules[__name__], messages, shards, request_options, tensor_spec, dag, app,
)  # fmt: skip

# The kind of a worker, in its command line.
PLAIN, SHARD = "worker", "shard"

# The status of a worker that refuses to serve, for its package is of another version than the front. It must
# not change: a front of any version has to know it.
OTHER_VERSION = os.EX_PROTOCOL
# The status of a proxy whose worker is on another node, when the connection to the node is lost.
NODE_LOST = os.EX_UNAVAILABLE
PACKAGE_CHANGED = (
    "the installed package has changed since this service was started; running workers serve on, but new "
    "ones can't: restart the service"
)


def _hash_definitions() -> str:
    """Return a hash of the modules that define the messages, by which front and worker compare versions."""
    digest = hashlib.sha256()
    for module in DEFINITIONS:
        digest.update(Path(str(module.__file__)).read_bytes())
    return digest.hexdigest()[:16]


# A package that is upgraded under a running service starts workers that read other messages than the front
# writes. Front and worker compare this hash before their first message. It is computed at the import: later
# the files may be those of another version.
PROTOCOL_VERSION = _hash_definitions()
