"""Limits on the memory that gRPC buffers for slow clients: unread responses and incomplete request messages.

gRPC buffers a response until its client has read it, and the received part of a message until the rest
arrives. Neither buffer has a limit over all calls. The kernel counts the bytes of each connection, so a
connection over the limits is closed with all its calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
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
from typing import TYPE_CHECKING, TypeVar

from pipeline.config.config_file import Limits
from pipeline.front.metrics.access_log import UNREAD, AccessLog
from pipeline.process.processes import resident_bytes

if TYPE_CHECKING:
    from pipeline.front.grpc.rpc_handler import CallContext


_Address = tuple[str, int]
_Result = TypeVar("_Result")

_BYTES_ACKED, _BYTES_RECEIVED = 120, 128  # offsets in struct tcp_info
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_NO_ADDRESS = ("", 0)


class ClientConnection:
    """A client's TCP connection to a gRPC port: counts its bytes, and can close it.

    gRPC does not expose its sockets. The socket is found among the process's open files by the client's
    address.
    """

    def __init__(self, peer: str) -> None:
        self.peer = peer  # as gRPC writes it: ipv4:10.0.0.1:40000, ipv6:%5B::1%5D:40000
        self.closed = False  # by `reset`
        self._address = _parse_peer(peer)
        self._descriptor: int | None = None

    def sent_bytes(self) -> int | None:
        """Return the total bytes that gRPC has written to the socket; None if the socket is unknown."""
        return self._query(_count_sent_bytes)

    def received_bytes(self) -> int | None:
        """Return the total bytes that the client has sent; None if the socket is unknown."""
        return self._query(_count_received_bytes)

    def reset(self) -> bool:
        """Close the connection with a TCP reset; gRPC then cancels its calls.

        Return False if the socket is unknown.
        """
        self.closed = self._query(_reset) is not None
        return self.closed

    def _query(self, function: Callable[[socket.socket], _Result]) -> _Result | None:
        """Return `function(socket)` of the connection's socket; None if the socket is unknown."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError), _duplicate(self._descriptor) as sock:
                if _peer_address(sock) == self._address:
                    return function(sock)
            self._descriptor = None
        return None

    @staticmethod
    def locate_sockets(connections: Iterable[ClientConnection], ports: Container[int]) -> None:
        """Find the sockets of these connections among the open files of this process, and store them.

        ports: the server's gRPC ports. Inspects every open file if the socket of any connection is unknown.
        """
        unknown = {
            each._address: each for each in connections if each._descriptor is None and not each.closed
        }
        unknown.pop(_NO_ADDRESS, None)  # gRPC no longer knows the address of a client that has disconnected
        if not unknown:
            return
        for descriptor in _list_descriptors():
            with contextlib.suppress(OSError), _duplicate(descriptor) as sock:
                connection = unknown.get(_peer_address(sock))
                if connection is not None and sock.getsockname()[1] in ports:
                    connection._descriptor = descriptor


class ListeningSocket:
    """A socket on which gRPC listens in this process. It shows whether gRPC has closed the port.

    gRPC closes the socket when the server ends, also after a fault.
    """

    def __init__(self, descriptor: int, port: int) -> None:
        self._descriptor = descriptor
        self._port = port

    def is_open(self) -> bool:
        """Whether the port still accepts connections."""
        with contextlib.suppress(OSError), _duplicate(self._descriptor) as sock:
            return _is_listening(sock, {self._port})
        return False

    @staticmethod
    def find_all(ports: Collection[int]) -> list[ListeningSocket]:
        """Return the listening sockets that this process has on these ports. Inspects every open file."""
        sockets = []
        for descriptor in _list_descriptors():
            with contextlib.suppress(OSError), _duplicate(descriptor) as sock:
                if _is_listening(sock, ports):
                    sockets.append(ListeningSocket(descriptor, sock.getsockname()[1]))
        return sockets


def _is_listening(sock: socket.socket, ports: Container[int]) -> bool:
    """Whether a socket listens on one of these TCP ports."""
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens and sock.family in _FAMILIES and sock.getsockname()[1] in ports)


def _list_descriptors() -> list[int]:
    """Return the descriptors of all open files of this process; empty if they can't be listed."""
    with contextlib.suppress(OSError):  # no descriptor may be free for listing the folder
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - a Path for each of thousands
    return []


def _count_sent_bytes(sock: socket.socket) -> int:
    """Return the bytes written to a TCP socket: acknowledged by the client, or queued in the kernel."""
    queued = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
    return int(queued) + _tcp_info_field(sock, _BYTES_ACKED)


def _count_received_bytes(sock: socket.socket) -> int:
    """Return the bytes that a TCP socket has received."""
    return _tcp_info_field(sock, _BYTES_RECEIVED)


def _tcp_info_field(sock: socket.socket, offset: int) -> int:
    """Return a 64-bit field of a socket's `struct tcp_info`. offset: position of the field in bytes."""
    tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 8)
    return int(struct.unpack_from("Q", tcp_info, offset)[0])


_libc = ctypes.CDLL(None, use_errno=True)


def _reset(sock: socket.socket) -> bool:
    """Close a TCP connection: reset it, and discard unread data, by connect(2) to AF_UNSPEC. Raises OSError.

    After shutdown(2), gRPC may read the last received bytes without learning of the shutdown. The client
    would then wait for ever: the kernel announces no room for further bytes.
    """
    unspecified = bytes(16)  # a sockaddr with the family AF_UNSPEC
    if _libc.connect(sock.fileno(), unspecified, len(unspecified)):
        raise OSError(ctypes.get_errno(), "connect to AF_UNSPEC")
    return True


def _parse_peer(peer: str) -> _Address:
    """Return host and port of a client from gRPC's notation, such as "ipv4:10.0.0.1:40000"."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return (_normalize_host(host.strip("[]")), int(port)) if port.isdigit() else _NO_ADDRESS


@contextlib.contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket]:
    """Context manager: return a socket object for a duplicate of a descriptor, which itself stays open."""
    duplicate = os.dup(descriptor)
    try:
        sock = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
    with sock:
        yield sock


def _peer_address(sock: socket.socket) -> _Address:
    """Return host and port of the other end of a socket; empty for a socket that is not TCP."""
    if sock.family not in _FAMILIES:
        return _NO_ADDRESS
    host, port = sock.getpeername()[:2]
    return _normalize_host(host), port


@functools.lru_cache(maxsize=4096)
def _normalize_host(host: str) -> str:
    """Return an IP address in one notation: without a zone, IPv4-mapped addresses as IPv4.

    Empty if invalid.
    """
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)


_REST = 5  # pause after a scan, as a multiple of its duration: clients must not keep the event loop busy

_CALL_BYTES = 20 * 1024  # memory of a call besides its response
_PROGRESS_BYTES = 16 * 1024  # fewer may be answers to pings and settings, which are no progress
_SCAN_INTERVAL_S = 1.0


class _ReadingConnection(ClientConnection):
    """A client connection with responses that the client has not read yet, and its reading speed."""

    def __init__(self, peer: str, since: float) -> None:
        super().__init__(peer)
        self.calls = 0
        self.unread_bytes = 0  # sizes of the unread responses; a response counts until it is read to the end
        self.since = since  # time.monotonic() of the last progress
        self._base_bytes: int | None = None  # `sent_bytes` at `since`
        self._progress_bytes = 0  # sent since then

    def update_progress(self) -> None:
        """Count the bytes that gRPC has written to the socket since the start of the measurement."""
        sent_bytes = self.sent_bytes()
        if sent_bytes is None:
            return
        if self._base_bytes is None:
            self._base_bytes = sent_bytes
        self._progress_bytes = sent_bytes - self._base_bytes

    @property
    def makes_progress(self) -> bool:
        """Whether the client has read a noticeable number of bytes since its previous progress."""
        return self._progress_bytes >= _PROGRESS_BYTES

    def restart_interval(self, now: float) -> None:
        """Begin a new measurement of the reading rate, if the client has read on. now: time.monotonic()."""
        if self.makes_progress and self._base_bytes is not None:
            self._base_bytes += self._progress_bytes
            self._progress_bytes, self.since = 0, now

    def estimate_remaining_s(self, now: float) -> float:
        """Return the seconds until the client has read all responses, at its recent reading rate.

        now: instant of time.monotonic().
        """
        interval_s = max(_SCAN_INTERVAL_S, now - self.since)  # shorter intervals tell no rate
        return self.unread_bytes * interval_s / (self._progress_bytes + _PROGRESS_BYTES)


class UnreadResponses:
    """Counts response bytes that clients have not read, and closes connections that do not read.

    A connection without progress for `limits.body_timeout_s` is closed. While all unread responses exceed
    `limits.bodies_bytes`, the connection with the longest estimated time to read is closed. A single response
    may have `limits.response_bytes`.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self._timeout_s = limits.body_timeout_s
        self._interval_s = min(_SCAN_INTERVAL_S, limits.body_timeout_s / 4)
        self._max_bytes = max(limits.bodies_bytes, limits.response_bytes)
        self._ports = ports  # of the service
        self._access_log = access_log
        self._recent: dict[CallContext, tuple[float, int]] = {}  # start and bytes of responses, by start
        self._unread: dict[CallContext, tuple[_ReadingConnection, int]] = {}  # older responses
        self._connections: dict[str, _ReadingConnection] = {}  # of the older responses, by peer
        self._bytes = 0  # of all responses, except on connections that `_close` has closed
        self._scan_timer: asyncio.TimerHandle | None = None
        self._shed_timer: asyncio.TimerHandle | None = None
        self._resume_at = 0.0  # no scan before that

    def add(self, call: CallContext, size: int) -> None:
        """Count a response of a call that gRPC starts to send. size: bytes of the response."""
        size += _CALL_BYTES
        self._bytes += size
        now = time.monotonic()
        if call in self._unread:
            connection, before = self._unread[call]
            self._unread[call] = connection, before + size
            self._count_on_connection(connection, size)
        else:
            began, before = self._recent.get(call) or (now, 0)
            self._recent[call] = began, before + size
        if self._scan_timer is None:
            self._schedule_scan(now + self._interval_s)
        if self._bytes > self._max_bytes and self._shed_timer is None:
            delay_s = max(0.0, self._resume_at - now)
            self._shed_timer = asyncio.get_running_loop().call_later(delay_s, self._scan_early)

    def remove(self, call: CallContext) -> None:
        """Stop counting the responses of a call: the client has read them, or has disconnected."""
        recent = self._recent.pop(call, None)
        if recent is not None:
            self._bytes -= recent[1]
            return
        unread = self._unread.pop(call, None)
        if unread is None:
            return
        connection, size = unread
        connection.calls -= 1
        connection.unread_bytes -= size
        if not connection.closed:
            self._bytes -= size
        if not connection.calls:
            del self._connections[connection.peer]

    def _count_on_connection(self, connection: _ReadingConnection, size: int) -> None:
        """Add response bytes to a connection. The total excludes the bytes of closed connections."""
        connection.unread_bytes += size
        if connection.closed:
            self._bytes -= size

    def _schedule_scan(self, when: float) -> None:
        delay_s = when - time.monotonic()
        self._scan_timer = asyncio.get_running_loop().call_later(delay_s, self._scan)

    def _scan(self) -> None:
        """Measure connections with unread responses, close those without progress, schedule the next scan."""
        self._scan_timer = None
        began = time.monotonic()
        self._group_by_connection(began - self._interval_s)
        self._update_connections()
        for connection in list(self._connections.values()):
            if not connection.makes_progress and began - connection.since > self._timeout_s:
                self._close_connection(connection, "it has not read on for limits.body_timeout_s")
        self._shed(began)
        for connection in self._connections.values():
            connection.restart_interval(began)
        self._pause_after(began)
        if self._recent or self._unread:
            self._schedule_scan(max(began + self._interval_s, self._resume_at))

    def _scan_early(self) -> None:
        """Measure all connections now, because unread response bytes exceed their limit.

        Close the slowest connections.
        """
        self._shed_timer = None
        began = time.monotonic()
        self._group_by_connection(began)
        self._update_connections()
        self._shed(began)
        self._pause_after(began)

    def _pause_after(self, began: float) -> None:
        """Delay the next scan by a multiple of this scan's duration. began: instant when it started."""
        now = time.monotonic()
        self._resume_at = now + _REST * (now - began)

    def _group_by_connection(self, before: float) -> None:
        """Assign the responses that began before an instant (time.monotonic) to their connections."""
        for call, (began, size) in list(self._recent.items()):
            if began > before:
                break
            del self._recent[call]
            peer = call.peer()
            connection = self._connections.get(peer)
            if connection is None:
                connection = self._connections[peer] = _ReadingConnection(peer, began)
            connection.calls += 1
            self._unread[call] = connection, size
            self._count_on_connection(connection, size)

    def _update_connections(self) -> None:
        """Ask the kernel for the progress of all connections with unread responses."""
        connections = [connection for connection in self._connections.values() if not connection.closed]
        ClientConnection.locate_sockets(connections, self._ports)
        for connection in connections:
            connection.update_progress()

    def _shed(self, now: float) -> None:
        """Close the connections with the longest estimated reading time, until the limit is met."""
        if self._bytes <= self._max_bytes:
            return
        reason = f"together more than {self._max_bytes} bytes wait; limits.bodies_bytes allows no more"
        slowest_last = sorted(
            self._connections.values(), key=lambda each: (each.estimate_remaining_s(now), each.unread_bytes)
        )
        for connection in reversed(slowest_last):
            if self._bytes > self._max_bytes:
                self._close_connection(connection, reason)

    def _close_connection(self, connection: _ReadingConnection, reason: str) -> None:
        """Close a connection that does not read, and log it. reason: text for the log."""
        if connection.closed or not connection.reset():  # calls of a lost connection end by themselves
            return
        self._bytes -= connection.unread_bytes
        self._access_log.warn(
            UNREAD,
            f"closed the connection of {connection.peer} with {connection.unread_bytes} unread bytes "
            f"(calls: {connection.calls}): {reason}",
        )


_MESSAGE_SCAN_INTERVAL_S = 0.1


class _SendingConnection(ClientConnection):
    """A client connection with calls whose request message has not arrived completely."""

    def __init__(self, peer: str) -> None:
        super().__init__(peer)
        self.buffered_bytes = 0  # upper bound of the bytes that gRPC buffers for partial messages
        self.base_bytes: dict[CallContext, int] = {}  # `received_bytes` when a call was first seen waiting

    def update(self, calls: Collection[CallContext], max_message_bytes: int) -> None:
        """Estimate the bytes that gRPC buffers for the connection's incomplete messages.

        calls: calls of the connection that wait for a message.
        """
        received_bytes = self.received_bytes()
        if received_bytes is None:
            self.buffered_bytes = 0
            return
        self.base_bytes = {call: self.base_bytes.get(call, received_bytes) for call in calls}
        since_bases = [received_bytes - base for base in self.base_bytes.values()]
        self.buffered_bytes = min(max(since_bases), sum(min(each, max_message_bytes) for each in since_bases))


class PartialMessages:
    """Limits request messages that are still arriving: their time, and their total bytes.

    The message of a unary call must arrive within `limits.body_timeout_s`. While both the memory of the
    front-end process and the estimated bytes of incomplete messages exceed `limits.bodies_bytes`, the
    connection that has sent most is closed.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self._max_bytes, self._max_message_bytes = limits.bodies_bytes, limits.body_bytes
        self._timeout_s = limits.body_timeout_s
        self._ports = ports  # of the service
        self._access_log = access_log
        self._peers: dict[CallContext, str] = {}  # peers of calls that wait for a message, "" until a scan
        self._unary: dict[CallContext, float] = {}  # start of unary calls among them, by start
        self._connections: dict[str, _SendingConnection] = {}  # by peer
        self._scan_timer: asyncio.TimerHandle | None = None

    def add(self, call: CallContext, *, unary: bool) -> None:
        """Watch a call that waits for a request message. unary: end the call if the message is late."""
        self._peers[call] = ""
        if unary:
            self._unary[call] = time.monotonic()
        if self._scan_timer is None:
            loop = asyncio.get_running_loop()
            self._scan_timer = loop.call_later(_MESSAGE_SCAN_INTERVAL_S, self._scan)

    def remove(self, call: CallContext) -> None:
        """Stop watching a call: its message has arrived, or no message will arrive."""
        peer = self._peers.pop(call, "")
        self._unary.pop(call, None)
        if peer and peer in self._connections:
            self._connections[peer].base_bytes.pop(call, None)

    def _scan(self) -> None:
        """End unary calls whose message is late, close connections over the limit, schedule the next scan."""
        self._scan_timer = None
        began = time.monotonic()
        self._time_out_before(began - self._timeout_s)
        if resident_bytes() > self._max_bytes:
            self._update_connections()
            self._shed()
        else:
            self._connections.clear()
        if self._peers:
            delay_s = max(_MESSAGE_SCAN_INTERVAL_S, _REST * (time.monotonic() - began))
            self._scan_timer = asyncio.get_running_loop().call_later(delay_s, self._scan)

    def _time_out_before(self, moment: float) -> None:
        """End the unary calls that have waited for their message since before `moment` (time.monotonic)."""
        for call, began in list(self._unary.items()):
            if began > moment:
                break
            del self._unary[call]
            call.time_out_message()

    def _update_connections(self) -> None:
        """Group the waiting calls by connection, and estimate the buffered bytes of each connection."""
        calls: dict[str, list[CallContext]] = {}
        for call, known_peer in self._peers.items():
            peer = self._peers[call] = known_peer or call.peer()
            calls.setdefault(peer, []).append(call)
        self._connections = {peer: self._connections.get(peer) or _SendingConnection(peer) for peer in calls}
        ClientConnection.locate_sockets(self._connections.values(), self._ports)
        for connection in self._connections.values():
            connection.update(calls[connection.peer], self._max_message_bytes)

    def _shed(self) -> None:
        """Close the connections with the most buffered bytes until the total is within the limit."""
        connections = [connection for connection in self._connections.values() if not connection.closed]
        total_bytes = sum(connection.buffered_bytes for connection in connections)
        for connection in sorted(connections, key=lambda each: each.buffered_bytes, reverse=True):
            if total_bytes <= self._max_bytes:
                return
            if connection.reset():
                total_bytes -= connection.buffered_bytes
                self._access_log.warn(
                    "Unfinished messages",
                    f"closed the connection of {connection.peer}, which has sent up to "
                    f"{connection.buffered_bytes} bytes of them: together more than {self._max_bytes} bytes "
                    "are here; limits.bodies_bytes allows no more",
                )


_SLOW_AFTER_S = 0.02


class SlowCalls:
    """Calls `become_slow` of each unary call that takes longer than 20 ms.

    The limits on slow clients can ignore all other calls.
    """

    def __init__(self) -> None:
        self._calls: dict[CallContext, float] = {}  # start of calls, by start
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: CallContext) -> None:
        """Watch a call from its start until `remove`, to report it if it becomes slow."""
        self._calls[call] = time.monotonic()
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_SLOW_AFTER_S, self._report)

    def remove(self, call: CallContext) -> None:
        """Stop watching a call, because it has ended."""
        self._calls.pop(call, None)

    def _report(self) -> None:
        """Report the calls that have become slow, and schedule the next check."""
        self._timer = None
        slow_since = time.monotonic() - _SLOW_AFTER_S
        for call, began in list(self._calls.items()):
            if began > slow_since:
                break
            del self._calls[call]
            call.become_slow()
        if self._calls:
            self._timer = asyncio.get_running_loop().call_later(_SLOW_AFTER_S, self._report)


class ClientBounds:
    """The memory limits for slow clients of one gRPC server: on incomplete requests and on unread responses.

    ports: the gRPC ports of the service.
    """

    def __init__(self, limits: Limits, ports: Collection[int], access_log: AccessLog) -> None:
        self.messages = PartialMessages(limits, ports, access_log)
        self.responses = UnreadResponses(limits, ports, access_log)
        self.slow_calls = SlowCalls()
