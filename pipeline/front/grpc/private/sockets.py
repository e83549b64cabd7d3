"""The sockets of gRPC connections, found among the open files of the process by their clients' addresses.

gRPC tells no server how much of a message is there or was taken, and has no end for a connection; the kernel
has both. What is found is the number of a descriptor, which gRPC may close at any time, and the process use
anew: so each use is of a copy, which is held against the client's address first.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import ipaddress
import os
import socket
import struct
import termios
import urllib.parse
from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

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
        """What the kernel has taken from gRPC for the client, since the connection is open."""
        return self._ask(_taken_bytes)

    def received_bytes(self) -> int | None:
        """What has come from the client, since the connection is open."""
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
                    found = lost.get(_peer_address(copy))
                    if found is not None and copy.getsockname()[1] in ports:
                        found._number = int(name)


def _taken_bytes(sock: socket.socket) -> int:
    queued = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
    return int(queued) + _format_offset(sock, _BYTES_ACKED)


def _received_bytes(sock: socket.socket) -> int:
    return _format_offset(sock, _BYTES_RECEIVED)


def _format_offset(sock: socket.socket, offset: int) -> int:
    told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, offset + 8)
    return int(struct.unpack_from("Q", told, offset)[0])


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
