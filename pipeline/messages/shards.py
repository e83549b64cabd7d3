"""Messages between the front and a shard: connections by SCM_RIGHTS, their journal, and metrics.

Both sides send packets over a Unix socket of the type SOCK_SEQPACKET. A packet is a byte for its kind and a
number, or the metrics of the shard.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct

SERVE = 1  # front to shard: serve the connection with this slot, whose descriptor comes along
RECALL = 2  # front to shard: give so many connections back, as soon as they have no request
CLOSED = 3  # shard to front: the connection of this slot has ended
MOVED = 4  # shard to front: it has given a recalled connection back, for another shard
NEEDS_FRONT = 5  # shard to front: the connection has a request for the front's own path
PASSED_ON = 6  # shard to front: the connection has a request that another shard shall run
METRICS = 7  # shard to front: its metrics, see `pipeline.front.metrics.growth`

ALL = 2**32 - 1  # number of a `RECALL` of every connection, also of later ones
_PACKET = struct.Struct("<BI")
_FD = struct.Struct("i")
_MAX_PACKET_BYTES = 1 << 18
_IDLE, _ANSWERING = 0, 1


class Channel:
    """One end of the non-blocking socket between the front process and a shard.

    A shard is a worker that serves client connections itself.
    """

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self.socket = end

    def send(self, kind: int, number: int, connection: socket.socket | None = None) -> bool:
        """Send a packet. Return whether it was sent: False for a full buffer or a dead receiver.

        connection: client connection whose file descriptor is sent along.
        """
        packet = _PACKET.pack(kind, number)
        try:
            if connection is None:
                self.socket.send(packet)
            else:
                socket.send_fds(self.socket, [packet], [connection.fileno()])
        except OSError:
            return False
        return True

    def send_metrics(self, data: bytes) -> bool:
        """Send the metrics of a shard to the front process. Return whether they were sent."""
        try:
            self.socket.send(bytes((METRICS,)) + data)
        except OSError:
            return False
        return True

    def receive(self) -> tuple[int, int, bytes, socket.socket | None] | None:
        """Return kind, number, metrics and connection of the next packet; None if no packet has arrived.

        Raises EOFError after the other side has ended.
        """
        try:
            # `socket.recv_fds` ignores its flags, so that programs of the shard would inherit the connection.
            data, rights, _, _ = self.socket.recvmsg(
                _MAX_PACKET_BYTES, socket.CMSG_LEN(_FD.size), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        except OSError as exc:
            raise EOFError from exc
        if not data:
            raise EOFError
        if data[0] == METRICS:
            return METRICS, 0, data[1:], None
        kind, number = _PACKET.unpack(data)
        fds = [fd for _, _, descriptors in rights for (fd,) in _FD.iter_unpack(descriptors)]
        return kind, number, b"", socket.socket(fileno=fds[0]) if fds else None


class Journal:
    """Shared memory of the front process and its shards, with a byte for each connection that a shard serves.

    The request of a connection stays in the socket's buffer until its answer begins. A shard marks the slot
    of the connection before it removes the request, and unmarks the slot after the last byte of the answer.
    When a shard dies, another shard therefore finds the request of every unmarked connection.
    """

    def __init__(self, fd: int, slots: int) -> None:
        self.fd = fd
        self.slots = slots
        self._map = mmap.mmap(fd, slots)

    @classmethod
    def create(cls, slots: int) -> Journal:
        """Create the shared memory, in the front process, for this number of connections."""
        fd = os.memfd_create("paddlewheel-journal", os.MFD_CLOEXEC)
        os.ftruncate(fd, slots)
        return cls(fd, slots)

    def begin_answer(self, slot: int) -> None:
        """Mark a connection, because the shard now removes its request from the socket's buffer."""
        self._map[slot] = _ANSWERING

    def end_answer(self, slot: int) -> None:
        """Clear a connection's mark after its answer, when the kernel has taken the last byte."""
        self._map[slot] = _IDLE

    def is_answering(self, slot: int) -> bool:
        """Return whether a request was removed from the socket's buffer, but not answered completely."""
        return self._map[slot] == _ANSWERING
