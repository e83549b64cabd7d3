"""Scales an Op between `concurrency` and `max_concurrency` instances, by the time that requests wait."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable

from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.process.isolation import log_fault

log = logging.getLogger(__name__)

CHECK_EVERY_S = 0.25
GROW_AFTER_S = 1.0  # a burst that the present instances answer sooner starts no process
SHRINK_AFTER_S = 60.0  # a process may take this long to start again


class ScaleRule:
    """Autoscaling rule: decides when an Op gets another worker process, and when its last process may end."""

    def __init__(self, max_wait_s: float, now: float) -> None:
        """Create the rule. max_wait_s: expected queue wait above which the Op needs more instances.

        now: instant of time.monotonic().
        """
        self._max_wait_s = max_wait_s
        self._waits_since = now
        self._needed_at = now

    def grows(self, wait_s: float, now: float) -> bool:
        """Return whether the expected wait has been too long for `GROW_AFTER_S`. Must be called regularly.

        wait_s: expected wait of a new request.
        """
        if wait_s <= self._max_wait_s:
            self._waits_since = now
        return now - self._waits_since >= GROW_AFTER_S

    def shrinks(self, wait_s: float, busy: int, remaining: int, now: float) -> bool:
        """Return whether fewer instances have been enough for `SHRINK_AFTER_S`. Must be called regularly.

        busy: number of instances with work. remaining: number of instances without those of the last process.
        """
        if wait_s > self._max_wait_s or busy > remaining:
            self._needed_at = now
        return now - self._needed_at >= SHRINK_AFTER_S

    def note_change(self, now: float) -> None:
        """Restart both measurements, because the number of instances has changed."""
        self._waits_since = self._needed_at = now


class Scaling:
    """Starts and ends worker processes of an Op in the background."""

    def __init__(
        self, pool: WorkerPool, max_instances: int, max_wait_s: float, get_wait_s: Callable[[], float]
    ) -> None:
        """Store the limits. get_wait_s: returns the expected queue wait of a new request in seconds."""
        self._pool = pool
        self._min = pool.size
        self._max = max_instances
        self._get_wait_s = get_wait_s
        self._rule = ScaleRule(max_wait_s, time.monotonic())

    @contextlib.asynccontextmanager
    async def scale_in_background(self) -> AsyncIterator[None]:
        """Context manager: scale the Op in the background until the block ends."""
        chore = asyncio.create_task(self._scale())
        try:
            yield
        finally:
            chore.cancel()
            await asyncio.gather(chore, return_exceptions=True)

    async def _scale(self) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                await self._scale_once()
            except Exception:
                log_fault(self._scale_once)

    async def _scale_once(self) -> None:
        pool, rule, now, wait_s = self._pool, self._rule, time.monotonic(), self._get_wait_s()
        if not pool.size:  # unloaded
            return
        step = len(pool.plan.places[-1])
        busy = sum(bool(instance.in_flight) for instance in pool.instances)
        grows = rule.grows(wait_s, now)
        shrinks = rule.shrinks(wait_s, busy, pool.size - step, now)
        if grows and pool.size + step <= self._max and pool.ready == pool.size:
            log.info(
                "Op %s: requests wait %.2f s; %d instances from now on", pool.op, wait_s, pool.size + step
            )
            pool.grow()
            rule.note_change(now)
        elif shrinks and pool.size - step >= self._min:
            log.info("Op %s: %d instances are enough", pool.op, pool.size - step)
            await pool.shrink()
            rule.note_change(time.monotonic())
