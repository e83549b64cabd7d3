"""AwaitedEnds: the requests that must have ended before their Op may be unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from pipeline.front.scheduler.dag_run import DagRun, Entry


class AwaitedEnds:
    """The requests of some models that began before an instant (time.monotonic)."""

    def __init__(self, began_before: float, entries: Iterable[Entry]) -> None:
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._began_before = began_before
        self._entries = set(entries)
        self._open = sum(entry.pending for entry in self._entries)  # requests that have not ended yet

    def record(self, dag_run: DagRun) -> None:
        """Count a request that has ended."""
        if dag_run.began < self._began_before and dag_run.entry in self._entries:
            self._open -= 1
            if self._open == 0 and not self._over.done():
                self._over.set_result(None)

    async def over(self, timeout_s: float) -> None:
        """Return when all have ended, or after `timeout_s`."""
        if self._open:
            await asyncio.wait({self._over}, timeout=timeout_s)
