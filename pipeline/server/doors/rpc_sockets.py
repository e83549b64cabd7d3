"""The sockets of gRPC connections, found below gRPC by what it tells of their clients.

gRPC tells no server how much of an answer was taken, and has no end for a connection; the kernel has both.
What is found is the number of a descriptor, which gRPC may close at any time, and the process use anew: so
each use is of a copy, which is held against the client's address first. All raise OSError for another's.
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
from collections.abc import Container, Iterator

Address = tuple[str, int]

_BYTES_ACKED = 120  # where struct tcp_info of the kernel has tcpi_bytes_acked
_NOWHERE = ("", 0)


def address_of(peer: str) -> Address:
    """Of what gRPC calls ipv4:10.0.0.1:40000 or ipv6:%5B::1%5D:40000."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return (_plain(host.strip("[]")), int(port)) if port.isdigit() else _NOWHERE


def find(wanted: Container[Address], ports: Container[int]) -> Iterator[tuple[Address, int]]:
    """Those of the clients that are connected to one of our ports. Looks at every open file."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a Path for each of thousands
        with contextlib.suppress(OSError), _copy(int(name)) as copy:
            address = _client_of(copy)
            if address in wanted and copy.getsockname()[1] in ports:
                yield address, int(name)


def taken_bytes(number: int, address: Address) -> int:
    """What the kernel has taken from gRPC for the client, since the connection is open."""
    with _of(number, address) as sock:
        queued = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES_ACKED + 8)
        return int(queued + struct.unpack_from("Q", told, _BYTES_ACKED)[0])


def shut(number: int, address: Address) -> None:
    """End the connection: gRPC sees it as ended by the client, and lets go of all its calls."""
    with _of(number, address) as sock:
        sock.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def _of(number: int, address: Address) -> Iterator[socket.socket]:
    with _copy(number) as copy:
        if _client_of(copy) != address:
            raise ConnectionError(f"descriptor {number} is another connection's by now")
        yield copy


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


def _client_of(sock: socket.socket) -> Address:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return _NOWHERE
    host, port = sock.getpeername()[:2]
    return _plain(host), port


@functools.lru_cache(maxsize=4096)
def _plain(host: str) -> str:
    """The same for the same client, however its address was written."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return ""
    return str(getattr(address, "ipv4_mapped", None) or address)
