"""Untaken: the gRPC answers that their clients have not taken yet, bounded in time and in sum.

A client that opens no window for its answers, or reads nothing, would have them held until it leaves. How
much is read the kernel tells of a connection alone: so that is closed. Most answers are taken before anybody
looks; only of the others it is asked whose they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import ipaddress
import os
import socket
import struct
import termios
import time
import urllib.parse
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Protocol, TypeVar

from pipeline.config.config_file import Limits
from pipeline.front.metrics.access_log import UNREAD, AccessLog
from pipeline.front.metrics.metrics import resident_bytes

REST = 5  # times what a look took: then there may be another, so that no client can have us look for ever

_Address = tuple[str, int]
_Answer = TypeVar("_Answer")

_BYTES_ACKED, _BYTES_RECEIVED = 120, 128  # where struct tcp_info of the kernel has these
_NOWHERE = ("", 0)


class Connection:
    """A client's connection to a port of ours. Tells None once it is closed, and until `locate` has found it.

    peer: what gRPC calls the client, ipv4:10.0.0.1:40000 or ipv6:%5B::1%5D:40000.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.closed = False  # by us
        self._address = _parse_peer(peer)
        self._number: int | None = None

    def taken_bytes(self) -> int | None:
        """Return the bytes that the kernel has taken from gRPC for the client so far."""
        return self._ask(_taken_bytes)

    def received_bytes(self) -> int | None:
        """Return the bytes that the client has sent so far."""
        return self._ask(_received_bytes)

    def shut(self) -> bool:
        """End the connection: gRPC takes it as ended by the client, with its calls. False: it is gone."""
        self.closed = self._ask(_shut) is not None
        return self.closed

    def _ask(self, question: Callable[[socket.socket], _Answer]) -> _Answer | None:
        if self._number is not None:
            with contextlib.suppress(OSError), _copy(self._number) as copy:
                if _peer_address(copy) == self._address:
                    return question(copy)
            self._number = None
        return None

    @staticmethod
    def locate(connections: Iterable[Connection], ports: Container[int]) -> None:
        """Find the sockets of connections; looks at every open file where one is not known."""
        lost = {each._address: each for each in connections if each._number is None and not each.closed}
        lost.pop(_NOWHERE, None)  # of one that is gone gRPC no longer knows the client
        if not lost:
            return
        with contextlib.suppress(OSError):  # there may be no descriptor left for it
            for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each of thousands
                with contextlib.suppress(OSError), _copy(int(name)) as copy:
                    connection = lost.get(_peer_address(copy))
                    if connection is not None and copy.getsockname()[1] in ports:
                        connection._number = int(name)


def _taken_bytes(sock: socket.socket) -> int:
    queued = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
    return int(queued) + _format_offset(sock, _BYTES_ACKED)


def _received_bytes(sock: socket.socket) -> int:
    return _format_offset(sock, _BYTES_RECEIVED)


def _format_offset(sock: socket.socket, offset: int) -> int:
    tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 8)
    return int(struct.unpack_from("Q", tcp_info, offset)[0])


def _shut(sock: socket.socket) -> bool:
    sock.shutdown(socket.SHUT_RDWR)
    return True


def _parse_peer(peer: str) -> _Address:
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if port.isdigit() else _NOWHERE


@contextlib.contextmanager
def _copy(number: int) -> Iterator[socket.socket]:
    duplicate = os.dup(number)
    try:
        sock = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
    with sock:
        yield sock


def _peer_address(sock: socket.socket) -> _Address:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return _NOWHERE
    host, port = sock.getpeername()[:2]
    return _plain(host), port


@functools.lru_cache(maxsize=4096)
def _plain(host: str) -> str:
    """An address in one notation, however it was written."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


_CALL_BYTES = 20 * 1024  # that a call takes besides its answer
_MOVING_BYTES = 16 * 1024  # what takes less does not read: pings and settings are answered, too
_LOOK_EVERY_S = 1.0


class Answering(Protocol):
    """A call whose answer is sent; compared by identity."""

    def peer(self) -> str: ...


class _Reader(Connection):
    """A connection that does not take its answers at once.

    held_bytes: of these answers, whole. since: when it was last seen to have taken something.
    """

    def __init__(self, peer: str, since: float) -> None:
        super().__init__(peer)
        self.answers = 0
        self.held_bytes = 0
        self.since = since
        self._marked_bytes: int | None = None  # that it had taken by then
        self._taken_bytes = 0  # since then

    def look(self) -> None:
        """Notice how much the connection has taken."""
        taken_bytes = self.taken_bytes()
        if taken_bytes is None:
            return
        if self._marked_bytes is None:
            self._marked_bytes = taken_bytes
        self._taken_bytes = taken_bytes - self._marked_bytes

    @property
    def moves(self) -> bool:
        return self._taken_bytes >= _MOVING_BYTES

    def mark(self, now: float) -> None:
        if self.moves and self._marked_bytes is not None:
            self._marked_bytes += self._taken_bytes
            self._taken_bytes, self.since = 0, now

    def needed_s(self, now: float) -> float:
        """Seconds until all that is held is taken, at the pace since the mark.

        Of less than a look's time no pace can be told.
        """
        seen_s = max(_LOOK_EVERY_S, now - self.since)
        return self.held_bytes * seen_s / (self._taken_bytes + _MOVING_BYTES)


class Untaken:
    """Closes connections whose clients do not take their answers.

    A connection that takes nothing for `body_timeout_s` is closed. While all waiting answers are more than
    `bodies_bytes`, the connection that would need longest for its answer is closed. One whole answer is
    always allowed.

    ports: the service's own ports.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self._timeout_s = limits.body_timeout_s
        self._every_s = min(_LOOK_EVERY_S, limits.body_timeout_s / 4)
        self._most_bytes = max(limits.bodies_bytes, limits.response_bytes)
        self._ports = ports
        self._access_log = access_log
        self._young: dict[Answering, tuple[float, int]] = {}  # in the order of the time, their bytes
        self._old: dict[Answering, tuple[_Reader, int]] = {}
        self._readers: dict[str, _Reader] = {}  # by peer
        self._bytes = 0  # of both, but for connections that were closed
        self._looking: asyncio.TimerHandle | None = None
        self._shedding: asyncio.TimerHandle | None = None
        self._rested_at = 0.0

    def hold(self, answer: Answering, size: int) -> None:
        """An answer is with gRPC from now on, or more of it."""
        size += _CALL_BYTES
        self._bytes += size
        now = time.monotonic()
        if answer in self._old:
            reader, before = self._old[answer]
            self._old[answer] = reader, before + size
            self._count(reader, size)
        else:
            began, before = self._young.get(answer) or (now, 0)
            self._young[answer] = began, before + size
        if self._looking is None:
            self._look_at(now + self._every_s)
        if self._bytes > self._most_bytes and self._shedding is None:
            at = max(now, self._rested_at) - now
            self._shedding = asyncio.get_running_loop().call_later(at, self._shed_now)

    def let_go(self, answer: Answering) -> None:
        """The answer has been taken, or its client has left."""
        young = self._young.pop(answer, None)
        if young is not None:
            self._bytes -= young[1]
            return
        old = self._old.pop(answer, None)
        if old is None:
            return
        reader, size = old
        reader.answers -= 1
        reader.held_bytes -= size
        if not reader.closed:
            self._bytes -= size
        if not reader.answers:
            del self._readers[reader.peer]

    def _count(self, reader: _Reader, size: int) -> None:
        reader.held_bytes += size
        if reader.closed:
            self._bytes -= size

    def _look_at(self, when: float) -> None:
        later = when - time.monotonic()
        self._looking = asyncio.get_running_loop().call_later(later, self._look)

    def _look(self) -> None:
        self._looking = None
        began = time.monotonic()
        self._group(began - self._every_s)
        self._look_at_readers()
        for reader in list(self._readers.values()):
            if not reader.moves and began - reader.since > self._timeout_s:
                self._close(reader, "it has not read on for limits.body_timeout_s")
        self._shed(began)
        for reader in self._readers.values():
            reader.mark(began)
        self._rest(began)
        if self._young or self._old:
            self._look_at(max(began + self._every_s, self._rested_at))

    def _shed_now(self) -> None:
        self._shedding = None
        began = time.monotonic()
        self._group(began)
        self._look_at_readers()
        self._shed(began)
        self._rest(began)

    def _rest(self, began: float) -> None:
        now = time.monotonic()
        self._rested_at = now + REST * (now - began)

    def _group(self, before: float) -> None:
        """Ask whose the answers are that are with gRPC since before the moment."""
        for answer, (began, size) in list(self._young.items()):
            if began > before:
                break
            del self._young[answer]
            peer = answer.peer()
            reader = self._readers.get(peer)
            if reader is None:
                reader = self._readers[peer] = _Reader(peer, began)
            reader.answers += 1
            self._old[answer] = reader, size
            self._count(reader, size)

    def _look_at_readers(self) -> None:
        open_ = [reader for reader in self._readers.values() if not reader.closed]
        Connection.locate(open_, self._ports)
        for reader in open_:
            reader.look()

    def _shed(self, now: float) -> None:
        if self._bytes <= self._most_bytes:
            return
        reason = f"together more than {self._most_bytes} bytes wait; limits.bodies_bytes allows no more"
        slowest = sorted(self._readers.values(), key=lambda each: (each.needed_s(now), each.held_bytes))
        for reader in reversed(slowest):
            if self._bytes > self._most_bytes:
                self._close(reader, reason)

    def _close(self, reader: _Reader, reason: str) -> None:
        if reader.closed or not reader.shut():  # of one that is gone the answers go by themselves
            return
        self._bytes -= reader.held_bytes
        self._access_log.warn(
            UNREAD,
            f"{reader.peer} is sent away, which {reader.held_bytes} bytes are held for (calls: "
            f"{reader.answers}): {reason}",
        )


_STREAM_LOOK_EVERY_S = 0.1


class Receiving(Protocol):
    """A call that waits for a message; compared by identity."""

    def peer(self) -> str: ...


class _Sender(Connection):
    """A connection with calls that wait for messages.

    held_bytes: the most that may have come for them since the connection is looked at.
    """

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.held_bytes = 0
        self.began: dict[Receiving, int] = {}  # what had been received when a call was first seen to wait

    def look(self, calls: Collection[Receiving], max_message_bytes: int) -> None:
        """Notice how much has come for these calls. max_message_bytes: bytes that one message may have."""
        received = self.received_bytes()
        if received is None:
            self.held_bytes = 0
            return
        self.began = {call: self.began.get(call, received) for call in calls}
        since = [received - began for began in self.began.values()]
        self.held_bytes = min(max(since), sum(min(each, max_message_bytes) for each in since))


class Arriving:
    """Closes the connection that sends most, while the front takes more than `bodies_bytes`, and since then
    more than that has come for messages that are arriving.

    ports: those that are ours.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self._most_bytes, self._most_message = limits.bodies_bytes, limits.body_bytes
        self._ports = ports
        self._access_log = access_log
        self._waiting: dict[Receiving, str] = {}  # for a message; by whom, once that was asked
        self._senders: dict[str, _Sender] = {}  # by peer
        self._looking: asyncio.TimerHandle | None = None

    def begin(self, call: Receiving) -> None:
        """The call waits for a message."""
        self._waiting[call] = ""
        if self._looking is None:
            self._looking = asyncio.get_running_loop().call_later(_STREAM_LOOK_EVERY_S, self._look)

    def end(self, call: Receiving) -> None:
        """The message is there, or none will come."""
        peer = self._waiting.pop(call)
        if peer and peer in self._senders:
            self._senders[peer].began.pop(call, None)

    def _look(self) -> None:
        self._looking = None
        began = time.monotonic()
        if resident_bytes() > self._most_bytes:
            self._look_at_senders()
            self._shed()
        else:
            self._senders.clear()
        if self._waiting:
            later = max(_STREAM_LOOK_EVERY_S, REST * (time.monotonic() - began))
            self._looking = asyncio.get_running_loop().call_later(later, self._look)

    def _look_at_senders(self) -> None:
        calls: dict[str, list[Receiving]] = {}
        for call, sender_peer in self._waiting.items():
            peer = self._waiting[call] = sender_peer or call.peer()
            calls.setdefault(peer, []).append(call)
        self._senders = {peer: self._senders.get(peer) or _Sender(peer) for peer in calls}
        Connection.locate(self._senders.values(), self._ports)
        for sender in self._senders.values():
            sender.look(calls[sender.peer], self._most_message)

    def _shed(self) -> None:
        senders = [sender for sender in self._senders.values() if not sender.closed]
        total_bytes = sum(sender.held_bytes for sender in senders)
        for sender in sorted(senders, key=lambda sender: sender.held_bytes, reverse=True):
            if total_bytes <= self._most_bytes:
                return
            if sender.shut():
                total_bytes -= sender.held_bytes
                self._access_log.warn(
                    "Unfinished messages",
                    f"{sender.peer} is sent away, of which up to {sender.held_bytes} bytes are here: "
                    f"together more than {self._most_bytes} are; limits.bodies_bytes allows no more",
                )
