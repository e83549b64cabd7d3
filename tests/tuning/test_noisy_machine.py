"""The race on a simulated machine whose speed drifts, and on which other work runs in bursts."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from pipeline.tuning.choice import Timed
from pipeline.tuning.duel import Load
from pipeline.tuning.trials import CALLERS, LIMITS, Candidate, Race, TrialOrder

STEP_S = 0.01
START_S = 1.0
BUDGET_S = 10.0
LONG_LOOP_S = 0.5
SEEDS = range(40)


def candidate(engine: str, placement: str, shards: int = 1) -> Candidate:
    timed = Timed(engine, "fp32", "model", ((1, 16, 1e-3),))
    return Candidate(engine, "fp32", placement, False, {}, timed, 1 << 20, shards)


class NoisyMachine:
    """A machine with a clock of its own, on which instances reach a share of their speed that changes.

    The share drifts by a third in waves of several seconds, and scatters by 15 % every 10 ms. Bursts of other
    work halve it, for 0.1 to 0.8 s, about every 1.5 s.
    """

    def __init__(self, per_s: Mapping[str, float], seed: int) -> None:
        """per_s: requests per second of each placement or engine, on the quiet machine."""
        self.now = 0.0
        self._per_s = per_s
        self._chance = chance = random.Random(seed)
        self._wave_s, self._phase = chance.uniform(3, 12), chance.uniform(0, 2 * math.pi)
        self._bursts: list[tuple[float, float]] = []
        began = 0.0
        while began < 10 * BUDGET_S:
            began += chance.expovariate(1 / 1.5)
            self._bursts.append((began, began + chance.uniform(0.1, 0.8)))

    def speed(self) -> float:
        """Return the present share of the full speed."""
        drift = 0.8 + 0.2 * math.sin(self._phase + 2 * math.pi * self.now / self._wave_s)
        drift *= max(0.1, self._chance.gauss(1.0, 0.15))
        return drift * (0.5 if any(began <= self.now < end for began, end in self._bursts) else 1.0)

    def measure(self, name: str, seconds: float) -> float:
        """Return the requests per second of a loop of this length."""
        shares = []
        until = self.now + seconds
        while self.now < until:
            shares.append(self.speed())
            self.now += STEP_S
        return self._per_s[name] * math.fsum(shares) / len(shares)

    async def start(self, candidate: Candidate) -> Any:
        self.now += START_S
        machine = self
        name = candidate.placement if candidate.placement in self._per_s else candidate.engine

        class Instances:
            async def measure(
                self, limit: int, callers: int, seconds: float, *, over_http: bool = False
            ) -> Load:
                return Load(machine.measure(name, seconds), 1e-3)

            async def close(self) -> None: ...

        return Instances()


def choose_by_pairs(machine: NoisyMachine, engines: Sequence[str], placements: Sequence[str]) -> str:
    """Run the race. Return the chosen placement if there are several, or else the engine."""
    first, *others = placements
    order = TrialOrder(
        "",
        [candidate(engine, first) for engine in engines],
        [candidate(engine, placement) for engine in engines for placement in others],
        list(LIMITS),
        BUDGET_S,
    )
    race = Race(order, machine.start, lambda step, share: None, lambda: machine.now)
    best, *_ = asyncio.run(race.run())
    assert machine.now < 1.2 * BUDGET_S
    return best.placement if others else best.engine


def choose_shards(machine: NoisyMachine) -> int:
    """Run the race of worker processes and two shards. Return the chosen number of shards."""
    processes, shards = candidate("one", "process"), candidate("one", "shards", 2)
    order = TrialOrder("", [processes], [], list(LIMITS), BUDGET_S, sharded=[shards])
    race = Race(order, machine.start, lambda step, share: None, lambda: machine.now)
    best, *_ = asyncio.run(race.run())
    assert machine.now < 1.5 * BUDGET_S
    return best.shards


def choose_by_long_loops(machine: NoisyMachine, names: Sequence[str]) -> str:
    """Measure in loops of half a second, one after the other. Return the highest geometric mean."""
    logs = dict.fromkeys(names, 0.0)
    for _ in range(len(LIMITS) * len(CALLERS)):
        for name in names:
            logs[name] += math.log(machine.measure(name, LONG_LOOP_S))
    return max(logs, key=lambda name: logs[name])


@pytest.mark.parametrize("slower", [0.95, 0.9, 0.8])
def test_slower_threads_are_never_chosen(slower: float) -> None:
    per_s = {"process": 1000.0, "thread": slower * 1000}
    chosen = [choose_by_pairs(NoisyMachine(per_s, seed), ["one"], list(per_s)) for seed in SEEDS]
    assert chosen.count("thread") == 0
    long_loops = [choose_by_long_loops(NoisyMachine(per_s, seed), list(per_s)) for seed in SEEDS]
    assert long_loops.count("thread") > 0, "a comparison of means is misled"


def test_threads_that_are_much_faster_are_chosen() -> None:
    per_s = {"process": 1000.0, "thread": 1250.0}
    chosen = [choose_by_pairs(NoisyMachine(per_s, seed), ["one"], list(per_s)) for seed in SEEDS]
    assert chosen.count("thread") >= 0.9 * len(chosen)


def test_equal_placements_leave_the_default() -> None:
    per_s = {"process": 1000.0, "thread": 1000.0}
    chosen = [choose_by_pairs(NoisyMachine(per_s, seed), ["one"], list(per_s)) for seed in SEEDS]
    assert chosen.count("process") >= 0.95 * len(chosen)
    long_loops = [choose_by_long_loops(NoisyMachine(per_s, seed), list(per_s)) for seed in SEEDS]
    assert long_loops.count("thread") > 0.25 * len(long_loops)


def test_the_faster_engine_is_chosen() -> None:
    per_s = {"timed first": 1000.0, "served faster": 1080.0}
    chosen = [choose_by_pairs(NoisyMachine(per_s, seed), list(per_s), ["process"]) for seed in SEEDS]
    long_loops = [choose_by_long_loops(NoisyMachine(per_s, seed), list(per_s)) for seed in SEEDS]
    assert chosen.count("served faster") > long_loops.count("served faster")
    assert chosen.count("served faster") >= 0.9 * len(chosen)


@pytest.mark.parametrize(("ratio", "least", "most"), [(1.0, 0.0, 0.1), (1.2, 0.8, 1.0), (1.3, 0.9, 1.0)])
def test_shards_are_chosen_where_they_are_clearly_faster(ratio: float, least: float, most: float) -> None:
    per_s = {"process": 1000.0, "shards": 1000 * ratio}
    chosen = [choose_shards(NoisyMachine(per_s, seed)) for seed in SEEDS]
    assert least <= chosen.count(2) / len(chosen) <= most
