"""Sockets of the gRPC ports, found among the open files of the process: grpcio does not expose them.

A socket that is not found is left alone, so no client is disconnected by mistake.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import ipaddress
import os
import socket
import struct
import termios
import urllib.parse
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import TypeVar

_Address = tuple[str, int]
_Result = TypeVar("_Result")

_BYTES_ACKED, _BYTES_RECEIVED = 120, 128  # offsets in struct tcp_info
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_NO_ADDRESS = ("", 0)


class ClientConnection:
    """A client's TCP connection to a gRPC port. Its socket is found by the address of the client."""

    def __init__(self, peer: str) -> None:
        self.peer = peer  # as gRPC writes it: ipv4:10.0.0.1:40000, ipv6:%5B::1%5D:40000
        self.closed = False  # by `reset`
        self._address = _parse_peer(peer)
        self._descriptor: int | None = None

    def sent_bytes(self) -> int | None:
        """Return the bytes that the kernel has accepted from gRPC. None if the socket is unknown."""
        return self._query(_count_sent_bytes)

    def received_bytes(self) -> int | None:
        """Return the bytes that the client has sent. None if the socket is unknown."""
        return self._query(_count_received_bytes)

    def reset(self) -> bool:
        """Close the connection; gRPC cancels its calls. Returns False if the socket is unknown."""
        self.closed = self._query(_reset) is not None
        return self.closed

    def _query(self, function: Callable[[socket.socket], _Result]) -> _Result | None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError), _duplicate(self._descriptor) as sock:
                if _peer_address(sock) == self._address:
                    return function(sock)
            self._descriptor = None
        return None

    @staticmethod
    def locate_sockets(connections: Iterable[ClientConnection], ports: Container[int]) -> None:
        """Find the sockets of connections. Inspects every open file if a socket is unknown."""
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
    """A listening socket of a gRPC port. gRPC closes it when the server ends, also after a fault."""

    def __init__(self, descriptor: int, port: int) -> None:
        self._descriptor = descriptor
        self._port = port

    def is_open(self) -> bool:
        with contextlib.suppress(OSError), _duplicate(self._descriptor) as sock:
            return _is_listening(sock, {self._port})
        return False

    @staticmethod
    def find_all(ports: Collection[int]) -> list[ListeningSocket]:
        """Return the listening sockets of ports of this process. Inspects every open file."""
        sockets = []
        for descriptor in _list_descriptors():
            with contextlib.suppress(OSError), _duplicate(descriptor) as sock:
                if _is_listening(sock, ports):
                    sockets.append(ListeningSocket(descriptor, sock.getsockname()[1]))
        return sockets


def _is_listening(sock: socket.socket, ports: Container[int]) -> bool:
    listens = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    return bool(listens and sock.family in _FAMILIES and sock.getsockname()[1] in ports)


def _list_descriptors() -> list[int]:
    with contextlib.suppress(OSError):  # no descriptor may be free for listing the folder
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - a Path for each of thousands
    return []


def _count_sent_bytes(sock: socket.socket) -> int:
    queued = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
    return int(queued) + _tcp_info_field(sock, _BYTES_ACKED)


def _count_received_bytes(sock: socket.socket) -> int:
    return _tcp_info_field(sock, _BYTES_RECEIVED)


def _tcp_info_field(sock: socket.socket, offset: int) -> int:
    tcp_info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 8)
    return int(struct.unpack_from("Q", tcp_info, offset)[0])


_libc = ctypes.CDLL(None, use_errno=True)


def _reset(sock: socket.socket) -> bool:
    """Send a reset to the client and discard what the kernel has received, by connect(2) to AF_UNSPEC.

    After shutdown(2), gRPC may read the last received bytes without learning of the shutdown. The client
    would then wait for ever: the kernel announces no room for further bytes.
    """
    unspecified = bytes(16)  # a sockaddr with the family AF_UNSPEC
    if _libc.connect(sock.fileno(), unspecified, len(unspecified)):
        raise OSError(ctypes.get_errno(), "connect to AF_UNSPEC")
    return True


def _parse_peer(peer: str) -> _Address:
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return (_normalize_host(host.strip("[]")), int(port)) if port.isdigit() else _NO_ADDRESS


@contextlib.contextmanager
def _duplicate(descriptor: int) -> Iterator[socket.socket]:
    duplicate = os.dup(descriptor)
    try:
        sock = socket.socket(fileno=duplicate)
    except OSError:
        os.close(duplicate)
        raise
    with sock:
        yield sock


def _peer_address(sock: socket.socket) -> _Address:
    if sock.family not in _FAMILIES:
        return _NO_ADDRESS
    host, port = sock.getpeername()[:2]
    return _normalize_host(host), port


@functools.lru_cache(maxsize=4096)
def _normalize_host(host: str) -> str:
    """Return one notation for an IP address: no zone, IPv4-mapped addresses as IPv4."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
