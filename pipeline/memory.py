"""Memory of a process that is ready: few garbage collections, and large blocks given back to the system."""

from __future__ import annotations

import ctypes
import gc

YOUNG_OBJECTS = 50_000  # allocations between two collections; Python's 700 would run several a millisecond


LARGE_BLOCK_BYTES = 4 << 20  # mapping afresh, a tensor of 1 MB costs the front twice as much
_M_MMAP_THRESHOLD = -3


def give_back_large_blocks() -> None:
    """Have glibc map each large block by itself: a large body is gone once it is freed.

    Left alone, glibc raises the threshold to the largest block it saw freed (mallopt(3)) and keeps more.
    """
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, LARGE_BLOCK_BYTES)


def settle_memory() -> None:
    """Leave everything that start-up made out of later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
