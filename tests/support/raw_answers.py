"""Answers as bytes, read from a socket."""

from __future__ import annotations

import socket


def received_until(client: socket.socket, marker: bytes, times: int = 1) -> bytes:
    """All until this has come so often. AssertionError where the service closes the connection before."""
    received = b""
    while received.count(marker) < times:
        more = client.recv(65536)
        assert more, received
        received += more
    return received
