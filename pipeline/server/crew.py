"""Crew: the processes with the instances of one Op, replaced when they die."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Sequence

from pipeline.app import App
from pipeline.errors import StartFailed
from pipeline.server.instances import Events, Instance, State
from pipeline.server.placement import placement
from pipeline.server.worker_process import WorkerProcess
from pipeline.tensor_spec import Signature

log = logging.getLogger(__name__)

FAILED_STARTS_ALLOWED = 3
STABLE_AFTER_S = 10.0  # a process that lived this long starts the back-off anew
BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0


class Crew:
    """Keeps `concurrency` instances of an Op alive.

    instances: those of all processes, in the order in which work is offered to them.
    signature: what the Op's model is fed and fetched; None until one is ready, and for an Op without a model.
    on_fatal: called with the reason when starts keep failing; the service must end then.
    """

    def __init__(self, app: App, op: str, events: Events) -> None:
        self.op = op
        self.processes: list[WorkerProcess] = []
        self.instances: list[Instance] = []
        self.on_fatal: Callable[[StartFailed], None] = lambda reason: None
        self.on_ready: Callable[[], None] = lambda: None
        self.restarts = 0
        self.signature: Signature | None = None
        self._app = app
        self._events = events
        self._placement = placement(app, op)
        self._failed_starts = 0
        self._quick_deaths = 0
        self._was_ready = False
        self._stopping = False
        self._all_gone = asyncio.Event()

    def start(self) -> None:
        """Spawn all instances; they become ready on their own."""
        for numbers in self._placement:
            self._spawn(numbers)

    @property
    def ready(self) -> int:
        """Instances that can take requests."""
        return sum(instance.state is State.READY for instance in self.instances)

    @property
    def size(self) -> int:
        """Instances that there shall be."""
        return sum(map(len, self._placement))

    async def stop(self, grace_s: float) -> None:
        """Have every instance finish its hand-over and leave; kill what has not left in `grace_s`."""
        self._stopping = True
        for process in self.processes:
            if process.ready_at:
                process.stop()
            else:
                process.kill("the service stops")
        if not self.processes:
            return
        try:
            await asyncio.wait_for(self._all_gone.wait(), grace_s)
        except TimeoutError:
            for process in self.processes:
                process.kill("it did not leave when the service stopped")
            await self._all_gone.wait()

    def became_ready(self, process: WorkerProcess) -> None:
        self.signature = process.signature
        self._failed_starts = 0
        self._was_ready = True
        log.info("Worker %s is ready (pid %d)", process.name, process.pid)
        self.on_ready()

    def died(self, process: WorkerProcess) -> None:
        """Forget the process and plan its successor."""
        self.processes.remove(process)
        self._order_instances()
        if self._stopping:
            if not self.processes:
                self._all_gone.set()
            return
        why = process.describe_death()
        if process.ready_at:
            told = f"\n{process.failure[0]}" if process.failure else ""
            log.error("Worker %s (pid %d) died: %s%s", process.name, process.pid, why, told)
        elif not self._may_try_again(process, why):
            return
        self.restarts += 1
        asyncio.get_running_loop().call_later(self._back_off(process), self._spawn, process.numbers)

    def _may_try_again(self, process: WorkerProcess, why: str) -> bool:
        self._failed_starts += 1
        reason, final = process.failure or (why, False)
        log.error("Worker %s did not start: %s", process.name, reason)
        # What raises on the very first start raises on every one; later a reason may pass (a full disk, say).
        hopeless = final or (process.failure is not None and not self._was_ready)
        if hopeless or self._failed_starts >= FAILED_STARTS_ALLOWED:
            self.on_fatal(StartFailed(f"Op {self.op} can't be started: {reason}"))
            return False
        return True

    def _back_off(self, process: WorkerProcess) -> float:
        """Seconds to wait: none for the first death in a while, then twice as long each time."""
        if process.ready_at and time.monotonic() - process.ready_at > STABLE_AFTER_S:
            self._quick_deaths = 0
            return 0.0
        self._quick_deaths += 1
        return min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (self._quick_deaths - 1))

    def _spawn(self, numbers: Sequence[int]) -> None:
        if self._stopping:
            return
        process = WorkerProcess(self._app, self.op, numbers, self._events)
        try:
            process.start()
        except OSError as exc:
            log.error("Worker %s can't be spawned: %s", process.name, exc)
            asyncio.get_running_loop().call_later(MAX_BACKOFF_S, self._spawn, numbers)
            return
        self.processes.append(process)
        self._order_instances()

    def _order_instances(self) -> None:
        """The first instance of each process, then the second of each: threads of one share its GIL."""
        rounds = itertools.zip_longest(*(process.instances for process in self.processes))
        self.instances = [instance for some in rounds for instance in some if instance is not None]
