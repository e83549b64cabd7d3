"""Background maintenance of an Op's workers: probes of idle ones, and replacement of large or hung ones."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator

from pipeline.config.config_file import OpConfig
from pipeline.errors import StartFailed
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.pool.worker_process import Instance, WorkerProcess
from pipeline.process.isolation import log_fault, run_isolated

log = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5
PROBE_LIMIT_S = 10.0  # time limit of a probe without a `run_timeout`
PAUSE_AFTER_FAILURE_S = 60.0
_MB = 1e6


class Upkeep:
    """Background checks of an Op's workers: probes idle workers, and replaces workers that exceed a limit.

    A probe is a run of the model. The limits are `max_requests_per_worker` and `max_worker_rss`.
    """

    def __init__(self, pool: WorkerPool, config: OpConfig) -> None:
        self._pool = pool
        self._probe_interval_s = config.probe_interval
        self._probe_limit_s = config.run_timeout or PROBE_LIMIT_S
        self._max_requests = config.max_requests_per_worker
        self._max_mb = config.max_worker_rss
        self._too_large: set[str] = set()  # workers with a warning about `max_worker_rss`

    @contextlib.asynccontextmanager
    async def check_in_background(self) -> AsyncIterator[None]:
        """Context manager: run the checks in the background until the block ends."""
        chores = []
        if self._probe_interval_s:
            chores.append(asyncio.create_task(self._probe()))
        if self._max_requests or self._max_mb:
            chores.append(asyncio.create_task(self._recycle()))
        try:
            yield
        finally:
            for chore in chores:
                chore.cancel()
            await asyncio.gather(*chores, return_exceptions=True)

    async def _probe(self) -> None:
        """Probe idle worker instances with a run of the model every `probe_interval`, forever."""
        while True:
            await asyncio.sleep(min(CHECK_EVERY_S, self._probe_interval_s))
            now = time.monotonic()
            for instance in self._pool.instances:
                run_isolated(self._probe_instance, instance, now)

    def _probe_instance(self, instance: Instance, now: float) -> None:
        """Send a probe to an idle instance, or kill its process if a sent probe is over its time limit."""
        if not instance.probed_at:
            if self._is_due(instance, now):
                instance.probe()
        elif now - instance.probed_at > self._probe_limit_s:
            instance.process.kill(f"idle, it did not answer a probe in {self._probe_limit_s:g} s")

    def _is_due(self, instance: Instance, now: float) -> bool:
        """Return whether a worker instance has been idle for the probe interval.

        now: instant of time.monotonic().
        """
        idle_since = max(instance.idle_since, instance.process.ready_at)
        return instance.has_place and not instance.in_flight and now - idle_since >= self._probe_interval_s

    async def _recycle(self) -> None:
        """Replace processes over their limits, one at a time, forever."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for process in list(self._pool.processes):
                try:
                    await self._exchange_worn(process)
                except StartFailed as exc:
                    log.error("Worker %s goes on: %s", process.name, exc.message)
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)
                except Exception:
                    log_fault(self._exchange_worn)

    async def _exchange_worn(self, process: WorkerProcess) -> None:
        if why := self._worn_out(process):
            log.info("Worker %s is exchanged: %s", process.name, why)
            await self._pool.replace(process)

    def _worn_out(self, process: WorkerProcess) -> str:
        """Return the limit that a process exceeds, as text for the log; empty if it exceeds none."""
        if not process.ready_at:
            return ""
        if self._max_requests and process.served >= self._max_requests:
            return f"it has answered {process.served} requests (max_requests_per_worker {self._max_requests})"
        if not self._max_mb:
            return ""
        resident_mb = process.resident_bytes / _MB
        if resident_mb <= self._max_mb:
            return ""
        if process.ready_bytes / _MB > self._max_mb:
            self._warn_of_limit(process)
            return ""
        return f"it has {resident_mb:.0f} MB (max_worker_rss {self._max_mb})"

    def _warn_of_limit(self, process: WorkerProcess) -> None:
        """Warn, once for each worker, that `max_worker_rss` is below the memory of a fresh process."""
        if process.name not in self._too_large:
            self._too_large.add(process.name)
            log.warning(
                "Worker %s has %.0f MB before its first request, more than max_worker_rss %d: the limit is "
                "not applied; raise it",
                process.name, process.ready_bytes / _MB, self._max_mb,
            )  # fmt: skip


PAUSE_S = 1.0  # between the first two replacements; doubled with each further one
MAX_PAUSE_S = 60.0  # after this time without a replacement the pause starts at PAUSE_S again


class AbandonedCalls:
    """Replaces the workers of one Op that are busy with a hung or too slow model run, one at a time.

    A run is too slow if it exceeds `op.<name>.timeout`: no request waits for it any more. The new worker
    starts while the old worker still runs, so there is one more process than usual. If the run ends before
    the new worker is ready, the old worker stays. Otherwise the new worker takes over, and the old worker
    ends after its run. If an Op exceeds its timeout repeatedly, the intervals between replacements grow, and
    requests wait for the runs. A worker that hangs is replaced immediately, because a run counts as hung only
    after seconds.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._pause_s = 0.0
        self._replaced_at = 0.0

    @contextlib.asynccontextmanager
    async def replace_in_background(self) -> AsyncIterator[None]:
        """Context manager: replaces workers with abandoned runs in the background until the block ends."""
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
        """Replace a process, unless its abandoned model runs end before the new process is ready."""
        calls_end = asyncio.ensure_future(process.abandoned_calls_end())
        try:
            await asyncio.wait({calls_end}, timeout=0.0 if process.hangs else self._until_next_s())
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
        """Return the seconds until the next replacement may begin."""
        return max(0.0, self._replaced_at + self._pause_s - time.monotonic())

    def _note_replacement(self) -> None:
        now = time.monotonic()
        again = self._pause_s and now - self._replaced_at < self._pause_s + MAX_PAUSE_S
        self._pause_s = min(MAX_PAUSE_S, 2 * self._pause_s) if again else PAUSE_S
        self._replaced_at = now
