"""State that the connections of one port share: requests begun in a turn, and room for new connections."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from typing import Protocol

from pipeline.config.config_file import Limits
from pipeline.errors import ServingError
from pipeline.front.http.guard import HttpGuard
from pipeline.front.http.held_refusals import HeldRefusals

REQUESTS_A_TURN = 128  # of the loop, which has others to serve
TURN_S = 0.005  # that requests may take of a turn of the loop before others begin in a later one
SEEN_OFF = 16  # connections too many, and a tenth of the most, that may still be open
SPARED_S = 1.0  # a connection that was heard of within this time may be about to ask


class OpenConnection(Protocol):
    """A connection, as the listener sees it that keeps the bounds of all connections of a port."""

    seen_at: float
    postponed: bool

    @property
    def busy(self) -> bool: ...
    @property
    def arriving_bytes(self) -> int: ...
    @property
    def unsent_bytes(self) -> int: ...
    def go_on(self) -> None: ...
    def refuse_body(self, error: ServingError) -> None: ...
    def send_away(self, why: str) -> None: ...
    def close_if_slow(self, now: float) -> None: ...
    def close_if_silent(self, silent_since: float) -> bool: ...
    def close(self) -> None: ...


class Listener:
    """State that the connections of one port share."""

    def __init__(self, limits: Limits, guard: HttpGuard | None = None) -> None:
        self.limits = limits
        self.guard = guard  # None: anyone may ask
        self.connections: set[OpenConnection] = set()
        self.date_line = b""  # the Date header, renewed by the listener's clock
        self.bodies_bytes = 0  # of those that are arriving, or not answered yet
        self.draining = False  # each answer is the last of its connection
        self.held = HeldRefusals()
        self.begun = 0  # requests since the last turn that was counted
        self.spent_s = 0.0  # that beginning them took
        self._turn_ends = False  # whether `_next_turn` will be called
        # One whole answer is always allowed.
        self._most_unread_bytes = max(limits.bodies_bytes, limits.response_bytes)
        self._unread: dict[OpenConnection, int] = {}  # the bytes of its answer that its client does not read
        self._unread_bytes = 0
        self._postponed: deque[OpenConnection] = deque()
        self._pipelining: deque[OpenConnection] = deque()  # postponed connections whose request was pipelined
        self._seen_off: deque[OpenConnection] = deque()

    def end_turn(self) -> None:
        """Count anew after the loop's other work: this turn begins no more requests.

        While 1,024 sockets are readable libuv polls again, up to 48 times (its issue 282): without a bound,
        timers, dispatches and gRPC would stand still for seconds.
        """
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def postpone(self, connection: OpenConnection, *, pipelined: bool) -> None:
        """Call the connection's `go_on` in a later turn of the loop.

        pipelined: its request arrived before the response to the previous one. Such requests begin after all
        others, so that clients with many pipelined requests delay no health check.
        """
        if not connection.postponed:
            connection.postponed = True
            (self._pipelining if pipelined else self._postponed).append(connection)
            self.end_turn()

    def _next_turn(self) -> None:
        self.begun, self.spent_s, self._turn_ends = 0, 0.0, False
        self._resume(self._postponed, 1)
        self._resume(self._pipelining, 1)  # one in each turn, however many others wait
        self._resume(self._postponed, len(self._postponed))
        self._resume(self._pipelining, len(self._pipelining))
        if self._postponed or self._pipelining:
            self.end_turn()

    def _resume(self, connections: deque[OpenConnection], count: int) -> None:
        """Call `go_on` of the first connections while the turn has room. Those postponed again come last."""
        for _ in range(min(count, len(connections))):
            if self.begun >= REQUESTS_A_TURN or self.spent_s > TURN_S:
                return
            connection = connections.popleft()
            connection.postponed = False
            connection.go_on()

    def see_off(self, refused: OpenConnection) -> None:
        """Give a connection too many, which was told so, time to read that: a few of them at once."""
        self._seen_off.append(refused)
        if len(self._seen_off) > max(SEEN_OFF, self.limits.max_connections // 10):
            self._seen_off.popleft().close()

    def largest_bodies(self) -> list[OpenConnection]:
        """The connections with the most of a body that is not all here, a hundredth of all."""
        many = 1 + len(self.connections) // 100
        return heapq.nlargest(many, self.connections, key=lambda connection: connection.arriving_bytes)

    def hold_unread(self, connection: OpenConnection) -> None:
        """Count an answer that its client does not read on; where there are too many bytes, clients go."""
        self.let_go_unread(connection)
        self._unread[connection] = size = connection.unsent_bytes
        self._unread_bytes += size
        if self._unread_bytes > self._most_unread_bytes:  # not while the connection writes
            asyncio.get_running_loop().call_soon(self._shed_unread)

    def let_go_unread(self, connection: OpenConnection) -> None:
        """Count the answer no longer that a client did not read: it has read on, or left."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def _shed_unread(self) -> None:
        """Close the connections with the most unread bytes; clients with little to read stay."""
        max_bytes = self._most_unread_bytes
        while self._unread_bytes > max_bytes:
            connection = max(self._unread, key=lambda connection: connection.unsent_bytes)
            self.let_go_unread(connection)
            connection.send_away(
                f"together more than {max_bytes} bytes wait; limits.bodies_bytes allows no more"
            )

    def make_room(self) -> bool:
        """Close the connections that have been silent for longest, a hundredth of all; false: there are none.

        So those who only hold connections open shut nobody out.
        """
        silent = [connection for connection in self.connections if not connection.busy]
        many = max(1, self.limits.max_connections // 100)
        longest = heapq.nsmallest(many, silent, key=lambda connection: connection.seen_at)
        silent_since = time.monotonic() - SPARED_S
        closed = [connection.close_if_silent(silent_since) for connection in longest]
        return any(closed)
