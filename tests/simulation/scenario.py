"""Scenario of a run: the service, its load and its faults, all drawn from the seed."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from typing import Any

from pipeline.api.app import App, ServedModel
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.op import REQUEST_OP
from pipeline.api.sequences import SequenceRules
from pipeline.config.config_file import ServiceConfig
from pipeline.models.sequence_tensors import END, START
from tests.simulation.clients import ARRAY_BYTES, LARGE_ARRAY_BYTES, Order
from tests.simulation.faults import FAULTS
from tests.simulation.workers import Mode, Speed, StartPlan

FOLDER = "/nonexistent/simulation"
REQUEST_TIMEOUT_S = 30.0
LONG_IDLE_S = 10_000.0  # no sequence expires
SHAPES = {
    "single": {"a": ()},
    "chain": {"a": (), "b": ("a",)},
    "join": {"a": (), "b": (), "c": ("a", "b")},
    "first": {"a": (), "b": (), "c": ("a", "b")},
}
# Codes of deaths, as of `Popen`: exits, signals, and real-time signals.
DEATHS = [1, 3, 255, -6, -9, -11, -15, -34, -35, -40, -63, -64]


@dataclass(frozen=True)
class Fault:
    """A fault and when it begins, in seconds from the first request."""

    at_s: float
    kind: str


@dataclass
class Scenario:
    """The service, load and faults of one seed.

    orders: of each caller. pauses_s: of each caller between two requests; negative for a flood. early_stop_s:
    seconds until the service is stopped amid the load; None where it is stopped after it. plans: how the
    first starts go, by Op. lone_bytes: a request with more input bytes gets a dispatch of its own.
    """

    seed: int
    shape: str
    app: App
    speeds: dict[str, Speed]
    batching: dict[str, Any]
    cores: int
    socket_bytes: int
    mode: Mode
    orders: list[list[Order]]
    pauses_s: list[float]
    faults: list[Fault]
    load_s: float
    early_stop_s: float | None = None
    plans: dict[str, list[StartPlan]] = field(default_factory=dict)
    lone_bytes: int = LARGE_ARRAY_BYTES

    @property
    def retries_time(self) -> bool:
        """Whether anything is run again because it took too long."""
        dag = self.app.config.dag
        return dag.retry > 1 or any(op.retry > 1 for op in self.app.config.op.values())

    def describe(self) -> str:
        """Return the service in one line."""
        ops = {name: op.model_dump(exclude_unset=True) for name, op in self.app.config.op.items()}
        dag = self.app.config.dag.model_dump(exclude_unset=True)
        faults = [f"{fault.kind}@{fault.at_s:.2f}" for fault in self.faults]
        return (
            f"{self.shape}, {self.mode.value}, {ops}, {dag}, dynamic_batching {self.batching}, "
            f"cores {self.cores}, "
            f"requests {sum(map(len, self.orders))} of {len(self.orders)} callers in {self.load_s:g} s, "
            f"faults {faults}, early stop {self.early_stop_s}, first starts {self.plans}"
        )


def draw(seed: int, *, sequences: bool = False) -> Scenario:
    """Draw the scenario of a seed. sequences: of one Op whose requests form sequences with declared state."""
    scenario = _draw(seed, {"single"} if sequences else set(SHAPES), may_batch=not sequences)
    if sequences:
        scenario.app = replace(scenario.app, sequences={"a": SequenceRules(idle_s=LONG_IDLE_S)})
        rng = random.Random(seed)
        for order in itertools.chain(*scenario.orders):
            order.sequence = rng.choice("xyz")
            order.flags = rng.choices((0, START, END, START | END), (6, 3, 1, 1))[0]
    return scenario


def _draw(seed: int, shapes: set[str], *, may_batch: bool) -> Scenario:
    rng = random.Random(seed)
    shape = rng.choices(list(SHAPES), (6, 2, 1, 1))[0]
    shape = shape if shape in shapes else min(shapes)
    batching = _draw_batching(rng) if may_batch and shape == "single" and rng.random() < 0.4 else {}
    ops = {name: _draw_op(rng) for name in SHAPES[shape]}
    if may_batch:
        _draw_scaling(random.Random(f"scaling {seed}"), ops)
    dag = _draw_dag(rng)
    if batching:
        dag["retry"] = 1  # requests for a model of a repository are never begun anew
    config = ServiceConfig.model_validate({"http_port": 9292, "dag": dag, "op": ops})
    app = App(
        "sim", _models(shape, batching), config, f"{FOLDER}/web_service.py", (), FOLDER, Examples(),
        exit_on_error=rng.random() < 0.7,
    )  # fmt: skip
    load_s = rng.choice((1.0, 4.0, 12.0))
    run_s = rng.choice((0.001, 0.002, 0.01, 0.05, 0.3))
    orders, pauses_s = _draw_load(rng, list(ops), bool(batching), load_s)
    if run_s < 0.005:
        _slow_some(rng, orders)
    kinds = rng.choices(
        list(FAULTS),
        [3 if kind in ("hang", "hang_thread", "pause") else 1 for kind in FAULTS],
        k=rng.choice((0, 1, 2, 3, 5, 8)),
    )
    faults = sorted((Fault(rng.uniform(0.0, load_s), kind) for kind in kinds), key=lambda fault: fault.at_s)
    speeds = {
        name: Speed((0.1, rng.choice((0.3, 3.0))), rng.uniform(0.8, 1.2) * run_s, rng.uniform(0.0002, 0.002))
        for name in ops
    }
    return Scenario(
        seed, shape, app, speeds, batching, rng.randint(1, 4), rng.choice((300, 64_000, 200_000)),
        rng.choice([Mode.TOGETHER, Mode.BATCHES, Mode.HOOKS][: 3 if run_s < 0.02 else 2]), orders,
        pauses_s, faults, load_s,
        early_stop_s=rng.uniform(0.0, load_s) if rng.random() < 0.25 else None,
        plans={name: _draw_starts(rng) for name in ops},
        lone_bytes=rng.choice((ARRAY_BYTES + 1000, 10 * LARGE_ARRAY_BYTES)),
    )  # fmt: skip


def _draw_dag(rng: random.Random) -> dict[str, Any]:
    timeout_s = rng.choice((30.0, 30.0, 30.0, 8.0))
    return {
        "is_thread_op": rng.random() < 0.35,
        "request_timeout": timeout_s,
        "drain_timeout": timeout_s + 1.0,
        "max_pending_requests": rng.choice((1000, 1000, 30, 6)),
        "use_profile": rng.random() < 0.3,
        "retry": rng.choice((1, 1, 1, 2)),
    }


def _draw_op(rng: random.Random) -> dict[str, Any]:
    section: dict[str, Any] = {
        "concurrency": rng.choice((1, 2, 2, 3)),
        "batch_size": rng.choice((1, 1, 2, 4, 8)),
        "auto_batching_timeout": rng.choice((0, 0, 5, 50)),
        "crash_retry": rng.random() < 0.75,
        "probe_interval": rng.choice((10.0, 1.0, 1.0, 0.0)),
        "start_timeout": rng.choice((30.0, 10.0)),
    }
    if rng.random() < 0.35:
        section |= {"timeout": rng.choice((400, 1500)), "retry": rng.choice((1, 2, 3))}
    if rng.random() < 0.3:
        section["run_timeout"] = rng.choice((2.0, 5.0))
    if rng.random() < 0.2:
        section["max_requests_per_worker"] = rng.choice((5, 20))
    return section


def _draw_scaling(rng: random.Random, ops: dict[str, dict[str, Any]]) -> None:
    """Let some Ops have more instances while requests wait."""
    for section in ops.values():
        if rng.random() < 0.2:
            section["max_concurrency"] = section["concurrency"] + rng.choice((1, 3))
            section["scale_wait"] = rng.choice((0.01, 0.1))


def _draw_batching(rng: random.Random) -> dict[str, Any]:
    """A model's `dynamic_batching`, as config.pbtxt has it."""
    batching: dict[str, Any] = {}
    if rng.random() < 0.5:
        batching["preserve_ordering"] = True
    if rng.random() < 0.3:
        batching["preferred_batch_size"] = [2, 4]
    if rng.random() < 0.7:
        policy: dict[str, Any] = {"default_timeout_microseconds": rng.choice((20_000, 300_000, 20_000_000))}
        if rng.random() < 0.3:
            policy["timeout_action"] = "DELAY"
        if rng.random() < 0.3:
            policy["max_queue_size"] = 5
        policy["allow_timeout_override"] = rng.random() < 0.5
        batching["default_queue_policy"] = policy
    return batching


def _draw_load(
    rng: random.Random, ops: list[str], batching: bool, load_s: float
) -> tuple[list[list[Order]], list[float]]:
    """The orders of each caller; floods are callers that send all at once."""
    count = rng.randint(20, 70)
    callers = rng.choice((1, 2, 4, 8))
    hostile = rng.choice((0.0, 0.0, 0.03, 0.1))
    priorities = rng.random() < 0.3
    orders: list[list[Order]] = [[] for _ in range(callers)]
    for _ in range(count):
        rng.choice(orders).append(_draw_order(rng, ops, hostile, priorities, batching))
    flooding = rng.random() < 0.5
    pauses_s = [
        0.0 if flooding and index == 0 else load_s / max(1, len(some)) for index, some in enumerate(orders)
    ]
    if flooding:
        orders.append([_draw_order(rng, ops, 0.0, False, False) for _ in range(rng.choice((10, 30, 60)))])
        pauses_s.append(-1.0)
    return orders, pauses_s


def _slow_some(rng: random.Random, orders: list[list[Order]]) -> None:
    """Have a few requests take long in a fast model, whose next dispatch is sent early."""
    for some in orders:
        for order in some:
            if order.kind == "answer" and rng.random() < 0.05:
                order.kind, order.slow_s = "slow", rng.choice((0.6, 3.0))


def _draw_order(
    rng: random.Random, ops: list[str], hostile: float, priorities: bool, batching: bool
) -> Order:
    order = Order(node=rng.choice(ops))
    if rng.random() < hostile:
        order.kind = rng.choice(("poison", "poison", "hang", "hang_thread", "error"))
        order.code = rng.choice(DEATHS)
    elif rng.random() < 0.05:
        order.kind, order.slow_s = "slow", rng.choice((0.1, 0.5, 3.0))
    elif rng.random() < 0.05:
        order.kind = "error"
    order.size = rng.choice((5_000, 300_000)) if rng.random() < 0.1 else 40
    order.array_bytes = rng.choice((0, ARRAY_BYTES, LARGE_ARRAY_BYTES))
    if rng.random() < 0.1:
        order.timeout_s = rng.choice((0.01, 0.2, 2.0))
    if rng.random() < 0.1:
        order.leaves_s = rng.choice((0.0, 0.001, 0.02, 0.5))
    if priorities:
        order.priority = rng.choice((0, 1, 2))
    if batching and rng.random() < 0.3:
        order.queue_timeout_us = rng.choice((1_000, 50_000))
    return order


def _draw_starts(rng: random.Random) -> list[StartPlan]:
    """How the first starts of an Op go: mostly well, one may fail, or each may."""
    chance = rng.random()
    if chance < 0.85:
        return []
    if chance < 0.97:
        kind = rng.choice(("exit", "exit", "crash", "slow"))
        return [StartPlan(kind, extra_s=15.0 if kind == "slow" else 0.0, code=rng.choice(DEATHS))]
    return [StartPlan(rng.choice(("raise", "refuse", "exit"))) for _ in range(4)]


def _models(shape: str, batching: dict[str, Any]) -> tuple[ServedModel, ...]:
    inputs = SHAPES[shape]
    nodes = tuple(Node(n, n, tuple(map(Edge, given or (REQUEST_OP,)))) for n, given in inputs.items())
    whole = ServedModel("sim", Dag(nodes, list(inputs)[-1], first_arrival=shape == "first"))
    if not batching:
        return (whole,)
    config = {"dynamic_batching": batching, "max_batch_size": 8}
    return whole, ServedModel("a", Dag((Node("a", "a", (Edge(FEED),)),), "a", source=FEED), config=config)
