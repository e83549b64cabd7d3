"""A scheduler on the simulated system of `tests.simulation`: virtual time, and workers without a process.

Nothing is drawn by chance, so that a test can say when a run begins and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.api.app import App, ServedModel
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.op import REQUEST_OP
from pipeline.api.request_options import RequestOptions
from pipeline.config.config_file import ServiceConfig
from pipeline.errors import ServingError
from pipeline.front.dag_run import Client, DagRun, Request
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.scheduler.scheduler import Scheduler
from tests.simulation.kernel import Kernel, Outputs
from tests.simulation.loop import Clock, Selector, VirtualLoop
from tests.simulation.workers import Mode, Speed, StartPlan, Worker, World

BEGAN_AT_S = 1000.0
START_S = 0.5  # of a worker
RUN_S = 0.1  # of a dispatch, whatever is in it
FOLDER = "/nonexistent/simulation"


class NoChance(random.Random):
    """Draws the value nearest to 1, the first choice, and the largest size."""

    def random(self) -> float:
        return 0.999

    def uniform(self, a: float, b: float) -> float:
        return min(max(1.0, a), b)

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def randint(self, a: int, b: int) -> int:
        return b

    def shuffle(self, x: Any) -> None:
        pass


class Call:
    """A request that a client has sent, and its answer."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.dag_run: DagRun | None = None
        self.answers: list[Any] = []
        self.answered_at = 0.0  # seconds since the service was ready
        self.finish: list[str] = []

    @property
    def body(self) -> str:
        """The answer of the worker: number of the request, and the Ops that it has passed."""
        (answer,) = self.answers
        assert isinstance(answer, list), f"the request failed: {answer!r}"
        return b"".join(map(bytes, answer)).decode().rpartition(" ")[0].rpartition(" ")[0]

    @property
    def error(self) -> ServingError:
        (answer,) = self.answers
        assert isinstance(answer, ServingError), f"the request has an answer: {answer!r}"
        return answer


class SimulatedService:
    """A scheduler with its workers; a test sends requests and lets virtual time pass."""

    def __init__(
        self,
        ops: Mapping[str, Mapping[str, Any]] | None = None,
        dag: Mapping[str, Any] | None = None,
        *,
        inputs: Mapping[str, Sequence[str]] | None = None,
        first_arrival: bool = False,
        batching: Mapping[str, Any] | None = None,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
        run_s: float = RUN_S,
        request_s: float = 0.0,
        mode: Mode = Mode.TOGETHER,
        starts: Mapping[str, Sequence[StartPlan]] | None = None,
        begins: bool = True,
        socket_bytes: int = 1 << 20,
        **app: Any,
    ) -> None:
        """ops: their sections of config.yml. inputs: by Op; without, each Op follows the one before.

        batching: `dynamic_batching` of the first Op's model. configs: instead, config.pbtxt of each
        Op's model. begins: whether to start, and wait until all workers are ready. socket_bytes: bytes that
        wait in a socket until they are read.
        """
        ops = ops or {"a": {}}
        sections = {name: {"concurrency": 1, "probe_interval": 0, **section} for name, section in ops.items()}
        config = ServiceConfig.model_validate(
            {
                "http_port": 9292,
                "dag": {"is_thread_op": False, **(dag or {})},
                "op": sections,
                **app.pop("config", {}),
            }
        )
        names = list(sections)
        inputs = inputs or {name: names[at - 1 : at] if at else () for at, name in enumerate(names)}
        if batching is not None:
            configs = {next(iter(inputs)): {"dynamic_batching": batching, "max_batch_size": 8}}
        self.app = App(
            "sim", _models(inputs, first_arrival, configs or {}), config, f"{FOLDER}/web_service.py", (),
            FOLDER, Examples(), **app,
        )  # fmt: skip
        chance = NoChance()
        self.clock = Clock(BEGAN_AT_S)
        self.kernel = Kernel(chance, self.clock, 64, socket_bytes)
        self.loop = VirtualLoop(self.clock, Selector(self.clock, chance, self.kernel.find))
        self.loop.set_exception_handler(self._unhandled)
        self.unhandled: list[Any] = []
        self.begun: list[list[int]] = []  # numbers of the requests of each batch that a worker has begun
        speeds = {name: Speed((START_S, START_S), run_s, request_s) for name in names}
        batch_sizes = {name: config.op[name].batch_size for name in names}
        plans = {name: deque(some) for name, some in (starts or {}).items()}
        self.world = World(chance, self, speeds, batch_sizes, mode, plans)
        self.kernel.spawned = self.world.spawned
        self.metrics = Metrics("sim")
        self._numbers = 0
        self._stack = contextlib.ExitStack()
        self._stack.enter_context(self.kernel.installed())
        self.scheduler: Scheduler = self.run(lambda: Scheduler(self.app, self.metrics, Outputs()))  # type: ignore[arg-type]
        self._stopping = self.run(asyncio.Event)
        self._life: asyncio.Task[None] | None = None
        self.ready_at = 0.0
        if begins:
            self.begin()
            self.loop.run_until_complete(self.scheduler.until_ready())
            self.ready_at = self.clock.now

    def begin(self) -> None:
        """Start the workers."""
        self._life = self.loop.create_task(self._live())
        self.pass_turns()

    async def _live(self) -> None:
        async with self.scheduler.running():
            await self._stopping.wait()

    def close(self) -> None:
        """Stop the service; nothing may be left that runs."""
        if self._life is not None:
            self._stopping.set()
            self.loop.run_until_complete(self._life)
        self._stack.close()
        self.loop.close()
        assert not self.unhandled

    @property
    def now(self) -> float:
        """Seconds since the service was ready."""
        return self.clock.now - self.ready_at

    @property
    def workers(self) -> list[Worker]:
        """The workers that live."""
        return self.world.alive()

    def run(self, action: Callable[[], Any]) -> Any:
        """Call it within the loop."""

        async def call() -> Any:
            return action()

        return self.loop.run_until_complete(call())

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.loop.run_until_complete(asyncio.sleep(seconds))

    def pass_turns(self, turns: int = 3) -> None:
        """Let the loop do what is due now."""
        for _ in range(turns):
            self.loop.run_until_complete(asyncio.sleep(0))

    def make(self, kind: str = "answer", client: Client | None = None, **options: Any) -> Call:
        """Return a request that is not sent yet; see `tests.simulation.clients.Order` for its kinds."""
        self._numbers += 1
        slow_s, node, code = options.pop("slow_s", 0.0), options.pop("node", ""), options.pop("code", -9)
        inputs = {
            "id": self._numbers, "do": "slow" if slow_s else kind, "node": node, "s": slow_s, "code": code,
            "size": options.pop("size", 10), "path": "", "data": options.pop("data", None),
        }  # fmt: skip
        timeout_s, queue_us = options.pop("timeout_s", None), options.pop("queue_timeout_us", 0)
        priority, sequence = options.get("priority", 0), (options.pop("sequence", 0), options.pop("flags", 0))
        request = Request(
            "sim", "prediction", inputs, self._numbers, client=client, endpoint="http",
            options=RequestOptions("", priority, queue_us, {}, *sequence), **options,
        )  # fmt: skip
        if timeout_s is not None:
            request.deadline = self.scheduler.deadline(timeout_s)
        return Call(request)

    def send(self, *calls: Call) -> list[Call]:
        """Send these in one turn of the loop. Raises the error of one that is not admitted."""

        def begin() -> None:
            for call in calls:
                call.dag_run = self.scheduler.begin_request(
                    call.request, lambda answer, call=call: self._answered(call, answer)
                )

        self.run(begin)
        return list(calls)

    def ask(self, kind: str = "answer", client: Client | None = None, **options: Any) -> Call:
        """Send one request."""
        return self.send(self.make(kind, client, **options))[0]

    def ask_several(self, count: int, client: Client | None = None, **options: Any) -> list[Call]:
        """Send equal requests in one turn of the loop."""
        return self.send(*(self.make(client=client, **options) for _ in range(count)))

    def leave(self, call: Call) -> None:
        """Have the client of a request leave."""
        assert call.dag_run is not None
        self.run(call.dag_run.leave)

    def kill(self, worker: Worker, code: int = -signal.SIGKILL) -> None:
        self.run(lambda: worker.die("fault", code))

    def _answered(self, call: Call, answer: Any) -> None:
        call.answers.append(answer)
        call.answered_at = self.now

    def began(self, worker: Worker, requests: list[int]) -> None:
        """Record what a worker runs: `Witness.began`."""
        self.begun.append(list(requests))

    def died(self, worker: Worker) -> None:
        """`Witness.died`."""

    def _unhandled(self, loop: Any, context: dict[str, Any]) -> None:
        self.unhandled.append(context)

    def gauge(self, name: str, **labels: str) -> float:
        """Return the value of a metric."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        for line in self.metrics.text().decode().splitlines():
            if line.startswith((name + "{", name + " ")) and all(label in line for label in wanted):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)


@contextlib.contextmanager
def simulated(*args: Any, **options: Any) -> Iterator[SimulatedService]:
    """Run a simulated service in a block."""
    service = SimulatedService(*args, **options)
    try:
        yield service
    finally:
        service.close()


def _models(
    inputs: Mapping[str, Sequence[str]], first_arrival: bool, configs: Mapping[str, Mapping[str, Any]]
) -> tuple[ServedModel, ...]:
    nodes = tuple(Node(n, n, tuple(map(Edge, some or (REQUEST_OP,)))) for n, some in inputs.items())
    whole = ServedModel("sim", Dag(nodes, list(inputs)[-1], first_arrival=first_arrival))
    dags = {name: Dag((Node(name, name, (Edge(FEED),)),), name, source=FEED) for name in configs}
    return whole, *(ServedModel(name, dags[name], config=config) for name, config in configs.items())
