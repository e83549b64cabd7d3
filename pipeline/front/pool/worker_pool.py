"""The worker pool of an Op: starts its processes, restarts dead ones, and exchanges them on a reload."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from pipeline.api.app import ServedModel, answered_by, write_models
from pipeline.errors import StartFailed
from pipeline.front.pool.outputs import Outputs
from pipeline.front.pool.plan import Plan, plan_older
from pipeline.front.pool.worker_process import (
    DispatchCallbacks,
    Instance,
    ProcessCallbacks,
    State,
    WorkerProcess,
)
from pipeline.messages.messages import CallStopHandler, Models
from pipeline.models.tensor_spec import ModelCard, Signature
from pipeline.process.isolation import run_isolated

# A start that takes longer makes room for the next one: it may wait for something else than a core, perhaps
# for a worker that has not been started yet. `start_timeout` ends it.
HOLD_S = 10.0


class _Turn(NamedTuple):
    colleagues: Callable[[], int]
    begin: Callable[[], WorkerProcess | None]


class Starts:
    """Queue of the worker starts of a whole service: limits how many processes start at the same time.

    If all processes started at once, they would import the same frameworks on the same cores, and all would
    be ready late. The Op with the fewest processes is first, so that each Op soon has a process.
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._turns: list[_Turn] = []
        self._starting: set[WorkerProcess] = set()
        self._holding: dict[WorkerProcess, asyncio.TimerHandle] = {}
        self._ready = 0  # of those that have started since nothing waited
        self._choosing = False

    def ask(self, colleagues: Callable[[], int], begin: Callable[[], WorkerProcess | None]) -> None:
        """Queue the start of a worker process. `begin` is called when fewer than the maximum are starting.

        `begin` returns the process that it has started, or None if no process is needed any more. The caller
        must call `over` when the process is ready or dead. colleagues: returns how many usable processes the
        Op has.
        """
        self._turns.append(_Turn(colleagues, begin))
        self._choose_soon()

    def over(self, process: WorkerProcess) -> None:
        """Record that a process is ready or dead, so that the next start may begin."""
        if process not in self._starting:
            return
        self._starting.remove(process)
        self._ready += process.ready_at > 0
        self._make_room(process)
        if self._turns:
            log.info(
                "Workers: %d ready, %d starting, %d waiting for one of %d cores",
                self._ready, len(self._starting), len(self._turns), self._at_once,
            )  # fmt: skip

    def _make_room(self, process: WorkerProcess) -> None:
        """Stop counting a process as starting, after its start has ended or taken `HOLD_S`."""
        timer = self._holding.pop(process, None)
        if timer is not None:
            timer.cancel()
            self._choose_soon()

    def _choose_soon(self) -> None:
        if not self._choosing:
            self._choosing = True
            asyncio.get_running_loop().call_soon(self._choose)

    def _choose(self) -> None:
        """Begin queued starts until the limit of simultaneous starts is reached."""
        self._choosing = False
        loop = asyncio.get_running_loop()
        while self._turns and len(self._holding) < self._at_once:
            turn = min(self._turns, key=lambda waiting: waiting.colleagues())
            self._turns.remove(turn)
            process = turn.begin()
            if process is not None:
                self._starting.add(process)
                self._holding[process] = loop.call_later(HOLD_S, self._make_room, process)
        if not self._starting and not self._turns:
            self._ready = 0


FAILED_STARTS_ALLOWED = 3
STABLE_AFTER_S = 10.0  # a process that lived this long starts the back-off anew
LOOP_AFTER_DEATHS = 3  # of processes that were ready and died before their first answer
BACKOFF_S = 0.1
MAX_BACKOFF_S = 10.0


class BackOff:
    """Restart policy for the worker processes of an Op: counts deaths, and decides on pauses."""

    def __init__(self, retries: int = 0) -> None:
        """Create the policy. retries: how often to retry a failed first start, whatever the cause."""
        self._retries = retries
        self._failed_starts = 0
        self._failed_beside_others = 0  # of shards, while none was ready
        self._quick_deaths = 0
        self._fruitless_deaths = 0  # since a process has answered anything
        self.was_ready = False

    def started(self) -> None:
        """Record that a worker process has become ready, which resets the count of failed starts."""
        self._failed_starts = 0
        self.was_ready = True

    def died(self, process: WorkerProcess) -> None:
        """Record the death of a worker process that was ready, to detect crash loops."""
        self._fruitless_deaths = 0 if process.served else self._fruitless_deaths + 1

    def note_failed_start(self, process: WorkerProcess) -> bool:
        """Record that a worker process has ended before it was ready.

        Return whether further starts are useless.
        """
        self._failed_starts += 1
        if self._failed_starts <= self._retries and not self.was_ready:
            return False
        final = process.failure is not None and process.failure.final
        # What raises on the very first start raises on every one; later a reason may pass (a full disk, say).
        raises = process.failure is not None and not self.was_ready
        return final or raises or self._failed_starts >= FAILED_STARTS_ALLOWED

    def may_wait_for_others(self, process: WorkerProcess, others: int) -> bool:
        """Return whether a shard that failed to start may try again, because other shards are still starting.

        others: number of shards that are starting. The limit on tries grows with their number.
        """
        is_final = process.failure is not None and process.failure.final
        self._failed_beside_others += 1
        return not is_final and self._failed_beside_others <= FAILED_STARTS_ALLOWED * others

    def pause_s(self, process: WorkerProcess) -> float:
        """Return the seconds to wait before a restart: 0 after a long life of the process, else exponential.

        The pause does not grow after a process that has answered requests, because clients wait for its
        successor.
        """
        if process.ready_at and time.monotonic() - process.ready_at > STABLE_AFTER_S:
            self._quick_deaths = 0
            return 0.0
        if process.served:
            self._quick_deaths = 0
        self._quick_deaths += 1
        return min(MAX_BACKOFF_S, BACKOFF_S * 2.0 ** (self._quick_deaths - 1))

    def in_crash_loop(self, processes: Iterable[WorkerProcess]) -> bool:
        """Return whether worker processes repeatedly become ready and die before they answer a request.

        processes: the current processes. The loop is over once one of them has answered a request, or has
        lived for STABLE_AFTER_S.
        """
        if self._fruitless_deaths < LOOP_AFTER_DEATHS:
            return False
        stable_since = time.monotonic() - STABLE_AFTER_S
        return not any(p.served or 0 < p.ready_at < stable_since for p in processes)


log = logging.getLogger(__name__)

LEAVE_S = 5.0  # time for the end of a process after its last dispatch


class PoolServices(NamedTuple):
    """Objects and callbacks of the service that all worker pools share."""

    starts: Starts  # limits the processes that start at the same time
    outputs: Outputs  # reads descriptors 1 and 2 of the processes
    pool_ready: Callable[[], None]  # a pool has another ready process
    start_failed: Callable[[WorkerPool], None]  # a pool has given up: its starts keep failing
    create_process: Callable[..., WorkerProcess] = WorkerProcess  # with the arguments of this class
    retries: int = 0  # of a load whose first process fails to start


class WorkerPool:
    """Worker processes of one pipeline step (Op): starts, restarts and replaces them.

    The pool keeps the configured number of instances running.

    processes: the processes that serve, or will serve once they are ready.
    instances: all instances of these processes, in the order in which they get dispatches.
    plan: the model version, configuration and files that the processes use.
    signature: inputs and outputs of the Op's model; None until a worker is ready, and for an Op without a
    model.
    card: description of the model for the docs page; None until a worker is ready, and for remote models.
    given_up: whether starts kept failing, so that no process starts until the Op is loaded again.
    given_up_reason: error of the last start before the pool gave up.
    abandoned: event that is set when an instance is busy with a model run that no request waits for.
    """

    def __init__(self, op: str, plan: Plan, callbacks: DispatchCallbacks, services: PoolServices) -> None:
        self.op = op
        self.processes: list[WorkerProcess] = []
        self.instances: list[Instance] = []
        self.given_up = False
        self.given_up_reason = ""
        self.restarts = 0
        self.signature: Signature | None = None
        self.card: ModelCard | None = None
        self.abandoned = asyncio.Event()
        self.plan = plan
        self._loaded = True
        self._callbacks = callbacks
        self._services = services
        self._starts = services.starts
        self._process_callbacks = ProcessCallbacks(self.became_ready, self.lost, self.died)
        self._back_off = BackOff(services.retries)
        # Failed starts of the processes that have never been ready, by the numbers of their instances.
        self._unstarted = dict.fromkeys(plan.places, 0)
        self._first_starts_over = asyncio.Event()  # each process has been ready, or the pool has given up
        self._stopping = False
        self._changing = asyncio.Lock()  # one exchange at a time
        self._replaced: range | None = None  # the instances of the process that `replace` is at
        self._awaited: dict[WorkerProcess, asyncio.Future[None]] = {}  # successors, until they take over
        self._leaving: dict[WorkerProcess, asyncio.Future[None]] = {}  # predecessors, until they are gone
        self._all_gone = asyncio.Event()

    def start(self) -> None:
        """Start all worker processes, without waiting until they are ready."""
        for numbers in self.plan.places:
            self._spawn(numbers)

    @property
    def ready(self) -> int:
        """Number of worker instances that accept requests."""
        return sum(instance.state is State.READY for instance in self.instances)

    def all_instances(self) -> Iterator[Instance]:
        """Iterate over all worker instances, including old ones that finish their last requests."""
        return (i for process in (*self.processes, *self._leaving) for i in process.instances)

    @property
    def is_model_ready(self) -> bool:
        """Whether the models of all worker processes report that they are ready. Most models always do."""
        return all(process.is_model_ready for process in self.processes)

    @property
    def load_s(self) -> float:
        """Seconds that the slowest of the current worker processes took to become ready; 0 if none is."""
        return max((p.ready_at - p.started_at for p in self.processes if p.ready_at), default=0.0)

    @property
    def in_crash_loop(self) -> bool:
        """Whether worker processes repeatedly become ready and die before they have answered a request."""
        return self._back_off.in_crash_loop(self.processes)

    @property
    def size(self) -> int:
        """Configured number of worker instances; 0 while the pipeline step (Op) is unloaded."""
        return sum(map(len, self.plan.places)) if self._loaded else 0

    @property
    def is_complete(self) -> bool:
        """Whether each process of the plan has been ready once. It may have died since.

        A process that can't be spawned counts after FAILED_STARTS_ALLOWED tries.
        """
        return self._unstarted.keys().isdisjoint(self.plan.places)

    async def until_complete(self) -> None:
        """Wait until each worker process has been ready once.

        Raises StartFailed if the starts of a process keep failing.
        """
        await self._first_starts_over.wait()
        if self.given_up:
            raise StartFailed(f"Op {self.op} did not start: {self.given_up_reason}")

    def request_stop_handler(self) -> bool:
        """Ask a worker to call the SIGTERM handler of the user's script before the worker ends.

        Returns whether the script has a handler.
        """
        for process in self.processes:
            if process.ready_message is not None and process.ready_message.has_stop_handler:
                process.instances[0].send(CallStopHandler())
                log.info("Worker %s calls the script's handler of SIGTERM", process.name)
                return True
        return False

    async def stop(self, grace_s: float) -> None:
        """End all worker processes after their current requests.

        Kill processes that run on after `grace_s` seconds.
        """
        self._stopping = True
        for process in self._alive():
            if process.ready_at:
                process.stop()
            else:
                process.kill("the service stops")
        if not self._alive():
            return
        try:
            await asyncio.wait_for(self._all_gone.wait(), grace_s)
        except TimeoutError:
            for process in self._alive():
                process.kill("it did not leave when the service stopped")
            await self._all_gone.wait()

    # Exchanging processes while requests are served:

    async def replace(self, process: WorkerProcess, unless: asyncio.Future[None] | None = None) -> bool:
        """Replace a worker process without downtime: it serves until its successor is ready, and then ends.

        Returns whether the process was replaced or is dead. If `unless` is done before the successor is
        ready, the process stays in service. Raises StartFailed if no successor starts; the process then stays
        in service, too.
        """
        async with self._changing:
            if process not in self.processes:
                return True
            self._replaced = process.numbers
            try:
                successor = await self._started_unless(unless, process.numbers)
                if successor is None:
                    return False
                if successor not in self._awaited:
                    raise StartFailed(f"Worker {successor.name} died before it was given any work")
                old = [p for p in self.processes if p.numbers == process.numbers]  # none if it has died
                self._take_over([*(p for p in self.processes if p not in old), successor])
            finally:
                self._replaced = None
                self._spawn(process.numbers)  # in case the process has died without a successor
            self.restarts += process.abandoned or not old
            await self._retire(old)
            return True

    async def _started_unless(
        self, unless: asyncio.Future[None] | None, numbers: range
    ) -> WorkerProcess | None:
        """Start a process and wait until it is ready. If `unless` is done first, end it and return None.

        numbers: the numbers of its instances. Raises StartFailed.
        """
        starting = asyncio.ensure_future(self._started(self.plan, numbers))
        either: set[asyncio.Future[Any]] = {starting} if unless is None else {starting, unless}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not starting.done():
                starting.cancel()
        await asyncio.wait({starting})
        if not starting.cancelled():
            return starting.result()
        await asyncio.gather(*self._leaving.values())
        return None

    async def reload(self, plan: Plan) -> None:
        """Replace all processes by processes of a new plan, without downtime. Also starts an unloaded Op.

        Raises StartFailed if the first new process fails; the old processes then stay. There is at most one
        process more than usual: the old processes end one by one. The new processes get no work until they
        are as many as the remaining old ones. From then on, all requests go to new processes. So requests
        that are dispatched at the same time always get the same version, and half of the instances always
        serve.
        """
        async with self._changing:
            successors = [await self._started_after_retries(plan, plan.places[0])]
            for numbers in plan.places[1:]:
                if not self._outnumbered(successors):
                    await self._retire([min(self.processes, key=_count_in_flight)])
                if self._outnumbered(successors):
                    break
                try:
                    successors.append(await self._started(plan, numbers))
                except StartFailed as exc:  # the files are good, the first has shown: `start` tries again
                    log.error("%s", exc.message)
                    break
            alive = [process for process in successors if process in self._awaited]
            if alive:
                self.plan, self._loaded, self.given_up = plan, True, False
                self._unstarted = dict.fromkeys(self._unstarted, 0)
                old = self.processes
                self._take_over(alive)
                await self._retire(old)
            self.start()
            if not alive:
                raise StartFailed(f"the new workers of Op {self.op} died before they were given any work")

    def grow(self) -> None:
        """Start another worker process, with as many instances as the last process."""
        last = self.plan.places[-1]
        added = range(last.stop, last.stop + len(last))
        self.plan = replace(self.plan, places=[*self.plan.places, added])
        self._spawn(added)

    async def shrink(self) -> None:
        """End the last worker process after its current requests."""
        async with self._changing:
            *remaining, last = self.plan.places
            self.plan = replace(self.plan, places=remaining)
            await self._retire([process for process in self.processes if process.numbers == last])

    async def unload(self) -> None:
        """End all worker processes after their current requests. `reload` starts new ones."""
        async with self._changing:
            self._loaded = False
            await self._retire(self.processes)

    def _outnumbered(self, successors: Iterable[WorkerProcess]) -> bool:
        """Return whether the new processes have at least as many instances as the processes that serve."""
        return sum(len(process.instances) for process in successors) >= self.ready

    def answer_for(self, models: tuple[ServedModel, ...]) -> None:
        """Set the models whose responses this Op's workers encode, and tell the workers if they have changed.

        models: all served models; only those whose last step is this Op matter.
        """
        before, now = (answered_by(some, self.op) for some in (self.plan.app.models, models))
        self.plan = replace(self.plan, app=replace(self.plan.app, models=models))
        if before != now:
            message = Models(write_models(now.values()))
            for process in self._alive():
                for instance in process.instances:
                    instance.send(message)

    def _process(self, plan: Plan, numbers: range) -> WorkerProcess:
        """Create the object of a worker process, without starting the process."""
        return self._services.create_process(
            plan.app,
            self.op,
            numbers,
            plan.version,
            self._process_callbacks,
            self._callbacks,
            self._services.outputs,
        )

    async def _started(self, plan: Plan, numbers: range) -> WorkerProcess:
        """Start a worker process and wait until it is ready. It gets no work until `_take_over`.

        Raises StartFailed if the process does not become ready.
        """
        process = self._process(plan, numbers)
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._starts.ask(self._colleagues, partial(self._begin_successor, process, started))
        try:
            await started
        except asyncio.CancelledError:
            if self._awaited.pop(process, None) is not None:
                self._leaving[process] = asyncio.get_running_loop().create_future()
                process.kill("nobody waits for it any more")
            raise
        return process

    async def _started_after_retries(self, plan: Plan, numbers: range) -> WorkerProcess:
        """Start a worker process as `_started` does. Retry failed starts as often as loads may be retried."""
        for retry in range(1, self._services.retries + 1):
            try:
                return await self._started(plan, numbers)
            except StartFailed as exc:
                log.error("%s; retry %d of %d", exc.message, retry, self._services.retries)
        return await self._started(plan, numbers)

    def _begin_successor(self, process: WorkerProcess, started: asyncio.Future[None]) -> WorkerProcess | None:
        """Spawn a process whose queued start is due. Return None if it is no longer needed or spawning fails.

        started: future that completes when the process is ready, or fails.
        """
        if started.done():  # the exchange was cancelled
            return None
        if self._stopping:
            started.set_exception(StartFailed(f"Op {self.op}: the service stops"))
            return None
        try:
            process.start()
        except Exception as exc:
            started.set_exception(StartFailed(f"Worker {process.name} can't be spawned: {exc}"))
            return None
        self._awaited[process] = started
        return process

    def _take_over(self, processes: list[WorkerProcess]) -> None:
        """Send new requests to these worker processes only."""
        self.processes = processes
        self._order_instances()
        for process in processes:
            if self._awaited.pop(process, None) is not None:
                self._serves(process)
        self._callbacks.dispatch_soon()

    async def _retire(self, processes: Iterable[WorkerProcess]) -> None:
        """Take worker processes out of service, and wait until they have answered all requests and ended."""
        loop = asyncio.get_running_loop()
        leaving = {process: loop.create_future() for process in processes}
        self._leaving |= leaving
        self.processes = [process for process in self.processes if process not in leaving]
        self._order_instances()
        for process in leaving:
            if process.ready_at:
                process.stop()
            else:
                process.kill("its successor serves")
        await asyncio.gather(*itertools.starmap(self._await_end, leaving.items()))

    async def _await_end(self, process: WorkerProcess, gone: asyncio.Future[None]) -> None:
        """Wait for the end of a process.

        A process with running requests ends within their time limits; an idle process is killed after
        `LEAVE_S`.
        """
        while not gone.done():
            had_work = _count_in_flight(process)
            await asyncio.wait({gone}, timeout=LEAVE_S)
            if not gone.done() and not had_work:
                process.kill("it did not leave when its successor served")
                await gone

    # What the processes report:

    def became_ready(self, process: WorkerProcess) -> None:
        """Put a ready worker process in service, or continue the replacement that waits for it."""
        run_isolated(self._starts.over, process)
        if process in self.processes:
            self._serves(process)
            self._callbacks.dispatch_soon()
        elif (started := self._awaited.get(process)) is not None and not started.done():
            started.set_result(None)

    def _serves(self, process: WorkerProcess) -> None:
        """Store the inputs and outputs of the model of a process that now serves, and report the process."""
        if (ready := process.ready_message) is not None:
            self.signature, self.card = ready.signature, ready.card
        process.begin_service()
        self._back_off.started()
        self._end_first_start(process.numbers)
        self._services.pool_ready()

    def _end_first_start(self, numbers: range) -> None:
        """Record that the process with these instances has been ready once, or can't be spawned.

        numbers: the numbers of the process's instances.
        """
        self._unstarted.pop(numbers, None)
        if self.is_complete:
            self._first_starts_over.set()

    def lost(self, process: WorkerProcess) -> None:
        """Queue the requests of a dying worker process again, by a callback of the batcher."""
        self._callbacks.requeue_lost(process)

    def died(self, process: WorkerProcess) -> None:
        """Remove a dead worker process, fail the requests that may have killed it, and schedule a restart."""
        run_isolated(self._callbacks.refuse_blamed, process)
        run_isolated(self._starts.over, process)
        run_isolated(self._forget, process)
        if self._stopping and not self._alive():
            self._all_gone.set()
        self._callbacks.dispatch_soon()

    def _forget(self, process: WorkerProcess) -> None:
        """Remove a dead process from the pool, and notify a replacement or retirement that waits for it."""
        if process in self.processes:
            self.processes.remove(process)
            self._order_instances()
            self._replace_dead(process)
        elif (started := self._awaited.pop(process, None)) is not None:
            reason = process.failure.reason if process.failure else process.describe_death()
            if started.done():
                log.error("Worker %s (pid %d) died before it served: %s", process.name, process.pid, reason)
            else:
                started.set_exception(StartFailed(f"Worker {process.name} did not start: {reason}"))
        elif (gone := self._leaving.pop(process, None)) is not None and not gone.done():
            gone.set_result(None)
            log.info("Worker %s (pid %d) has left: %s", process.name, process.pid, process.describe_death())

    def _replace_dead(self, process: WorkerProcess) -> None:
        """Restart a dead process, unless the service stops or starts keep failing."""
        if self._stopping:
            return
        starts_again = True
        try:
            starts_again = self._starts_again(process)
        finally:  # replace the process even if its death can't be logged
            if starts_again and process.numbers != self._replaced:  # whose successor is on its way
                self._start_again(process)

    def _starts_again(self, process: WorkerProcess) -> bool:
        """Log the death of a process. Return whether another process may be started in its place."""
        why = process.describe_death()
        if not process.ready_at:
            return self._may_try_again(process, why)
        self._back_off.died(process)
        reason = f"\n{process.failure.reason}" if process.failure else ""
        log.error("Worker %s (pid %d) died: %s%s", process.name, process.pid, why, reason)
        return True

    def _start_again(self, process: WorkerProcess) -> None:
        """Schedule the restart of a dead process after its back-off pause."""
        self.restarts += 1
        pause_s = self._back_off.pause_s(process)
        log.info("Worker %s is started again in %g s", process.name, pause_s)
        asyncio.get_running_loop().call_later(pause_s, self._spawn, process.numbers)

    def _may_try_again(self, process: WorkerProcess, why: str) -> bool:
        """Log a failed start. Return whether another try makes sense.

        If not, the pool serves an older version of the model or gives up.
        """
        reason = process.failure.reason if process.failure else why
        log.error("Worker %s did not start: %s", process.name, reason)
        if self.ready and (self.is_complete or process.shard is not None):
            # A changed file must not end the other processes, and this failure does not count: if one of them
            # dies later, its successors have all tries. The other shards serve, and readiness reports it.
            return True
        if process.shard is not None and self._back_off.may_wait_for_others(process, len(self.processes)):
            return True
        if process.version != self.plan.version:
            return True
        if self._back_off.note_failed_start(process) or self._keeps_failing(process):
            if not self._falls_back(process, reason):
                self._give_up(reason)
            return False
        return True

    def _give_up(self, reason: str) -> None:
        """Stop trying to start processes until the Op is loaded again. reason: error of the last start."""
        self.given_up, self.given_up_reason = True, reason
        self._first_starts_over.set()
        self._services.start_failed(self)

    def _keeps_failing(self, process: WorkerProcess) -> bool:
        """Count a failed start. Return whether further starts are useless, although others were ready.

        The count of `BackOff` is reset whenever another process becomes ready, so the load of a model might
        never end. The service of a script continues with the processes that are ready.
        """
        is_load = self.plan.app.repository is not None
        return is_load and self._back_off.was_ready and self._count_failed_start(process.numbers)

    def _count_failed_start(self, numbers: range) -> bool:
        """Count a failed start of a process that has never been ready. Return whether it was the last try."""
        if numbers not in self._unstarted:
            return False
        self._unstarted[numbers] += 1
        return self._unstarted[numbers] >= FAILED_STARTS_ALLOWED

    def _falls_back(self, process: WorkerProcess, reason: str) -> bool:
        """Serve an older version of the model if this version can't be loaded at the service's start.

        Returns whether there is an older version. A crash without a reported reason counts as well: native
        code may crash on a damaged file.
        """
        of_model = process.failure is None or process.failure.of_model
        if self._back_off.was_ready or not of_model or not self.plan.older:
            return False
        broken, self.plan = self.plan.version, plan_older(self.plan, self.op)
        log.error(
            "Op %s: version %s can't be loaded, so version %s is served: %s",
            self.op,
            broken,
            self.plan.version,
            reason.partition("\n")[0],
        )
        self._back_off = BackOff(self._services.retries)
        self._unstarted = dict.fromkeys(self.plan.places, 0)
        for other in self.processes:
            other.kill(f"version {broken} can't be loaded")
        self.start()
        return True

    def _spawn(self, numbers: range) -> None:
        """Queue the start of the process with these instances. Nothing starts if the process already runs."""
        self._starts.ask(self._colleagues, partial(self._begin, numbers))

    def _begin(self, numbers: range) -> WorkerProcess | None:
        """Spawn the process with these instances. Return None if it is not needed or can't be spawned.

        numbers: the numbers of the process's instances.
        """
        if (
            self._stopping
            or not self._loaded
            or numbers not in self.plan.places
            or numbers == self._replaced
            or any(process.numbers == numbers for process in self.processes)
        ):
            return None
        process = self._process(self.plan, numbers)
        try:
            process.start()
        except Exception as exc:  # mostly for want of memory, descriptors or processes
            log.error("Worker %s can't be spawned: %s", process.name, exc)
            if self.plan.app.repository is not None and self._count_failed_start(numbers):
                if not self.ready:
                    self._give_up(f"it can't be spawned: {exc}")
                    return None
                self._end_first_start(numbers)
                self._services.pool_ready()
            asyncio.get_running_loop().call_later(MAX_BACKOFF_S, self._spawn, numbers)
            return None
        self.processes.append(process)
        self._order_instances()
        return process

    def _colleagues(self) -> int:
        """Return the number of usable worker processes: those that can work now, or once they are ready."""
        return sum(not process.abandoned for process in (*self.processes, *self._awaited))

    def _alive(self) -> list[WorkerProcess]:
        return [*self.processes, *self._awaited, *self._leaving]

    def _order_instances(self) -> None:
        """Order the instances for dispatching: the first instance of each process, then the second of each.

        The threads of one process share a GIL.
        """
        rounds = itertools.zip_longest(*(process.instances for process in self.processes))
        self.instances = [instance for some in rounds for instance in some if instance is not None]


def _count_in_flight(process: WorkerProcess) -> int:
    """Return how many dispatches (groups of requests) of a worker process are not fully answered."""
    return sum(len(instance.in_flight) for instance in process.instances)
