"""Shards, as the front sees them: worker processes that serve HTTP connections by themselves.

The front accepts a connection, keeps a duplicate of its descriptor, and sends it to the shard with the fewest
connections. When a shard dies, its connections go to another shard, see `pipeline.messages.shards`.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import math
import socket
import struct
import termios
import time
from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.front.metrics.growth import Totals
from pipeline.front.metrics.recent_errors import ErrorCause, merge_causes
from pipeline.messages.shards import (
    ALL,
    CLOSED,
    METRICS,
    MOVED,
    NEEDS_FRONT,
    PASSED_ON,
    RECALL,
    SERVE,
    Channel,
    Journal,
)
from pipeline.process.isolation import isolated
from pipeline.process.processes import Activity

log = logging.getLogger(__name__)

CHECK_EVERY_S = 1.0
MAX_IDLE_CHECKS = 5  # a shard that sends nothing and uses no CPU hangs: it reports every second
POST = b"POST "  # the beginning of an inference
FIRST_BYTES_S = 5.0  # a client that sends nothing for so long is left to the front
PASS_ON_AGAIN_S = 1.0  # a connection that is passed on again within this time is left to the front
MAX_DEATHS = 2  # of shards with an unanswered request of one connection; then the front serves it

AddGrowth = Callable[[Totals, Totals | None], None]
"""Adds the growth of a shard's metrics to those of the front. Arguments: its totals now, and before."""

Kill = Callable[[str], None]
"""Ends the process of a shard. Argument: the reason, for the log."""

ReadActivity = Callable[[int], Activity | None]
"""Returns CPU time and state of the process; None when it has ended."""


class Duplicate(msgspec.Struct, eq=False):
    """The front-end process's duplicate of a client connection that a shard serves.

    A shard is a worker process that serves HTTP connections itself.
    """

    connection: socket.socket
    deaths: int = 0  # shards that died while the connection had an unanswered request
    passed_at: float = -math.inf  # instant of time.monotonic() at which a late shard passed it on


class ShardLink:
    """Link from the front-end process to a shard: a channel, and the connections that the shard serves.

    A shard is a worker process that serves HTTP connections itself.
    """

    def __init__(self, shards: Shards, name: str, kill: Kill, read_activity: ReadActivity) -> None:
        """Create the link of a shard. name: of the shard's process, for the log. kill: ends the process.

        read_activity: returns the CPU time of the process.
        """
        self.duplicates: dict[int, Duplicate] = {}  # by slot in the journal
        self.is_open = False  # whether it gets connections
        self.answered = 0  # requests, since its start
        self.pending = 0  # requests now, as last reported
        self.waiting = 0  # requests of `pending` in its queue
        self._shards = shards
        self._name = name
        self._kill = kill
        self._read_activity = read_activity
        self._totals: Totals | None = None  # latest metrics
        self._causes: list[Any] = []  # latest errors; only the page at /docs needs them as objects
        self._idle_checks = 0
        self._cpu_s = 0.0

    def connect(
        self, until_spawned: contextlib.ExitStack, unless_started: contextlib.ExitStack
    ) -> tuple[int, int]:
        """Create the channel. Return the shard's descriptors of channel and journal, for the child process.

        until_spawned: closes the shard's end in this process. unless_started: closes the channel if the start
        fails.
        """
        own_end, shard_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        until_spawned.enter_context(shard_end)
        unless_started.enter_context(own_end)
        self._channel = Channel(own_end)
        return shard_end.fileno(), self._shards.journal.fd

    def open(self) -> None:
        """Send connections to the shard from now on, because it is ready."""
        self.is_open = True
        asyncio.get_running_loop().add_reader(self._channel.socket, self._receive)
        self._shards.add_link(self)
        self._watch()

    def close(self) -> None:
        """Send no more connections to the shard, and recall all of them, because it is about to end."""
        if self.is_open:
            self.is_open = False
            self.recall(ALL)

    def recall(self, count: int) -> None:
        """Tell the shard to give back `count` connections, each as soon as no request is in progress."""
        if not self._channel.send(RECALL, count):
            log.warning("Shard %s: its channel is full, so it keeps its connections", self._name)

    def serve(self, slot: int, duplicate: Duplicate) -> bool:
        """Send a connection to the shard, which then serves it. Return whether it was sent."""
        if not self._channel.send(SERVE, slot, duplicate.connection):
            return False
        self.duplicates[slot] = duplicate
        return True

    def disconnect(self) -> None:
        """Close the channel of a shard that has died or not started; others serve its connections."""
        self.is_open = False
        self._receive()
        asyncio.get_running_loop().remove_reader(self._channel.socket)
        self._channel.socket.close()
        self._shards.remove_link(self)

    def _receive(self) -> None:
        """Handle the shard's messages: connections that it gives back, and metrics."""
        with contextlib.suppress(EOFError):
            while (packet := self._channel.receive()) is not None:
                self._idle_checks = 0
                kind, slot, data, _ = packet
                if kind == METRICS:
                    self._take_metrics(data)
                else:
                    self._take_back(kind, slot)
            return
        asyncio.get_running_loop().remove_reader(self._channel.socket)  # the lifeline reports the death

    def _take_back(self, kind: int, slot: int) -> None:
        duplicate = self.duplicates.pop(slot)
        if kind == CLOSED:
            self._shards.release(slot, duplicate)
        elif kind == MOVED:
            self._shards.place(duplicate, slot)
        elif kind == PASSED_ON:
            self._shards.place_elsewhere(duplicate, slot, self)
        elif kind == NEEDS_FRONT:
            self._shards.serve_in_front(slot, duplicate)

    @isolated(None)
    def _take_metrics(self, data: bytes) -> None:
        self.answered, self.pending, self.waiting, totals, self._causes = msgspec.msgpack.decode(data)
        before, self._totals = self._totals, totals
        self._shards.add_growth(totals, before)

    def list_causes(self) -> list[ErrorCause]:
        """Return the recent errors of the shard."""
        return msgspec.convert(self._causes, list[ErrorCause])

    def _watch(self) -> None:
        """Kill the shard if its process is stopped or hangs, so that other shards serve its connections."""
        activity = self._read_activity(0)
        if self.is_open and activity is not None:
            self._idle_checks = self._idle_checks + 1 if activity.cpu_s == self._cpu_s else 0
            self._cpu_s = activity.cpu_s
            if self._idle_checks > MAX_IDLE_CHECKS:
                self._kill(f"its event loop has hung for {MAX_IDLE_CHECKS * CHECK_EVERY_S:g} s")
                return
            asyncio.get_running_loop().call_later(CHECK_EVERY_S, self._watch)


class Shards:
    """All shards of a service, and their connections. Shards are worker processes that serve HTTP themselves.

    serve_here: serves a connection in the front-end process; set by the HTTP server.
    """

    def __init__(self, max_connections: int, add_growth: AddGrowth) -> None:
        """Create the set of shards, still empty.

        max_connections: maximum number of connections in all shards; the front-end process serves further
        connections.
        """
        self.journal = Journal.create(max_connections)
        self.add_growth = add_growth
        self.serve_here: Callable[[socket.socket], None] = socket.socket.close
        self.moved = 0  # connections of dead shards that another process serves
        self.lost = 0  # connections of dead shards that were closed in the middle of an answer
        self._former_causes: list[ErrorCause] = []  # errors of dead shards
        self._free_slots = list(range(max_connections))
        self._new: dict[socket.socket, tuple[int, asyncio.TimerHandle]] = {}  # without a first byte
        self._links: list[ShardLink] = []
        self._paused = 0

    def link(self, name: str, kill: Kill, read_activity: ReadActivity) -> ShardLink:
        """Return a link to a worker process (shard) that is about to start.

        name: of the process, for the log. kill: ends the process. read_activity: returns its CPU time.
        """
        return ShardLink(self, name, kill, read_activity)

    def limit_connections(self, count: int) -> int:
        """Let shards serve at most `count` connections.

        Return the resulting maximum. Call this before the first connection.
        """
        del self._free_slots[count:]
        return len(self._free_slots)

    @property
    def connections(self) -> int:
        """Number of connections that shards serve now."""
        return sum(len(link.duplicates) for link in self._links)

    @property
    def pending(self) -> int:
        """Number of requests that shards have admitted and not yet answered, as last reported."""
        return sum(link.pending for link in self._links)

    @property
    def waiting(self) -> int:
        """Number of requests in the queues of shards, as last reported."""
        return sum(link.waiting for link in self._links)

    def list_causes(self) -> list[ErrorCause]:
        """Return the recent errors of all shards, the latest last."""
        return merge_causes([self._former_causes, *(link.list_causes() for link in self._links)])

    def accept(self, connection: socket.socket) -> None:
        """Let a shard serve a new connection if its first request is a POST; otherwise the front end does.

        Health checks (GET) thus do not depend on shards.
        """
        if self._paused or not self._free_slots:
            self.serve_here(connection)
            return
        connection.setblocking(False)
        with contextlib.suppress(OSError):  # the client has left
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        loop = asyncio.get_running_loop()
        slot = self._free_slots.pop()
        timer = loop.call_later(FIRST_BYTES_S, self._choose, connection, slot)
        self._new[connection] = slot, timer
        loop.add_reader(connection, self._choose, connection, slot)

    def _choose(self, connection: socket.socket, slot: int) -> None:
        """Let a shard or the front serve a new connection, by its first bytes."""
        asyncio.get_running_loop().remove_reader(connection)
        _, timer = self._new.pop(connection)
        timer.cancel()
        first = b""
        with contextlib.suppress(OSError):  # nothing has arrived in time, or the client has left
            first = connection.recv(len(POST), socket.MSG_PEEK)
        if first == POST:
            self.place(Duplicate(connection), slot)
        else:
            self.serve_in_front(slot, Duplicate(connection))

    def place(self, duplicate: Duplicate, slot: int, late: ShardLink | None = None) -> None:
        """Send a connection to the shard with the fewest connections.

        If no shard can serve the connection, the front-end process does. late: a shard to exclude, because
        its requests wait for a slow run.
        """
        if not self._paused:
            for link in sorted(self._links, key=_count_duplicates):
                if link is not late and link.is_open and link.serve(slot, duplicate):
                    return
        self.serve_in_front(slot, duplicate)

    def place_elsewhere(self, duplicate: Duplicate, slot: int, late: ShardLink) -> None:
        """Let another shard serve a connection whose request waits for a slow model run in its shard `late`.

        If the connection was moved shortly before, all shards may be slow: then the front-end process serves
        it.
        """
        now = time.monotonic()
        if now - duplicate.passed_at < PASS_ON_AGAIN_S:
            self.serve_in_front(slot, duplicate)
        else:
            duplicate.passed_at = now
            self.place(duplicate, slot, late)

    def serve_in_front(self, slot: int, duplicate: Duplicate) -> None:
        """Serve a connection in the front-end process until the connection ends."""
        self._free_slots.append(slot)
        self.serve_here(duplicate.connection)

    def release(self, slot: int, duplicate: Duplicate) -> None:
        """Close a connection that has ended, and free its slot."""
        duplicate.connection.close()
        self._free_slots.append(slot)

    def pause(self) -> None:
        """Serve all connections in the front, from their next request on. Each call needs a `resume`."""
        self._paused += 1
        for connection, (slot, _) in list(self._new.items()):
            self._choose(connection, slot)
        for link in self._links:
            link.recall(len(link.duplicates))

    def resume(self) -> None:
        """Let shards serve new connections again."""
        self._paused -= 1

    async def until_empty(self) -> None:
        """Wait until the shards have given all connections back. Call `pause` before."""
        while self.connections:
            await asyncio.sleep(0.01)

    def add_link(self, link: ShardLink) -> None:
        """Register a shard that is ready. Recall connections from shards with more than the new average."""
        self._links.append(link)
        shared = -(-self.connections // len(self._links))
        for other in self._links:
            if other.is_open and len(other.duplicates) > shared:
                other.recall(len(other.duplicates) - shared)

    def remove_link(self, link: ShardLink) -> None:
        """Forget a dead shard: other shards serve its connections.

        A connection is closed if the shard had begun to send a response, because the request is lost. After
        MAX_DEATHS shards have died with a request of one connection, the front-end process serves the
        connection: the request may have killed the shards.
        """
        if link in self._links:
            self._links.remove(link)
            self._former_causes = merge_causes([self._former_causes, link.list_causes()])
        orphans, link.duplicates = link.duplicates, {}
        for slot, duplicate in orphans.items():
            if self.journal.is_answering(slot):
                self.journal.end_answer(slot)
                self.lost += 1
                self.release(slot, duplicate)
                continue
            self.moved += 1
            duplicate.deaths += _has_unread_data(duplicate.connection)
            if duplicate.deaths < MAX_DEATHS:
                self.place(duplicate, slot)
            else:
                self.serve_in_front(slot, duplicate)


def _count_duplicates(link: ShardLink) -> int:
    return len(link.duplicates)


def _has_unread_data(connection: socket.socket) -> bool:
    """Return whether the kernel holds unread data of a connection: a request that nobody has read."""
    try:
        counted = fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0" * 4)
    except OSError:  # the client has reset it
        return False
    return bool(struct.unpack("i", counted)[0])
