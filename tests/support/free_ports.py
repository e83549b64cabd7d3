"""Ports for the services of the tests, no two of them the same."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator


def free_port() -> int:
    """A port that nothing listens on, outside the range from which the kernel gives ports to clients.

    Connecting to it is refused; who sets SO_REUSEADDR, as every server here does, may listen on it. Until
    this process ends no other test process is given it.
    """
    return next(_free_ports)


def _search_ports() -> Iterator[int]:
    start = random.SystemRandom().randrange(12_000)
    while True:
        for offset in range(12_000):
            port = 20_000 + (start + offset) % 12_000
            holder = socket.socket(socket.AF_INET6)
            try:
                holder.bind(("::", port))
            except OSError:
                holder.close()
                continue
            # Only now: with it the bind would not have failed for one that another process holds.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            _held_ports.append(holder)
            yield port


_held_ports: list[socket.socket] = []
_free_ports = _search_ports()
