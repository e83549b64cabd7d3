"""The lifeline: a connection to the front that breaks as soon as this process dies.

A pidfd tells of the end, and files close, once the kernel has taken the memory back; until then nobody would
do this process' work. A thread with a table of files of its own closes them as it dies, and mostly that is at
once, for the memory goes with the last thread.
"""

from __future__ import annotations

import ctypes
import os
import threading
from concurrent.futures import Future

_CLOSE_RANGE_UNSHARE = 2
_LAST_FD = 2**32 - 1


def hold_lifeline(fd: int) -> None:
    """Leave the descriptor to a thread, and to nobody else: neither this one nor what a hook forks.

    All have it where the system can't do that; the front then learns of the death by its pidfd.
    """
    unshared: Future[bool] = Future()
    threading.Thread(target=_hold, args=(fd, unshared), name="lifeline", daemon=True).start()
    if unshared.result():
        os.close(fd)


def _hold(fd: int, unshared: Future[bool]) -> None:
    # In glibc since 2.34. Not unshare(2), which containers are usually not allowed.
    close_range = getattr(ctypes.CDLL(None), "close_range", None)
    last = ctypes.c_uint(_LAST_FD)
    unshared.set_result(close_range is not None and close_range(fd + 1, last, _CLOSE_RANGE_UNSHARE) == 0)
    threading.Event().wait()
