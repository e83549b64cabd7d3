"""Crew: the instances of one Op, replaced when they die."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from pipeline.app import App
from pipeline.errors import StartFailed
from pipeline.server.instances import Events, Instance, State

log = logging.getLogger(__name__)

FAILED_STARTS_ALLOWED = 3
STABLE_AFTER_S = 10.0  # an instance that lived this long starts the back-off anew
BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0


class Crew:
    """Keeps `concurrency` instances of an Op alive.

    on_fatal: called with the reason when starts keep failing; the service must end then.
    """

    def __init__(self, app: App, op: str, events: Events) -> None:
        self.op = op
        self.instances: list[Instance] = []
        self.on_fatal: Callable[[StartFailed], None] = lambda reason: None
        self.on_ready: Callable[[], None] = lambda: None
        self.restarts = 0
        self._app = app
        self._events = events
        self._size = instances_of(app, op)
        self._failed_starts = 0
        self._quick_deaths = 0
        self._was_ready = False
        self._stopping = False
        self._all_gone = asyncio.Event()

    def start(self) -> None:
        """Spawn all instances; they become ready on their own."""
        for number in range(self._size):
            self._spawn(number)

    @property
    def ready(self) -> int:
        """Instances that can take requests."""
        return sum(instance.state is State.READY for instance in self.instances)

    @property
    def size(self) -> int:
        return self._size

    async def stop(self, grace_s: float) -> None:
        """Have every instance finish its hand-over and leave; kill what has not left in `grace_s`."""
        self._stopping = True
        for instance in self.instances:
            if instance.state is State.STARTING:
                instance.kill("the service stops")
            else:
                instance.stop()
        if not self.instances:
            return
        try:
            await asyncio.wait_for(self._all_gone.wait(), grace_s)
        except TimeoutError:
            for instance in self.instances:
                instance.kill("it did not leave when the service stopped")
            await self._all_gone.wait()

    def became_ready(self, instance: Instance) -> None:
        self._failed_starts = 0
        self._was_ready = True
        log.info("Op %s: instance %d is ready (pid %d)", self.op, instance.number, instance.pid)
        self.on_ready()

    def died(self, instance: Instance) -> None:
        """Forget the instance and plan its successor."""
        self.instances.remove(instance)
        if self._stopping:
            if not self.instances:
                self._all_gone.set()
            return
        why = instance.describe_death()
        if instance.ready_at:
            told = f"\n{instance.failure[0]}" if instance.failure else ""
            log.error(
                "Op %s: instance %d (pid %d) died: %s%s", self.op, instance.number, instance.pid, why, told
            )
        elif not self._may_try_again(instance, why):
            return
        self.restarts += 1
        asyncio.get_running_loop().call_later(self._back_off(instance), self._spawn, instance.number)

    def _may_try_again(self, instance: Instance, why: str) -> bool:
        self._failed_starts += 1
        reason, final = instance.failure or (why, False)
        log.error("Op %s: instance %d did not start: %s", self.op, instance.number, reason)
        # What raises on the very first start raises on every one; later a reason may pass (a full disk, say).
        hopeless = final or (instance.failure is not None and not self._was_ready)
        if hopeless or self._failed_starts >= FAILED_STARTS_ALLOWED:
            self.on_fatal(StartFailed(f"Op {self.op} can't be started: {reason}"))
            return False
        return True

    def _back_off(self, instance: Instance) -> float:
        """Seconds to wait: none for the first death in a while, then twice as long each time."""
        if instance.ready_at and time.monotonic() - instance.ready_at > STABLE_AFTER_S:
            self._quick_deaths = 0
            return 0.0
        self._quick_deaths += 1
        return min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (self._quick_deaths - 1))

    def _spawn(self, number: int) -> None:
        if self._stopping:
            return
        instance = Instance(self._app, self.op, number, self._events)
        try:
            instance.start()
        except OSError as exc:
            log.error("Op %s: instance %d can't be spawned: %s", self.op, number, exc)
            asyncio.get_running_loop().call_later(MAX_BACKOFF_S, self._spawn, number)
            return
        self.instances.append(instance)


def instances_of(app: App, op: str) -> int:
    """How many workers an Op gets: with build_dag_each_worker, `concurrency` for each of `worker_num`."""
    config = app.config
    return config.op[op].concurrency * (config.worker_num if config.build_dag_each_worker else 1)
