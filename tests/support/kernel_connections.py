"""Connections as the kernel's table has them: what a client can't see of the server's end."""

from __future__ import annotations

import socket
from pathlib import Path

_ESTABLISHED = "01"


def is_connected(client: socket.socket) -> bool:
    """Whether the service's end of the connection is still open."""
    port = client.getsockname()[1]
    rows = [row.split() for row in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    return any(row[2].endswith(f":{port:04X}") and row[3] == _ESTABLISHED for row in rows)
