"""Lets every worker run a script that listens on a port.

Paddle Serving runs a script once, and `start_http_server(8000)` opens its port once. Here each worker runs
the script: the first one gets the port, and the others would end with "Address already in use".
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

TAKE_OVER_S = 1.0  # between two attempts to take the port over
_SEARCH_S = 1.0  # a socket that is bound and does not listen yet has no entry in /proc/net/tcp
_POLL_S = 0.05
_BACKLOG = 128
_LISTENS = "0A"  # TCP_LISTEN in /proc/net/tcp
_LISTENS_UNIX = "00010000"  # __SO_ACCEPTCON in /proc/net/unix
# Free ports that no other machine reaches. For AF_UNIX the kernel chooses a name without a file.
_STAND_IN: dict[int, Any] = {
    socket.AF_INET: ("127.0.0.1", 0),
    socket.AF_INET6: ("::1", 0),
    socket.AF_UNIX: "",
}

_bind, _listen = socket.socket.bind, socket.socket.listen


def share_ports(front_pid: int) -> None:
    """Make `bind` and `listen` succeed in this process for a port that another worker of the service holds.

    The socket then listens on a free port of the loopback interface, and takes over the requested port once
    it is free. A port held by another program is still an error.
    """

    def bind(self: socket.socket, address: Any) -> None:
        try:
            _bind(self, address)
        except OSError as exc:
            if not _stands_by(self, address, exc, front_pid):
                raise

    def listen(self: socket.socket, *backlog: int) -> None:
        # With SO_REUSEADDR two sockets can be bound to a port until one of them listens.
        try:
            _listen(self, *backlog)
        except OSError as exc:
            if not _stands_by(self, self.getsockname(), exc, front_pid):
                raise

    socket.socket.bind, socket.socket.listen = bind, listen  # type: ignore[method-assign, assignment]


def _stands_by(listener: socket.socket, address: Any, error: OSError, front_pid: int) -> bool:
    """Bind a socket to a free local port if another worker holds its port.

    Returns whether the socket was bound. error: of the failed `bind` or `listen`.
    """
    stand_in = _STAND_IN.get(listener.family)
    if error.errno != errno.EADDRINUSE or stand_in is None or listener.type != socket.SOCK_STREAM:
        return False
    if (holder := _find_holder(address, front_pid)) is None:
        return False
    _replace(listener, stand_in)
    log.warning(
        "Port %s is in use by process %d of this service, which ran the same script first: this process "
        "takes the port over when that one ends",
        _get_port(address),
        holder,
    )
    waiting = (weakref.ref(listener), address)
    if isinstance(address, tuple):  # the file of AF_UNIX stays, and no process can tell when it is free
        threading.Thread(target=_take_over, args=waiting, name="port", daemon=True).start()
    return True


def _take_over(listener_ref: weakref.ref[socket.socket], address: Any) -> None:
    """Try each second to listen on the address, until listening succeeds or the socket is closed."""
    while True:
        time.sleep(TAKE_OVER_S)
        listener = listener_ref()
        if listener is None or listener.fileno() < 0:
            return
        try:
            _replace(listener, address)
        except OSError:  # the port is still in use, or the socket was closed meanwhile
            del listener
            continue
        log.info("Port %s is free: this process listens there now", _get_port(address))
        return


def _replace(listener: socket.socket, address: Any) -> None:
    """Replace a socket by one that listens on `address`, under the same file descriptor.

    Raises OSError, and leaves the socket as it was.
    """
    with socket.socket(listener.family, listener.type, listener.proto) as replacement:
        replacement.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(replacement, address)
        _listen(replacement, _BACKLOG)
        replacement.settimeout(listener.gettimeout())
        os.dup2(replacement.fileno(), listener.fileno(), inheritable=False)


def _get_port(address: Any) -> Any:
    """Return the port of a socket address, or the path of an AF_UNIX address."""
    return address[1] if isinstance(address, tuple) else os.fsdecode(address)


def _find_holder(address: Any, front_pid: int) -> int | None:
    """Return the id of this service's process that listens on the address; None for a foreign process."""
    port = _get_port(address)
    list_inodes = _list_tcp_inodes if isinstance(address, tuple) else _list_unix_inodes
    over = time.monotonic() + _SEARCH_S
    while not (inodes := set(list_inodes(port))):
        if time.monotonic() > over:
            return None
        time.sleep(_POLL_S)
    links = {f"socket:[{inode}]" for inode in inodes}
    for pid in _processes_below(front_pid):
        if pid != os.getpid() and not links.isdisjoint(_open_files(pid)):
            return pid
    return None


def _list_tcp_inodes(port: int) -> Iterator[str]:
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _list_unix_inodes(path: str) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
        fields = line.split(maxsplit=7)
        if fields[3] == _LISTENS_UNIX and fields[7:] == [path]:
            yield fields[6]


def _processes_below(root: int) -> Iterator[int]:
    """Yield the ids of a process and of all its descendants."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # the process has ended
            continue
        children.setdefault(parent, []).append(int(folder.name))
    pending = [root]
    while pending:
        yield (pid := pending.pop())
        pending += children.get(pid, ())


def _open_files(pid: int) -> Iterator[str]:
    try:
        entries = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process has ended
        return
    for entry in entries:
        try:
            yield str(entry.readlink())
        except OSError:  # the file was closed
            continue
