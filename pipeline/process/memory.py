"""Few garbage collections in a process that is ready."""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 50_000  # allocations between two collections; Python's 700 would run several a millisecond


def settle_memory() -> None:
    """Leave everything that start-up made out of later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
