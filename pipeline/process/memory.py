"""Memory of a process that is ready: few garbage collections, and free memory for the system."""

from __future__ import annotations

import ctypes
import gc

YOUNG_OBJECTS = 50_000  # allocations between two collections; Python's 700 would run several a millisecond


def settle_memory() -> None:
    """Leave everything that start-up made out of later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)


def trim_heap() -> None:
    """Return the free pages of glibc's heaps to the system (malloc_trim(3)).

    By itself glibc shortens its heaps at their ends alone.
    """
    ctypes.CDLL(None).malloc_trim(0)


def release_memory() -> None:
    """Free reference cycles, such as the traceback of a refused request, and trim the heap."""
    gc.collect()
    trim_heap()
