"""The front's heaps, which are glibc's: what is free in them is given back to the system."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from collections.abc import AsyncIterator
from pathlib import Path

LARGE_BLOCK_BYTES = 4 << 20  # mapping afresh, a tensor of 1 MB costs the front twice as much
_M_MMAP_THRESHOLD = -3
TRIM_EVERY_S = 10.0
TRIM_OVER_BYTES = 8 << 20  # more than when the service was ready; a front grows by as much under an even load
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def give_back_large_blocks() -> None:
    """Have glibc map each large block by itself: a large body is gone once it is freed.

    Left alone, glibc raises the threshold to the largest block it saw freed (mallopt(3)) and keeps more.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


@contextlib.asynccontextmanager
async def trimmed() -> AsyncIterator[None]:
    """Inside the block glibc gives back what is free, every TRIM_EVERY_S in which the process is larger.

    By itself it shortens its heaps at their ends alone, and what thousands of gRPC's connections needed is
    free in pieces between others (malloc_trim(3), called in a thread).
    """
    trimming = asyncio.create_task(_trim(_resident_bytes() + TRIM_OVER_BYTES))
    try:
        yield
    finally:
        trimming.cancel()


async def _trim(over_bytes: int) -> None:
    while True:
        await asyncio.sleep(TRIM_EVERY_S)
        if _resident_bytes() > over_bytes:
            with contextlib.suppress(RuntimeError):  # no new thread to be had: in a while, perhaps
                await asyncio.to_thread(ctypes.CDLL(None).malloc_trim, 0)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
