"""Limits that the connections of an HTTP server share.

They bound the requests begun per event loop iteration, the bytes of bodies, and the unread responses.
"""

from __future__ import annotations

import asyncio
import email.utils
import fcntl
import heapq
import socket
import struct
import sys
import termios
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable

from pipeline.config.config_file import Limits
from pipeline.errors import ServingError
from pipeline.front.http.request_head import HttpGuard

MAX_REQUESTS_PER_TURN = 128  # begun in one turn of the event loop
MAX_TURN_S = 0.005  # time for beginning requests in one turn of the event loop
MIN_REJECTED_CONNECTIONS = 16  # rejected connections that may stay open to read the response
RECENT_S = 1.0  # a connection with data within this time is not closed to make room
_IPV4_MAPPED = "::ffff:"  # before the IPv4 address of a client on an IPv6 socket
HOLD_S = 0.05  # maximum time that a rejection is held
TICKS_PER_S = 100  # rejections of one tick are sent together, to save turns of the event loop
EARLY_RETRY_S = 0.05  # a client that retries within this time ignores Retry-After
MAX_REJECTIONS_PER_TURN = 128  # sent in one turn of the event loop
_WATCH_EVERY_S = 0.5

Reject = Callable[[], None]
"""Sends a rejection, if the client is still connected."""


class HeldRejections:
    """Delays overload errors by HOLD_S for clients that retry immediately, which would take most of the CPU.

    Each connection has at most one delayed error. All connections share one timer.
    """

    def __init__(self) -> None:
        self._held: deque[tuple[float, Reject]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def hold(self, reject: Reject, now: float) -> None:
        """Call `reject`, which sends an error, HOLD_S after `now` (time.monotonic) or a little earlier."""
        self._held.append((int((now + HOLD_S) * TICKS_PER_S) / TICKS_PER_S, reject))
        if self._timer is None:
            self._set_timer(now)

    def send_all(self) -> None:
        """Send all delayed errors now, because the server stops."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rejections, self._held = self._held, deque()
        for _, reject in rejections:
            reject()

    def _set_timer(self, now: float) -> None:
        wait_s = max(0.0, self._held[0][0] - now)
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._send_due)

    def _send_due(self) -> None:
        """Send the errors whose delay is over, and set the timer for the next error."""
        now = time.monotonic()
        for _ in range(min(MAX_REJECTIONS_PER_TURN, len(self._held))):
            if self._held[0][0] > now:
                break
            self._held.popleft()[1]()
        self._timer = None
        if self._held:
            self._set_timer(now)


class OpenConnection(asyncio.Protocol, ABC):
    """Base class of `Connection`: the part that enforces the limits which all connections of a server share.

    It closes idle connections, and aborts connections whose clients do not read.
    """

    _listener: Listener
    _transport: asyncio.Transport
    seen_at: float  # when the client last sent data or got a response
    postponed = False  # `go_on` will be called in a later turn of the event loop
    _unsent_bytes = 0  # when `abort_if_unread` last ran
    _unsent_since = 0.0  # when `_unsent_bytes` last changed
    _peer = ""  # the result of `peer`, for each read of it is a system call

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a request is arriving or being processed on this connection."""

    @property
    @abstractmethod
    def arriving_bytes(self) -> int:
        """Number of bytes received so far of an incomplete body."""

    @abstractmethod
    def go_on(self) -> None:
        """Begin the next received request, or resume reading from the socket."""

    @abstractmethod
    def refuse_body(self, error: ServingError) -> None:
        """Reject the request whose body is arriving, if any, and free the received part of the body."""

    @abstractmethod
    def close_if_slow(self, now: float) -> None:
        """Reject a request that takes too long to arrive; abort if the client reads no responses.

        now: time.monotonic().
        """

    @abstractmethod
    def log_abort(self, reason: str) -> None:
        """Log that the connection is aborted because its client does not read. reason: text for the log."""

    @property
    def unsent_bytes(self) -> int:
        """Number of response bytes that the client has not read and this process still buffers."""
        return self._transport.get_write_buffer_size()

    def abort_if_unread(self, now: float) -> None:
        """Abort the connection if its client has read no response bytes for `limits.body_timeout_s`.

        An ordinary close would wait until the unsent bytes are read. now: time.monotonic().
        """
        unsent = self.unsent_bytes
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._unsent_since = unsent, now
        elif unsent and now - self._unsent_since > self._listener.limits.body_timeout_s:
            self.abort_unread("it has not read on for limits.body_timeout_s")

    def abort_unread(self, reason: str) -> None:
        """Abort the connection of a client that does not read its responses. reason: text for the log."""
        self.log_abort(reason)
        self._transport.abort()

    def close_if_silent(self, silent_since: float) -> bool:
        """Close the connection if it is idle and has had no traffic since `silent_since`.

        silent_since: instant of time.monotonic(). Return whether it was closed.
        """
        if (
            self.busy
            or self.seen_at > silent_since
            or self._transport.is_closing()
            or self._has_unread_data()
        ):
            return False
        self._transport.close()
        return True

    def close(self) -> None:
        """Close the connection once its buffered response bytes are sent."""
        self._transport.close()

    @property
    def peer(self) -> str:
        """The client's IP address; "?" after the connection was lost."""
        if self._peer:
            return self._peer
        try:
            address = self._transport.get_extra_info("peername")
        except AttributeError:  # uvloop asks the socket, which a lost connection no longer has
            return "?"
        if not address:
            return "?"
        # Interned: most connections come from a few addresses.
        self._peer = sys.intern(str(address[0]).removeprefix(_IPV4_MAPPED))
        return self._peer

    def _has_unread_data(self) -> bool:
        """Whether the kernel holds unread data from the client, such as a request that must be answered."""
        sock = self._transport.get_extra_info("socket")
        counted = fcntl.ioctl(sock.fileno(), termios.FIONREAD, b"\0" * 4)
        return bool(struct.unpack("i", counted)[0])


class Listener:
    """State and limits that all connections of one HTTP server share."""

    def __init__(self, limits: Limits, guard: HttpGuard | None = None) -> None:
        self.limits = limits
        self.guard = guard  # None: no API keys and no restricted APIs
        self.connections: set[OpenConnection] = set()
        self.date_line = b""  # the Date header, renewed by `watch`
        self.bodies_bytes = 0  # bytes of bodies that are arriving or being processed
        self.draining = False  # every response closes its connection
        self.held = HeldRejections()
        self.begun = 0  # requests begun in this turn
        self.spent_s = 0.0  # time for beginning them
        self._turn_ends = False  # whether `_next_turn` is scheduled
        # One complete response is always allowed.
        self._max_unread_bytes = max(limits.bodies_bytes, limits.response_bytes)
        self._unread: dict[OpenConnection, int] = {}  # bytes of responses that the client does not read
        self._unread_bytes = 0
        self._postponed: deque[OpenConnection] = deque()
        self._pipelining: deque[OpenConnection] = deque()  # postponed connections whose request was pipelined
        self._rejected: deque[OpenConnection] = deque()

    async def watch(self) -> None:
        """Update the Date header, and close slow and idle connections, every half second until cancelled."""
        while True:
            date = email.utils.formatdate(usegmt=True).encode()
            self.date_line = b"date: %b\r\n" % date
            now = time.monotonic()
            for connection in list(self.connections):
                connection.close_if_slow(now)
                connection.close_if_silent(now - self.limits.idle_timeout_s)
            await asyncio.sleep(_WATCH_EVERY_S)

    def end_turn(self) -> None:
        """Begin no more requests in this event loop iteration. The next iteration resets the counts.

        While 1,024 sockets are readable, libuv polls again, up to 48 times (its issue 282). Without a bound,
        timers, dispatches and gRPC would stand still for seconds.
        """
        if not self._turn_ends:
            self._turn_ends = True
            asyncio.get_running_loop().call_soon(self._next_turn)

    def postpone(self, connection: OpenConnection, *, pipelined: bool) -> None:
        """Call the connection's `go_on` in a later iteration of the event loop.

        pipelined: whether its request arrived before the response to the previous request. Pipelined requests
        begin after all others, so that clients with many of them do not delay health checks.
        """
        if not connection.postponed:
            connection.postponed = True
            (self._pipelining if pipelined else self._postponed).append(connection)
            self.end_turn()

    def _next_turn(self) -> None:
        """Reset the counts for a new event loop iteration, and resume the postponed connections."""
        self.begun, self.spent_s, self._turn_ends = 0, 0.0, False
        self._resume(self._postponed, 1)
        self._resume(self._pipelining, 1)  # one in each turn, however many others wait
        self._resume(self._postponed, len(self._postponed))
        self._resume(self._pipelining, len(self._pipelining))
        if self._postponed or self._pipelining:
            self.end_turn()

    def _resume(self, connections: deque[OpenConnection], count: int) -> None:
        """Call `go_on` of the first `count` connections, while this event loop iteration may begin requests.

        A connection that is postponed again moves to the end of the queue.
        """
        for _ in range(min(count, len(connections))):
            if self.begun >= MAX_REQUESTS_PER_TURN or self.spent_s > MAX_TURN_S:
                return
            connection = connections.popleft()
            connection.postponed = False
            connection.go_on()

    def close_later(self, refused: OpenConnection) -> None:
        """Keep a rejected connection open, so that its client can read the error.

        If too many are open, the oldest is closed. Used for connections over `limits.max_connections`.
        """
        self._rejected.append(refused)
        if len(self._rejected) > max(MIN_REJECTED_CONNECTIONS, self.limits.max_connections // 10):
            self._rejected.popleft().close()

    def largest_bodies(self) -> list[OpenConnection]:
        """Return the 1 % of connections that hold the most bytes of incomplete bodies, at least one."""
        count = 1 + len(self.connections) // 100
        return heapq.nlargest(count, self.connections, key=lambda connection: connection.arriving_bytes)

    def add_unread(self, connection: OpenConnection) -> None:
        """Count the unsent response bytes of a connection whose client does not read.

        If the total of all connections exceeds its limit, the connections with the most bytes are aborted.
        """
        self.remove_unread(connection)
        self._unread[connection] = size = connection.unsent_bytes
        self._unread_bytes += size
        if self._unread_bytes > self._max_unread_bytes:  # later: the connection is writing now
            asyncio.get_running_loop().call_soon(self._abort_unread)

    def remove_unread(self, connection: OpenConnection) -> None:
        """Stop counting the unsent bytes of a connection: its client reads again, or has left."""
        self._unread_bytes -= self._unread.pop(connection, 0)

    def _abort_unread(self) -> None:
        """Abort the connections with the most unsent bytes until the rest is within the limit."""
        max_bytes = self._max_unread_bytes
        while self._unread_bytes > max_bytes:
            connection = max(self._unread, key=lambda connection: connection.unsent_bytes)
            self.remove_unread(connection)
            connection.abort_unread(
                f"together more than {max_bytes} bytes wait; limits.bodies_bytes allows no more"
            )

    def make_room(self) -> bool:
        """Close the 1 % of connections that have been idle longest. Return whether any was closed.

        Clients that only hold connections open thus do not exclude other clients.
        """
        silent = [connection for connection in self.connections if not connection.busy]
        count = max(1, self.limits.max_connections // 100)
        longest = heapq.nsmallest(count, silent, key=lambda connection: connection.seen_at)
        silent_since = time.monotonic() - RECENT_S
        closed = [connection.close_if_silent(silent_since) for connection in longest]
        return any(closed)


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_PROBE_AFTER_S = 0.05  # most responses are sent by then
_CHECK_EVERY_S = 0.05
_CLOSE_WAIT = 8  # tcp_states.h: the client has closed, the server has not


class HalfClosed:
    """Detects whether a client that has closed its sending side has left, by sending it "100 Continue".

    The connection of a client that has left is then reset. Any client may be sent a 100 (RFC 9110 section
    15.2).
    """

    def __init__(
        self, transport: asyncio.Transport, waits: Callable[[], bool], on_left: Callable[[], None]
    ) -> None:
        """Start to probe the client after a short delay.

        waits: returns whether a request is being processed. on_left: called when the client has left.
        """
        self._transport = transport
        self._waits = waits
        self._on_left = on_left
        self._timer = asyncio.get_running_loop().call_later(_PROBE_AFTER_S, self._probe)

    def cancel(self) -> None:
        """Stop probing the client, because the connection ends."""
        self._timer.cancel()

    def _probe(self) -> None:
        if not self._waits():
            self._timer = asyncio.get_running_loop().call_later(_PROBE_AFTER_S, self._probe)
            return
        self._transport.write(CONTINUE)
        self._check_later()

    def _check_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(_CHECK_EVERY_S, self._check)

    def _check(self) -> None:
        connection = self._transport.get_extra_info("socket")
        if connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _CLOSE_WAIT:
            self._check_later()
        else:
            self._on_left()
