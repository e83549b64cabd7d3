"""Repository: loads and unloads Ops while the service runs. A slow order delays no order for another Op."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from pipeline.errors import ConfigError, NotReady, ServingError, StartFailed
from pipeline.front.pool.plan import Plan, plan
from pipeline.front.pool.worker_pool import WorkerPool
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.process.helper_process import cancel_helpers

log = logging.getLogger(__name__)

Result = TypeVar("Result")


class LoadFailed(StartFailed):
    """An Op could not be loaded. version: that was to be served, empty where none was found."""

    def __init__(self, op: str, version: str, reason: str) -> None:
        super().__init__(reason)
        self.op = op
        self.version = version


class Standing(NamedTuple):
    """State of a model in the repository's index."""

    state: str  # READY, LOADING, UNLOADING or UNAVAILABLE
    reason: str = ""  # of UNAVAILABLE


class Repository:
    """failures: why the last load of an Op failed, by Op."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.failures: dict[str, LoadFailed] = {}
        self._scheduler = scheduler
        self._changing = asyncio.Lock()  # so that there is one process more than usual, not one for each Op
        self._busy: set[str] = set()  # what an order is about that waits for something without the lock
        self._order_ended = asyncio.Condition(self._changing)
        self._stopped = asyncio.Event()
        self._standings: dict[str, Standing] = {}  # of Ops that are unloaded, or on the way there or back

    def names(self) -> list[str]:
        """Return the models that may be loaded besides the served ones: none for a script."""
        return []

    def standing(self, op: str) -> Standing:
        standing = self._standings.get(op)
        if standing is not None:
            return standing
        if self._scheduler.op_ready(op):
            return Standing("READY")
        failure = self._scheduler.start_failures.get(op)
        if failure is not None:
            return Standing("UNAVAILABLE", failure)
        return Standing("UNAVAILABLE", "no worker is ready")

    async def load(self, ops: Sequence[str]) -> None:
        """Serve what is on disk now, Op by Op. Raises NotReady, and LoadFailed: the Op is as before then."""
        async with self._changing:
            self._scheduler.check_settled()
            for op in ops:
                await self._wait_until_idle({op})
                await self._load(op)

    async def unload(self, ops: Sequence[str]) -> None:
        """Refuse further requests, answer those that were admitted, and end the workers. Raises NotReady."""
        async with self._changing:
            self._scheduler.check_settled()
            await self._wait_until_idle(set(ops))
            await self._unload(ops, set(ops))

    async def reload_changed(self) -> None:
        """Load anew what has other files than when it was loaded, and tell the log. Raises NotReady."""
        async with self._changing:
            self._scheduler.check_settled()
            changed = [op for op, pool in self._scheduler.pools.items() if await self._has_changed(op, pool)]
            for op in changed:
                try:
                    await self._load(op)
                except LoadFailed as exc:
                    log.error("Op %s goes on with the workers it had: %s", op, exc.message)
            if not changed:
                log.info("Nothing to load anew: neither the models' files nor the scripts have changed")

    async def _has_changed(self, op: str, pool: WorkerPool) -> bool:
        if op in self._standings:
            return False
        try:
            return (await self._plan(op)).files != pool.plan.files
        except ServingError:
            return True  # loading it tells what is wrong

    def stop(self) -> None:
        """Fail the loads that are under way: the service stops."""
        cancel_helpers()
        self._stopped.set()

    async def _unless_stopped(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Await what may take long, and cancel it when the service stops. Raises NotReady then."""
        tasks = asyncio.create_task(work), asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                return tasks[0].result()
            raise NotReady("the service is stopping")
        finally:
            for task in tasks:
                task.cancel()

    @contextlib.asynccontextmanager
    async def _others_go_on(self, names: Collection[str]) -> AsyncIterator[None]:
        """Give the lock to other orders. Those about these names wait for the end of the block."""
        self._busy.update(names)
        self._changing.release()
        try:
            yield
        finally:
            try:
                await self._take_lock_back()
            finally:
                self._busy.difference_update(names)
                self._order_ended.notify_all()

    async def _take_lock_back(self) -> None:
        """Acquire the lock even when the order is cancelled, for the order's block releases the lock."""
        acquired = asyncio.ensure_future(self._changing.acquire())
        cancelled: asyncio.CancelledError | None = None
        while not acquired.done():
            try:
                await asyncio.shield(acquired)
            except asyncio.CancelledError as exc:
                cancelled = exc
        if cancelled is not None:
            raise cancelled

    async def _wait_until_idle(self, names: Collection[str]) -> bool:
        """Wait until no other order is about these names. Returns whether one was. Raises NotReady."""
        if self._busy.isdisjoint(names):
            return False
        await self._order_ended.wait_for(lambda: self._busy.isdisjoint(names))
        self._scheduler.check_settled()
        return True

    async def _unload(self, ops: Sequence[str], names: Collection[str]) -> None:
        """Unload Ops; orders about other names go on meanwhile."""
        pools = self._scheduler.pools
        loaded = [op for op in ops if op in pools and op not in self._standings]
        if not loaded:
            return
        self._standings |= dict.fromkeys(loaded, Standing("UNLOADING"))
        for op in loaded:
            self.failures.pop(op, None)
        async with self._others_go_on(names):
            await self._scheduler.withdraw(loaded, self._scheduler.app.config.dag.drain_timeout)
            await asyncio.gather(*(pools[op].unload() for op in loaded))
        self._standings |= dict.fromkeys(loaded, Standing("UNAVAILABLE", "unloaded"))
        log.info("Unloaded: %s", ", ".join(loaded))

    async def _load(self, op: str) -> None:
        before = self._standings.get(op)
        if before is not None:
            self._standings[op] = Standing("LOADING")
        try:
            new = await self._plan(op)
            try:
                await self._unless_stopped(self._scheduler.pools[op].reload(new))
            except StartFailed as exc:
                raise LoadFailed(op, new.version, exc.message) from exc
        except LoadFailed as exc:
            self.failures[op] = exc
            if before is not None:
                self._standings[op] = Standing("UNAVAILABLE", exc.message)
            raise
        except BaseException:
            if before is not None:
                self._standings[op] = before
            raise
        self.failures.pop(op, None)
        self._standings.pop(op, None)
        self._scheduler.offer(op)
        log.info("Op %s runs what is on disk now%s", op, f", version {new.version}" if new.version else "")
        if new.note:
            log.warning("Op %s: %s", op, new.note)

    async def _plan(self, op: str) -> Plan:
        """In a thread: folders may be slow to read."""
        try:
            return await asyncio.to_thread(plan, self._scheduler.app, op)
        except (ConfigError, OSError) as exc:
            raise LoadFailed(op, "", str(exc)) from exc
