"""Untaken: the gRPC answers that their clients have not taken yet, bounded in time and in sum.

A client that opens no window for its answers, or reads nothing, would have them held until it leaves. How
much is read the kernel tells of a connection alone: so that is closed. Most answers are taken before anybody
looks; only of the others it is asked whose they are.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import Protocol

from pipeline.config.config_file import Limits
from pipeline.front.grpc.private.sockets import REST, Connection
from pipeline.front.metrics.access_log import UNREAD, AccessLog

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
        taken = self.taken_bytes()
        if taken is None:
            return
        if self._marked_bytes is None:
            self._marked_bytes = taken
        self._taken_bytes = taken - self._marked_bytes

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
    """Closes connections: each that takes nothing for `body_timeout_s`; and while all that wait take more
    than `bodies_bytes` (one whole answer is always allowed), the one that would need longest for its own.

    ports: those that are ours.
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
