"""Run of a seed: a service starts, is under load and faults, heals, serves quietly, and stops."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import random
from collections import deque
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from pipeline.errors import NotReady, StartFailed
from pipeline.front.dag_run import Client
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.pool.worker_process import Instance
from pipeline.front.repository import LoadFailed, Repository
from pipeline.front.scheduler import batcher as batcher_module
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.scheduler import Scheduler
from tests.simulation.clients import ARRAY_BYTES, Caller, Clients, Order
from tests.simulation.faults import FAULTS
from tests.simulation.invariants import LOOK_EVERY_S, MAX_FAILED_STARTS, LogCheck, Referee
from tests.simulation.kernel import Kernel, Outputs
from tests.simulation.loop import Clock, Livelock, Selector, VirtualLoop
from tests.simulation.scenario import DEATHS, SHAPES, Scenario, draw
from tests.simulation.workers import InstanceThread, Quirks, Worker, World

BEGAN_AT_S = 1000.0
READY_WITHIN_S = 150.0
HEALED_WITHIN_S = 150.0
QUIET_TIMEOUT_S = 20.0
FORGOTTEN_AFTER = 10  # requests, until run times amid faults do not count any more
AFTER_STOP_S = 120.0  # longer than any timer of the service

log = logging.getLogger("pipeline")


@dataclass
class Result:
    """Outcome of a run. trace: its events; digest: of the trace, the same whenever the seed is run."""

    seed: int
    violations: list[str]
    trace: list[str]
    requests: int
    virtual_s: float

    @property
    def digest(self) -> str:
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


class Run:
    """One run, from an empty machine to a stopped service."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.rng = random.Random(scenario.seed + 1)
        self.deaths = DEATHS
        self.clock = Clock(BEGAN_AT_S)
        self.kernel = Kernel(self.rng, self.clock, scenario.cores, scenario.socket_bytes)
        self.selector = Selector(self.clock, self.rng, self.kernel.find)
        self.loop = VirtualLoop(self.clock, self.selector)
        self.outputs = Outputs()
        self.referee = Referee(self)
        self.world = World(
            self.rng, self.referee, scenario.speeds,
            {name: op.batch_size for name, op in scenario.app.config.op.items()}, scenario.mode,
            {name: deque(plans) for name, plans in scenario.plans.items()},
        )  # fmt: skip
        self.kernel.spawned = self.world.spawned
        self.kernel.fail_spawn = self._fail_spawn
        self.failing_spawns = 0
        self.trace: list[str] = []
        self.ops = list(SHAPES[scenario.shape])
        self.paths = _paths(scenario.shape)
        self.has_priorities = any(order.priority for some in scenario.orders for order in some)
        self.quiet = False
        self.healing = False  # no more faults
        self.stopping = False
        self.unloading = 0
        self.all_batchers: list[Batcher] = []
        self._orders: set[asyncio.Task[None]] = set()
        self._callers: list[Caller] = []

    @property
    def now(self) -> float:
        return self.clock.now

    @property
    def batchers(self) -> dict[str, Batcher]:
        return self.scheduler._batchers

    @property
    def fair_queue(self) -> Any:
        return self.scheduler._admission.fair_queue

    @property
    def gave_up(self) -> bool:
        """Whether an Op has no worker, and gets none, because its starts kept failing."""
        return self.scheduler.fatal.done() or any(b.pool.given_up for b in self.batchers.values())

    def note(self, event: str) -> None:
        """Add an event to the trace."""
        self.trace.append(f"{self.now:.6f} {event}")

    def healthy(self, instance: Instance) -> bool:
        """Whether an instance answers what it is sent."""
        program = instance.process._process.program
        return bool(program.healthy) and not self._thread(instance).hung

    def spins(self, instance: Instance) -> bool:
        """Whether an instance that hangs uses CPU, as one that works does."""
        program = instance.process._process.program
        return bool(program.spins or self._thread(instance).spins)

    def _thread(self, instance: Instance) -> InstanceThread:
        """Return the thread that runs an instance."""
        program: Worker = instance.process._process.program
        return program.instances[instance.number - instance.process.numbers[0]]

    def stopped_since(self, instance: Instance) -> float | None:
        """Return since when an instance's process is stopped by SIGSTOP; None where it is not."""
        process = instance.process._process
        return float(process.stopped_at) if process.stopped else None

    def order(self, order: Coroutine[Any, Any, None]) -> None:
        """Have an operator's order carried out beside the load."""
        self._orders.add(self.loop.create_task(self._carried_out(order)))

    async def unload_and_load(self, op: str) -> None:
        self.unloading += 1
        await self.repository.unload_ops([op])
        await asyncio.sleep(self.rng.choice((0.0, 1.0)))
        while not self.stopping:
            try:
                await self.repository.load([op])
            except LoadFailed:
                await asyncio.sleep(1.0)
            else:
                break

    async def _carried_out(self, order: Coroutine[Any, Any, None]) -> None:
        try:
            await order
        except (NotReady, StartFailed) as exc:
            self.note(f"order fails: {exc.message}")

    def go(self) -> Result:
        """Run the scenario to its end."""
        self.note(self.scenario.describe())
        self.loop.set_exception_handler(self._unhandled)
        large = mock.patch.object(batcher_module, "LONE_BYTES", self.scenario.lone_bytes)
        with self.kernel.installed(), self._observed(), large, _quick_collections():
            try:
                self.loop.run_until_complete(self._live())
            except Livelock as exc:
                self.referee.report(str(exc))
            except Exception as exc:
                self.referee.report(f"the service ends with {type(exc).__name__}: {exc}")
            violations = list(self.referee.violations)
            self._break_off()
        self.loop.close()
        return Result(
            self.scenario.seed, violations, self.trace, len(self.clients.requests),
            self.now - BEGAN_AT_S,
        )  # fmt: skip

    def _break_off(self) -> None:
        """Cancel what goes on after a run that was not orderly, so that nothing of it disturbs the next."""
        self.selector.turns = 0
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(Exception):
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=AFTER_STOP_S))

    @contextlib.contextmanager
    def _observed(self) -> Iterator[None]:
        """Have the referee see what leaves the queues, what is lost, and what is logged."""
        dispatch, tried_again = Instance.dispatch, batcher_module.tried_again
        handler, level, propagates = LogCheck(self, logging.INFO), log.level, log.propagate

        def observed_dispatch(instance: Instance, tasks: Any, *rest: Any) -> None:
            self.referee.handed_over(instance, list(tasks))
            dispatch(instance, tasks, *rest)

        def observed_losses(process: Any, crash_retry: bool) -> Any:
            unseen = [
                task
                for instance in process.instances
                for dispatch in instance.in_flight
                if not instance.began(dispatch)
                for task in dispatch.open_tasks()
            ]
            self.referee.lost(process.op, unseen)
            return tried_again(process, crash_retry)

        Instance.dispatch = observed_dispatch  # type: ignore[method-assign]
        batcher_module.tried_again = observed_losses
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield
        finally:
            Instance.dispatch = dispatch  # type: ignore[method-assign]
            batcher_module.tried_again = tried_again
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagates

    async def _live(self) -> None:
        self.scheduler = Scheduler(self.scenario.app, Metrics("sim"), self.outputs)  # type: ignore[arg-type]
        self.repository = Repository(self.scheduler)
        self.clients = Clients(self.scheduler, self.rng)
        self.clients.on_sent = self.referee.sent
        self.clients.on_refused = self.referee.refused
        self.clients.on_ended = self.referee.ended
        self.all_batchers = list(self.batchers.values())
        self._look()
        async with self.scheduler.running():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.scenario.early_stop_s):
                    await self._serve()
            drained = await self._drain()
            if self.rng.random() < 0.3 and (alive := self.world.alive()):
                self.rng.choice(alive).process.stop()  # one worker will not leave
            stopped_at = self.now
        self.referee.check_stopped(self.now - stopped_at, drained)
        self._finished = True
        await asyncio.gather(*self._orders)
        await asyncio.sleep(AFTER_STOP_S)
        self.referee.check_timers()

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(READY_WITHIN_S) as waiting:
                await self.scheduler.until_ready()
        except TimeoutError:
            if waiting.expired():
                self.referee.report(f"the service is not ready in {READY_WITHIN_S:g} s")
                return
            raise
        except StartFailed as exc:
            self.note(f"the service can't start: {exc.message}")
            self._check_failed_starts()
            return
        self.note("the service is ready")
        await self._load()
        if await self._healed():
            await self._serve_quietly()

    async def _load(self) -> None:
        """Serve the callers while faults happen."""
        scenario = self.scenario
        for orders, pause_s in zip(scenario.orders, scenario.pauses_s, strict=True):
            if pause_s < 0:
                self.loop.call_later(self.rng.uniform(0, scenario.load_s), self._flood, list(orders))
            else:
                caller = Caller(self.clients, list(orders), pause_s)
                self._callers.append(caller)
                caller.begin()
        for fault in scenario.faults:
            self.loop.call_later(fault.at_s, self._inflict, fault.kind)
        await asyncio.sleep(scenario.load_s)

    def _flood(self, orders: list[Order]) -> None:
        client = Client()
        for order in () if self.stopping else orders:
            self.clients.send(client, order)

    def _inflict(self, kind: str) -> None:
        if not self.stopping:
            self.note(f"fault: {kind}")
            FAULTS[kind](self)

    async def _healed(self) -> bool:
        """Wait until the service has all its instances again, with a few requests meanwhile."""
        for caller in self._callers:
            caller.stop()
        self.healing = True
        self.note("no more faults")
        for plans in self.world.plans.values():
            plans.clear()
        for worker in self.world.alive():
            worker.quirks = Quirks()
            if worker.process.stopped and not self.scenario.app.config.op[worker.op].probe_interval:
                worker.process.resume()  # nobody looks after an idle one
        until = self.now + HEALED_WITHIN_S
        client = Client()
        while not self._is_whole():
            if self.gave_up:
                self._check_failed_starts()
                return False
            if self.now > until:
                counts = self.scheduler.readiness()
                self.referee.report(f"the service has not healed in {HEALED_WITHIN_S:g} s: {counts}")
                return False
            self.clients.send(client, Order())
            await asyncio.sleep(1.0)
        self.note("the service has healed")
        return True

    def _is_whole(self) -> bool:
        """Whether each Op has all its instances, and nothing is under way."""
        pools = [batcher.pool for batcher in self.batchers.values()]
        return (
            all(pool.ready == pool.size for pool in pools)
            and all(self.healthy(instance) for pool in pools for instance in pool.instances)
            and not self.clients.open
            and not any(instance.in_flight for pool in pools for instance in pool.instances)
            and all(task.done() for task in self._orders)
            and (self.scheduler.ready or self.gave_up)
        )

    async def _serve_quietly(self) -> None:
        """Check that a service without faults answers everything, and keeps nothing."""
        for _ in range(FORGOTTEN_AFTER):
            self.clients.send(Client(), Order())
            await asyncio.sleep(1.0)
        self.quiet = True
        for _ in range(3):
            client = Client()
            for _ in range(2):
                self.clients.send(client, Order(array_bytes=ARRAY_BYTES))
            await asyncio.sleep(QUIET_TIMEOUT_S / 4)
        if self.clients.open:
            self.referee.report(f"{len(self.clients.open)} requests are open, and nothing is wrong")
        elif all(batcher.pool.ready == batcher.pool.size for batcher in self.batchers.values()):
            self.referee.check_quiet()
        self.quiet = False

    def _check_failed_starts(self) -> None:
        """Check that the service gave up because of failing starts."""
        failed = self.referee.failed_starts
        gave_up = [op for op, batcher in self.batchers.items() if batcher.pool.given_up]
        for op in gave_up:
            if failed[op] < MAX_FAILED_STARTS and not self._raised(op):
                self.referee.report(f"Op {op} is given up after {failed[op]} failed starts")

    def _raised(self, op: str) -> bool:
        return any(plan.kind in ("raise", "refuse") for plan in self.scenario.plans.get(op, ()))

    async def _drain(self) -> bool:
        """Stop as `pipeline.front.lifecycle` does; returns whether all requests were answered."""
        self.note("the service stops")
        self.healing = self.stopping = True
        for caller in self._callers:
            caller.stop()
        self.scheduler.mark_unready()
        return await self.scheduler.drain(self.scenario.app.config.dag.drain_timeout)

    def _look(self) -> None:
        if not self.stopping or self.clients.open:
            self.referee.look()
            self.loop.call_later(LOOK_EVERY_S, self._look)

    def _fail_spawn(self) -> bool:
        self.failing_spawns -= 1
        return self.failing_spawns >= 0

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        exc = context.get("exception")
        if isinstance(exc, Livelock):
            raise exc
        self.referee.report(f"not handled in the loop: {context.get('message')}: {type(exc).__name__}: {exc}")


@contextlib.contextmanager
def _quick_collections() -> Iterator[None]:
    """Collect no garbage at moments of Python's choice, and look at new objects only."""
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        gc.enable()


def simulate(seed: int, *, sequences: bool = False) -> Result:
    """Run a seed. sequences: the requests form sequences, whose state the front keeps."""
    return Run(draw(seed, sequences=sequences)).go()


def _paths(shape: str) -> set[str]:
    """The ways through Ops that an answer may tell."""
    paths: dict[str, set[str]] = {}
    for op, inputs in SHAPES[shape].items():
        if shape == "first" and inputs:
            paths[op] = {f"{op}({path})" for given in inputs for path in paths[given]}
        elif len(inputs) == 2:
            paths[op] = {f"{op}({a},{b})" for a in paths[inputs[0]] for b in paths[inputs[1]]}
        else:
            paths[op] = {f"{op}({path})" for path in (paths[inputs[0]] if inputs else {""})}
    return paths[list(paths)[-1]]
