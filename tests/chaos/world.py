"""The service under chaos: whether it is meant to be there, and what it did that it must not."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from statistics import median

from bench.load import CannotMeasure
from bench.processes import resident_mb
from tests.support.service_process import ServiceProcess, is_running

START_S = 120.0
SAMPLES = 50
_POLL_S = 0.05


class World:
    """`service` while load and faults come; `served` is an async context for the time that it is served.

    away: whether calls may find nobody: from SIGTERM until the next service is ready. restarts: so far.
    broken: what the service itself did that it must not. lost_connections: those of dead shards, closed
    within an answer.
    """

    def __init__(self, service: ServiceProcess) -> None:
        self.service = service
        self.http_port, self.rpc_port = service.http_port, service.rpc_port
        self.folder = service.config_path.parent
        self.away = False
        self.restarts = 0
        self.broken: list[str] = []
        self.lost_connections = 0

    @contextlib.asynccontextmanager
    async def served(self) -> AsyncIterator[None]:
        """Ready on entry; on exit stopped, which has to end well. Raises CannotMeasure."""
        await self.until_ready()
        self._count = len(self.workers())
        yield
        await self._stop()

    def workers(self) -> list[int]:
        return self.service.worker_pids()

    async def resident(self) -> dict[str, float]:
        """MB by process: the median over a second, for a large batch has its memory only while it runs."""
        samples: dict[str, list[float]] = {}
        for _ in range(SAMPLES):
            for name, mb in self._resident().items():
                samples.setdefault(name, []).append(mb)
            await asyncio.sleep(1 / SAMPLES)
        return {name: median(values) for name, values in samples.items()}

    def _resident(self) -> dict[str, float]:
        workers = {f"worker {number}": resident_mb(pid) for number, pid in enumerate(self.workers())}
        return {"front": resident_mb(self.service.process.pid), **workers}

    async def until_ready(self) -> None:
        """Return when every instance is ready. Raises CannotMeasure when it takes too long."""
        try:
            await asyncio.to_thread(self.service.wait_until_ready, START_S, every_instance=True)
        except AssertionError as exc:
            raise CannotMeasure(str(exc)[-4000:]) from None

    async def until_replaced(self, worker: int) -> None:
        """Return when the worker is gone and all instances are ready again.

        A killed worker may be gone before its front knows; readiness alone would tell of the time before.
        """
        until = time.monotonic() + START_S
        while worker in (workers := self.workers()) or len(workers) < self._count:
            if time.monotonic() > until:
                self.broken.append(f"worker {worker} hung for {START_S:g} s and was not replaced")
                return
            await asyncio.sleep(_POLL_S)
        await self.until_ready()

    async def restart(self) -> None:
        """SIGTERM; when it has ended as it should, the same service again."""
        self.away = True
        self.restarts += 1
        await self._stop()
        self.service.start()
        await self.until_ready()
        await asyncio.sleep(0.5)  # channels reconnect
        self.away = False

    async def reload(self) -> None:
        """Have the model loaded anew; return when all workers are new ones."""
        path = "/v2/repository/models/bert/load"
        answer = await asyncio.to_thread(self.service.http, path, b"", timeout_s=START_S)
        if answer.body:
            self.broken.append(f"the model was not loaded anew: {answer.body[:200]!r}")
        await self.until_ready()

    async def until_idle(self) -> None:
        """Return when no request is pending; notes those that stay."""
        until = time.monotonic() + START_S
        while (pending := await asyncio.to_thread(self.service.metric, "paddlewheel_pending_requests")) > 0:
            if time.monotonic() > until:
                self.broken.append(f"{pending:g} requests are still pending, of which nobody waits for one")
                return
            await asyncio.sleep(_POLL_S)

    async def retried(self) -> int:
        """Requests that were tried again because their worker had died, since the service's start."""
        return int(await asyncio.to_thread(self.service.metric, "paddlewheel_op_retried_total"))

    async def _stop(self) -> None:
        workers = self.workers()
        lost = "paddlewheel_shard_lost_connections_total"
        self.lost_connections += int(await asyncio.to_thread(self.service.metric, lost))
        self.service.terminate()
        try:
            code = await asyncio.to_thread(self.service.exit_code, START_S)
        except AssertionError:
            self.broken.append(f"the service did not end in {START_S:g} s after SIGTERM")
            return
        if code:
            self.broken.append(f"the service left with {code} after SIGTERM")
        left = [pid for pid in workers if is_running(pid)]
        if left:
            self.broken.append(f"workers outlived their service: {left}")
