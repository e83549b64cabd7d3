"""Deadlines: settles requests whose time is over, ten milliseconds at a time."""

from __future__ import annotations

import asyncio
import time

from pipeline.errors import DeadlineExceeded
from pipeline.server.walk import Walk

TICKS_PER_S = 100  # a timer per request would cost more than looking at one bucket a tick


class Deadlines:
    """A wheel of buckets, one a tick. A request that is answered leaves its bucket at once."""

    def __init__(self) -> None:
        self._buckets: dict[int, set[Walk]] = {}
        self._next_tick = 0

    async def run(self) -> None:
        """Turn the wheel until cancelled."""
        self._next_tick = _tick(time.monotonic())
        while True:
            await asyncio.sleep(1 / TICKS_PER_S)
            self.expire(time.monotonic())

    def add(self, walk: Walk, deadline: float) -> int:
        """Watch a walk; returns the key for `discard`. A deadline in the past is due at the next tick."""
        key = max(_tick(deadline) + 1, self._next_tick)
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = set()
        bucket.add(walk)
        return key

    def discard(self, walk: Walk, key: int) -> None:
        """Stop watching."""
        bucket = self._buckets.get(key)
        if bucket is not None:
            bucket.discard(walk)
            if not bucket:
                del self._buckets[key]

    def expire(self, now: float) -> None:
        """Settle everything whose tick has come."""
        current = _tick(now)
        if current - self._next_tick > len(self._buckets):
            due = [key for key in self._buckets if key <= current]
        else:
            due = [key for key in range(self._next_tick, current + 1) if key in self._buckets]
        self._next_tick = current + 1
        for key in due:
            for walk in self._buckets.pop(key):
                walk.fail(DeadlineExceeded("the request's deadline passed before its answer was there"))


def _tick(moment: float) -> int:
    return int(moment * TICKS_PER_S)
