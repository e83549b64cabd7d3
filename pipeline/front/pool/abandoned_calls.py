"""AbandonedCalls: new workers in place of those that are busy with a call nobody waits for any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from pipeline.errors import StartFailed
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.pool.worker_process import WorkerProcess
from pipeline.process.isolation import log_fault

log = logging.getLogger(__name__)

PAUSE_S = 1.0  # between the first two replacements; doubled with each further one
MAX_PAUSE_S = 60.0  # and after so long without one it begins anew


class AbandonedCalls:
    """Replaces the workers of one Op whose call is over `op.<name>.timeout` or hangs, one at a time.

    Whoever is free first goes on: where the call ends before the new worker is ready, its worker takes
    requests again and the new one is not needed; otherwise the new one serves, and the old one leaves when
    its call has ended. So there is one process more than usual at most. Where an Op times out again and
    again, its workers are replaced at growing intervals; between them requests wait for the calls to end.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._pause_s = 0.0
        self._replaced_at = 0.0

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Goes on until the block is left."""
        chore = asyncio.create_task(self._replace_all())
        try:
            yield
        finally:
            chore.cancel()
            await asyncio.gather(chore, return_exceptions=True)

    async def _replace_all(self) -> None:
        while True:
            await self._pool.abandoned.wait()
            self._pool.abandoned.clear()
            while busy := [process for process in self._pool.processes if process.abandoned]:
                await self._replace(busy[0])

    async def _replace(self, process: WorkerProcess) -> None:
        calls_end = asyncio.ensure_future(process.abandoned_calls_end())
        try:
            await asyncio.wait({calls_end}, timeout=self._until_next_s())
            if calls_end.done():
                return
            self._note_replacement()
            log.info("Worker %s is replaced: a call in it is over its Op's timeout, or hangs", process.name)
            if not await self._pool.replace(process, unless=calls_end):
                log.info("Worker %s goes on: its call has ended before another was ready", process.name)
        except StartFailed as exc:
            log.error("Worker %s can't be replaced yet: %s", process.name, exc.message)
        except Exception:
            log_fault(self._replace)
        finally:
            calls_end.cancel()

    def _until_next_s(self) -> float:
        return max(0.0, self._replaced_at + self._pause_s - time.monotonic())

    def _note_replacement(self) -> None:
        now = time.monotonic()
        again = self._pause_s and now - self._replaced_at < self._pause_s + MAX_PAUSE_S
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s) if again else PAUSE_S
        self._replaced_at = now
