"""Deadlines: tells requests that their time is over, to ten milliseconds."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

TICKS_PER_S = 100  # a timer for each request would cost more than a place in a bucket


class Perishable(Protocol):
    """What has a deadline."""

    def expire(self) -> None: ...


class Deadlines:
    """A bucket of what expires with each tick, and one timer, for the earliest.

    A request that is answered leaves its bucket: while all are answered in time, the timer fires about once a
    `request_timeout`.
    """

    def __init__(self) -> None:
        self._buckets: dict[int, set[Perishable]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_key = 0

    def add(self, watched: Perishable, deadline: float) -> int:
        """Watch it until `deadline` (time.monotonic); returns the key for `discard`."""
        key = int(deadline * TICKS_PER_S) + 1
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = set()
            if self._timer is None or key < self._timer_key:
                self._arm(key)
        bucket.add(watched)
        return key

    def discard(self, watched: Perishable, key: int) -> None:
        """Stop watching."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.discard(watched)
            if not bucket:
                del self._buckets[key]

    def stop(self) -> None:
        """Leave what is watched to its fate."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, key: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_key = key
        wait_s = max(0.0, key / TICKS_PER_S - time.monotonic())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._expire)

    def _expire(self) -> None:
        self._timer = None
        current = int(time.monotonic() * TICKS_PER_S)
        for key in [key for key in self._buckets if key <= current]:
            for watched in self._buckets.pop(key):
                watched.expire()
        if self._buckets:
            self._arm(min(self._buckets))
