"""The file in which a running service records request bodies, for `paddlewheel tune --record`.

The command makes an empty file that only the service's user may read, and sends SIGUSR2, which begins and
ends the recording. The service appends a line with the body of each request, and holds a lock on the file
meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import struct
import tempfile
from pathlib import Path

from pipeline.process.folders import open_to_lock

SIGNAL = signal.SIGUSR2
MAX_REQUESTS = 1000
MAX_BYTES = 16 << 20
MAX_SECONDS = 3600.0
_FLOCK = struct.Struct("hh4xqqi4x")  # of fcntl(2): type, whence, start, length, process


def get_recording_path(pid: int) -> Path:
    """Return the path of the file in which the service with this process id records requests."""
    return Path(tempfile.gettempdir(), f"paddlewheel-record-{pid}.jsonl")


def create(pid: int) -> int:
    """Create the empty recording file for the user of the service with this PID, and return its descriptor.

    Raises OSError, also if the file exists.
    """
    descriptor = os.open(get_recording_path(pid), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    owner = Path(f"/proc/{pid}").stat()
    if owner.st_uid != os.geteuid():
        os.fchown(descriptor, owner.st_uid, owner.st_gid)
    return descriptor


def open_locked(pid: int) -> int:
    """Open and lock the recording file, in the service with this PID. Returns the descriptor.

    Raises OSError if the file is missing, or if it does not belong to this user alone, because another user
    could have put it there.
    """
    with open_to_lock(get_recording_path(pid), os.O_WRONLY | os.O_APPEND) as descriptor:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_uid != os.geteuid()
            or status.st_nlink != 1
            or status.st_mode & 0o077
        ):
            raise PermissionError(f"{get_recording_path(pid)} is not a file of this user alone")
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor


def is_written(descriptor: int) -> bool:
    """Whether a service is recording to the file of this descriptor, which it then locks.

    The lock is only queried: trying to take the lock would disturb a service that starts to record.
    """
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, *_ = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
    return bool(kind != fcntl.F_UNLCK)


def takes_signal(pid: int) -> bool:
    """Whether a process handles the recording signal (SIGUSR2).

    Without a handler, the signal would kill it.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return False
    caught = next((line for line in lines if line.startswith("SigCgt:")), "SigCgt: 0")
    return bool(int(caught.split()[1], 16) >> (SIGNAL - 1) & 1)
