"""Open-loop load on a simulated service without faults, with the measured times of a real one.

Scheduler, batcher and worker pool are the real classes, on the simulated system of `tests.simulation`. Only
the workers, the clients and the clock are simulated.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count

import numpy as np

from bench.open_loop import MAX_CONNECTIONS, TICK_S, Arrivals, summarize
from pipeline.api.app import App, ServedModel
from pipeline.api.dag import Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.op import REQUEST_OP
from pipeline.config.config_file import ServiceConfig
from pipeline.errors import DeadlineExceeded, Overloaded, ServingError
from pipeline.front.dag_run import Answer, Client
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.scheduler.scheduler import Scheduler
from tests.simulation.clients import Clients, Order, Sent
from tests.simulation.kernel import Kernel, Outputs
from tests.simulation.loop import Clock, Selector, VirtualLoop
from tests.simulation.workers import Speed, Worker, World

FOLDER = "/nonexistent/simulation"
BEGAN_AT_S = 1000.0
OP = "a"
SOCKET_BYTES = 200_000
MIN_SAMPLES = 10  # runs of one size, below which their times count only for the line through all sizes


class ServiceTimes(Speed):
    """Measured times of a service with one instance, in seconds.

    runs_s: of the runs of the instance, by the number of requests in a run. dispatch_s: of a busy instance
    between two runs. front_s: CPU of the front for a request. outside_s: from the client to the front and
    back.
    """

    def __init__(
        self, runs_s: Mapping[int, Sequence[float]], dispatch_s: float, front_s: float, outside_s: float = 0.0
    ) -> None:
        super().__init__(start_s=(0.1, 0.3))
        self.runs_s = {size: times for size, times in sorted(runs_s.items()) if len(times) >= MIN_SAMPLES}
        self.dispatch_s = dispatch_s
        self.front_s = front_s
        self.outside_s = outside_s
        sizes, times = zip(*((size, t) for size, some in runs_s.items() for t in some), strict=True)
        self._slope_s = float(np.polyfit(sizes, times, 1)[0]) if len(set(sizes)) > 1 else 0.0
        self._slope_s = max(0.0, self._slope_s)

    def draw_run_s(self, rng: random.Random, requests: int) -> float:
        """Draw a measured run of this size, or of the nearest size, moved along the line through all."""
        size = min(self.runs_s, key=lambda measured: abs(measured - requests))
        measured_s = rng.choice(self.runs_s[size])
        return max(0.0, measured_s + self._slope_s * (requests - size)) + self.dispatch_s


class _NoWitness:
    """Observer of workers that records nothing."""

    def began(self, worker: Worker, requests: list[int]) -> None:
        pass

    def died(self, worker: Worker) -> None:
        pass


class _WholeReads(Kernel):
    """A system whose reads get all the bytes that are there."""

    def read_size(self, available: int) -> int:
        return available


class SimulatedLoad:
    """One load on a simulated service of one Op."""

    def __init__(self, times: ServiceTimes, *, instances: int, batch_size: int, seed: int = 1) -> None:
        self._times = times
        self._rng = random.Random(seed)
        self._clock = Clock(BEGAN_AT_S)
        self._kernel = _WholeReads(self._rng, self._clock, instances + 1, SOCKET_BYTES)
        selector = Selector(self._clock, self._rng, self._kernel.find, max_turns=math.inf)
        self._loop = VirtualLoop(self._clock, selector)
        world = World(self._rng, _NoWitness(), {OP: times}, {OP: batch_size}, stalls_s=(0.0,))
        self._kernel.spawned = world.spawned
        self._app = _build_app(instances, batch_size)
        self._idle: deque[Client] = deque()
        self._answers_s: list[float] = []
        self._counts = {"refused": 0, "late": 0, "failed": 0}

    def run(self, rate: float, seconds: float, deadline_s: float, *, at_random: bool = False) -> Arrivals:
        """Offer requests at a rate, as `bench.open_loop` does, and return what comes of them.

        at_random: the requests of many independent clients (a Poisson process), in place of equal intervals.
        """
        log = logging.getLogger("pipeline")
        level = log.level
        log.setLevel(logging.ERROR)
        try:
            with self._kernel.installed():
                return self._loop.run_until_complete(self._live(rate, seconds, deadline_s, at_random))
        finally:
            log.setLevel(level)
            self._loop.close()

    async def _live(self, rate: float, seconds: float, deadline_s: float, at_random: bool) -> Arrivals:
        scheduler = Scheduler(self._app, Metrics("sim"), Outputs())  # type: ignore[arg-type]
        clients = Clients(scheduler, self._rng)
        clients.on_ended = partial(self._record_answer, clients)
        clients.on_refused = lambda order, error: self._record_error(error)
        async with scheduler.running():
            await scheduler.until_ready()
            connections = min(MAX_CONNECTIONS, max(64, int(2 * rate * deadline_s)))
            self._idle = deque(Client() for _ in range(connections))
            sent, unsent, took_s = await self._offer(clients, rate, seconds, deadline_s, at_random)
            answers_s = list(self._answers_s)
            scheduler.mark_unready()
            await scheduler.drain(self._app.config.dag.drain_timeout)
        return summarize(
            took_s, sent, unsent, answers_s, self._counts, lost=len(clients.open), deadline_s=deadline_s
        )

    async def _offer(
        self, clients: Clients, rate: float, seconds: float, deadline_s: float, at_random: bool
    ) -> tuple[int, int, float]:
        """Send what is due every `TICK_S`. Return the requests sent and not sent, and the seconds."""
        began = self._loop.time()
        instants = _draw_instants(rate, self._rng if at_random else None)
        due_s = next(instants)
        sent = unsent = 0
        while (now_s := self._loop.time() - began) < seconds:
            while due_s <= now_s:
                due_s = next(instants)
                if not self._idle:
                    unsent += 1
                    continue
                client = self._idle.popleft()
                sent += 1
                clients.send(client, Order(timeout_s=deadline_s), partial(self._idle.append, client))
                self._clock.now += self._times.front_s
            await asyncio.sleep(TICK_S)
        return sent, unsent, self._loop.time() - began

    def _record_answer(self, clients: Clients, sent: Sent, answer: Answer | None) -> None:
        del clients.requests[sent.number]
        if isinstance(answer, ServingError):
            self._record_error(answer)
        else:
            self._answers_s.append(sent.ended_at - sent.at + self._times.outside_s)

    def _record_error(self, error: ServingError) -> None:
        kinds = {Overloaded.err_no: "refused", DeadlineExceeded.err_no: "late"}
        self._counts[kinds.get(error.err_no, "failed")] += 1


def _draw_instants(rate: float, rng: random.Random | None) -> Iterator[float]:
    """Yield the seconds at which requests are due: at equal intervals, or at random with `rng`."""
    if rng is None:
        yield from (number / rate for number in count(1))
    at_s = 0.0
    while rng is not None:
        at_s += rng.expovariate(rate)
        yield at_s


def _build_app(instances: int, batch_size: int) -> App:
    op = {"concurrency": instances, "batch_size": batch_size, "probe_interval": 0.0}
    config = ServiceConfig.model_validate({"http_port": 9292, "op": {OP: op}})
    model = ServedModel("sim", Dag((Node(OP, OP, (Edge(REQUEST_OP),)),), OP))
    script = f"{FOLDER}/web_service.py"
    return App("sim", (model,), config, script, (), FOLDER, Examples(), exit_on_error=True)
