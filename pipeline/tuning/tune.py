"""The search of `paddlewheel tune` for the best settings of an Op, by load tests within a time budget.

The steps try engine and precision, then instances and threads, then batches, then the queue delay. Each step
starts from the best candidates of the previous step. The finalists are then measured in turns, and one is
chosen from the Pareto frontier of throughput and p99 latency.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from pipeline.errors import ConfigError

BATCHES: tuple[int | str, ...] = (1, 8, 32, "auto")
DELAYS_MS = (0, 1, 2)
MODEL_SECTION = "local_service_conf"
OP_KEYS = ("concurrency", "batch_size", "auto_batching_timeout")
MODEL_KEYS = ("engine", "precision", "thread_num")


class Settings(msgspec.Struct, frozen=True):
    """Settings of an Op that the search varies: engine, precision, instances, threads, batch and delay."""

    engine: str
    precision: str
    instances: int  # `concurrency`
    threads: int  # `thread_num`
    batch: int | str  # `batch_size`
    delay_ms: float = 0  # `auto_batching_timeout`

    @property
    def name(self) -> str:
        """Name for tables, e.g. "openvino fp32, 2 x 1, batch 32, delay 0 ms"."""
        shape = f"{self.instances} x {self.threads}"
        return f"{self.engine} {self.precision}, {shape}, batch {self.batch}, delay {self.delay_ms:g} ms"

    def of_op(self) -> dict[str, Any]:
        """Return the settings as keys of `op.<name>` in config.yml."""
        return dict(zip(OP_KEYS, (self.instances, self.batch, self.delay_ms), strict=True))

    def of_model(self) -> dict[str, Any]:
        """Return the settings as keys of `op.<name>.local_service_conf` in config.yml."""
        return dict(zip(MODEL_KEYS, (self.engine, self.precision, self.threads), strict=True))

    def laid_over(self, section: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of an Op's section of config.yml with these settings in place of its own."""
        return {**section, **self.of_op(), MODEL_SECTION: {**section[MODEL_SECTION], **self.of_model()}}


def parse_settings(section: dict[str, Any], engine: str) -> Settings:
    """Return the settings in an Op's section of the resolved config.yml.

    engine: default for a section that names no engine.
    """
    conf = section[MODEL_SECTION]
    named = conf.get("engine") or engine
    op = [section[key] for key in OP_KEYS]
    return Settings(named, conf["precision"], op[0], conf["thread_num"], op[1], op[2])


def shapes(cores: int) -> list[tuple[int, int]]:
    """Return the pairs (instances, threads per instance) to try on a machine with this number of cores.

    Their product is over half of the cores. Added are a single thread, and one instance more than there are
    cores.
    """
    sizes = sorted({cores, *(2**power for power in range(cores.bit_length()))})
    full = [(i, t) for i, t in itertools.product(sizes, sizes) if cores / 2 < i * t <= cores]
    return sorted({(1, 1), (cores + 1, 1), *full}, key=lambda shape: (-shape[0], shape[1]))


def of_engines(engines: Sequence[str], precisions: Sequence[str], cores: int) -> list[Settings]:
    """Return the candidates of the first step: each engine in each precision, with an instance per core."""
    return [Settings(e, p, cores, 1, 32) for e, p in itertools.product(engines, precisions)]


def of_shapes(best: Settings, cores: int) -> list[Settings]:
    """Return candidates that differ from `best` in the numbers of instances and threads."""
    return [msgspec.structs.replace(best, instances=i, threads=t) for i, t in shapes(cores)]


def of_batches(best: Settings) -> list[Settings]:
    """Return candidates that differ from `best` in the batch size."""
    return [msgspec.structs.replace(best, batch=batch) for batch in BATCHES]


def of_delays(best: Settings) -> list[Settings]:
    """Return candidates that differ from `best` in the queue delay; a batch of 1 needs no delay."""
    delays = DELAYS_MS if best.batch != 1 else DELAYS_MS[:1]
    return [msgspec.structs.replace(best, delay_ms=delay) for delay in delays]


def max_candidates(engines: int, precisions: int, cores: int, beam_width: int) -> int:
    """Return the maximum number of candidates of a search.

    beam_width: number of candidates kept after each step.
    """
    later = len(shapes(cores)) + len(BATCHES) + len(DELAYS_MS)
    return 1 + engines * precisions + beam_width * later


TOLERANCE = 0.05  # difference of throughput and p99 between two measurements of the same settings


class Round(msgspec.Struct, frozen=True):
    """One load test of a service: latencies of its requests with a number of connections in a closed loop."""

    connections: int
    seconds: float
    latencies_ms: tuple[float, ...]  # of the answered requests
    cpu_s: float = 0.0  # of the service with its workers
    failed: int = 0  # refused or lost requests
    error: str = ""  # message of the first failed request


class Point(msgspec.Struct, frozen=True):
    """Throughput and latency percentiles of some settings at a number of connections, over all tests."""

    connections: int
    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float  # CPU time of the service per request
    cores: float  # busy cores of the service
    rounds: int


class Measured(msgspec.Struct, frozen=True):
    """Settings with the results of their load tests, or with the reason why they can't be used."""

    settings: Settings
    rounds: tuple[Round, ...] = ()
    refused: str = ""  # the reason why the settings can't be used; empty if they can

    def points(self) -> list[Point]:
        """Return throughput and latency for each number of connections, ascending."""
        levels = sorted({round_.connections for round_ in self.rounds})
        return [_point([round_ for round_ in self.rounds if round_.connections == level]) for level in levels]


class Chosen(msgspec.Struct, frozen=True):
    """The best settings, and their throughput and latency."""

    settings: Settings
    point: Point  # the point for which they were chosen
    met: bool = True  # whether the requested p99 holds


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values by nearest rank. percent: 0 to 100."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def knee(point: Point) -> float:
    """Return the score by which points are ranked if no p99 is requested: throughput squared over p99.

    A higher score is better. 1% more throughput is worth 2% more p99.
    """
    return point.per_s**2 / max(point.p99_ms, 1e-6)


def frontier(measured: Iterable[Measured]) -> list[tuple[Settings, Point]]:
    """Return the points that no other point beats in throughput and p99 (Pareto frontier), by throughput."""
    points = [
        (candidate.settings, point)
        for candidate in measured
        if not candidate.refused
        for point in candidate.points()
    ]
    best: list[tuple[Settings, Point]] = []
    for settings, point in sorted(points, key=lambda each: (-each[1].per_s, each[1].p99_ms)):
        if not best or point.p99_ms < best[-1][1].p99_ms:
            best.append((settings, point))
    return best[::-1]


def choose(measured: Iterable[Measured], p99_ms: float | None) -> Chosen:
    """Return the point of greatest throughput within the requested p99; without a request, the best `knee`.

    If no point meets the p99, return the point of lowest p99, with `met` false. Raises ConfigError, with the
    reason of each candidate, if nothing was measured.
    """
    measured = list(measured)
    points = [
        (candidate.settings, point)
        for candidate in measured
        if not candidate.refused
        for point in candidate.points()
    ]
    if not points:
        reasons = "\n".join(
            f"  {candidate.settings.name}: {candidate.refused or 'no answer'}" for candidate in measured
        )
        raise ConfigError(f"no candidate can run the model here:\n{reasons}")
    if p99_ms is None:
        return Chosen(*max(points, key=lambda each: knee(each[1])))
    within_p99 = [each for each in points if each[1].p99_ms <= p99_ms]
    if within_p99:
        return Chosen(*max(within_p99, key=lambda each: each[1].per_s))
    return Chosen(*min(points, key=lambda each: each[1].p99_ms), met=False)


def survivors(measured: Sequence[Measured], p99_ms: float | None, count: int) -> list[Measured]:
    """Return the best `count` settings, best first, without settings that others beat at every load."""
    able = [candidate for candidate in measured if not candidate.refused and candidate.rounds]
    undominated = [
        candidate
        for candidate in able
        if not any(_dominates(other, candidate) for other in able if other is not candidate)
    ]
    return sorted(
        undominated, key=lambda candidate: _rank(choose([candidate], p99_ms), p99_ms), reverse=True
    )[:count]


def _rank(best: Chosen, p99_ms: float | None) -> tuple[bool, float]:
    """Return the sort key by which settings are ranked: of their best point, higher is better."""
    if p99_ms is None:
        return True, knee(best.point)
    return best.met, best.point.per_s if best.met else -best.point.p99_ms


def _dominates(better: Measured, worse: Measured) -> bool:
    """Return whether `better` beats each point of `worse`, in throughput and p99, by more than noise."""
    factor = 1 + TOLERANCE
    return all(
        any(
            better_point.per_s >= point.per_s * factor and better_point.p99_ms * factor <= point.p99_ms
            for better_point in better_points
        )
        for better_points in [better.points()]
        for point in worse.points()
    )


def _point(rounds: Sequence[Round]) -> Point:
    """Return throughput, latency and CPU time over load tests with the same number of connections."""
    latencies = sorted(ms for round_ in rounds for ms in round_.latencies_ms)
    seconds = sum(round_.seconds for round_ in rounds)
    cpu_s = sum(round_.cpu_s for round_ in rounds)
    return Point(
        rounds[0].connections,
        len(latencies) / seconds,
        percentile(latencies, 50),
        percentile(latencies, 99),
        cpu_s * 1e3 / len(latencies),
        cpu_s / seconds,
        len(rounds),
    )


BEAM_WIDTH = 2  # candidates that survive a step
FINALISTS = 3
TURNS = 3  # measurements of each finalist
CONNECTIONS = (1, 4, 16, 64)
SEARCH_SHARE = 0.6  # of the budget; the finals have the rest
START_S = 3.0  # estimated start of a candidate, from which the length of rounds follows
_SHORTEST_S, _MAX_S = 0.3, 4.0
_MIN_GAIN = 0.6  # of the previous throughput; a lower throughput is no noise


Step = Callable[[Settings], list[Settings]]  # the best settings so far -> candidates


class Goal(msgspec.Struct, frozen=True):
    """Goal and limits of a search: engines and precisions to try, seconds, cores, and the requested p99."""

    engines: tuple[str, ...]  # candidates
    precisions: tuple[str, ...]  # candidates
    cores: int
    budget_s: float
    p99_ms: float | None = None  # None: the knee of the frontier
    connections: tuple[int, ...] = CONNECTIONS  # a round is measured at each number, in this order

    def first(self) -> list[Settings]:
        """Return the candidates of the first step, besides the unchanged settings."""
        return of_engines(self.engines, self.precisions, self.cores)

    def steps(self) -> tuple[Step, ...]:
        """Return the later steps, each of which varies the best candidates of the step before."""
        return (lambda best: of_shapes(best, self.cores)), of_batches, of_delays

    def max_candidates(self) -> int:
        """Return the maximum number of candidates that a search for this goal measures."""
        return max_candidates(len(self.engines), len(self.precisions), self.cores, BEAM_WIDTH)

    def round_s(self, candidates: int, share: float) -> float:
        """Return the seconds of one load test, so that all candidates fit into a share of the budget."""
        each_s = self.budget_s * share / candidates - START_S
        return min(_MAX_S, max(_SHORTEST_S, each_s / len(self.connections)))

    def goes_on(self, before: Round | None, last: Round) -> bool:
        """Return whether another load test with more connections makes sense.

        It does not if the median latency is over the requested p99, or if the throughput has fallen far.
        """
        ordered = sorted(last.latencies_ms)
        if self.p99_ms is not None and ordered[len(ordered) // 2] > self.p99_ms:
            return False
        pace = len(last.latencies_ms) / last.seconds
        return before is None or pace > _MIN_GAIN * len(before.latencies_ms) / before.seconds


# (settings, seconds of a round, latest end by the clock) -> measurement
Measure = Callable[[Settings, float, float], Measured]


class Search:
    """Search for the best settings of an Op by load tests: runs all steps within the time budget."""

    def __init__(
        self,
        goal: Goal,
        baseline: Settings,
        measure: Measure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """baseline: the settings of the unchanged config.yml. measure: runs the load tests of a candidate."""
        self.tried: dict[Settings, Measured] = {}
        self.finals: dict[Settings, Measured] = {}  # measured in turns
        self.left_out: list[Settings] = []  # no time was left
        self._goal = goal
        self._baseline = baseline
        self._measure = measure
        self._clock = clock

    def run(self) -> Chosen:
        """Run all steps, and return the best settings.

        Raises ConfigError, with each reason, if no candidate works.
        """
        goal = self._goal
        begun = self._clock()
        self._search_until = begun + SEARCH_SHARE * goal.budget_s
        self._until = begun + goal.budget_s
        self._round_s = goal.round_s(goal.max_candidates(), SEARCH_SHARE)
        self._try([self._baseline, *goal.first()])
        for step in goal.steps():
            best = survivors(list(self.tried.values()), goal.p99_ms, BEAM_WIDTH)
            self._try([settings for survivor in best for settings in step(survivor.settings)])
        self._take_turns()
        return self.choice()

    def choice(self) -> Chosen:
        """Return the best settings, or the unchanged config.yml if it is equally good within TOLERANCE."""
        best = choose(self.measured(), self._goal.p99_ms)
        baseline = self.finals.get(self._baseline)
        if baseline is None:
            return best
        baseline_choice = choose([baseline], self._goal.p99_ms)
        return baseline_choice if self._as_good(baseline_choice, best) else best

    def baseline(self) -> Chosen | None:
        """Return the result of the unchanged config.yml; None if the service does not run with it."""
        measured = self.finals.get(self._baseline) or self.tried.get(self._baseline)
        return choose([measured], self._goal.p99_ms) if measured and not measured.refused else None

    def measured(self) -> list[Measured]:
        """Return the load-tested settings to choose from: the finalists, or all if there were no finals."""
        return list(self.finals.values() or self.tried.values())

    def _as_good(self, baseline_choice: Chosen, best: Chosen) -> bool:
        """Return whether the unchanged config.yml is as good as the best settings, up to TOLERANCE."""
        if baseline_choice.met != best.met:
            return False
        if self._goal.p99_ms is None:
            return knee(baseline_choice.point) >= knee(best.point) * (1 - TOLERANCE)
        if not best.met:
            return baseline_choice.point.p99_ms <= best.point.p99_ms * (1 + TOLERANCE)
        return baseline_choice.point.per_s >= best.point.per_s * (1 - TOLERANCE)

    def _try(self, candidates: Iterable[Settings]) -> None:
        """Load-test the settings that were not tested yet, until the time is used up."""
        for settings in dict.fromkeys(candidates):
            if settings in self.tried:
                continue
            # The first candidate is measured in any case: without it there would be nothing to choose.
            if self.tried and self._clock() >= self._search_until:
                self.left_out.append(settings)
            else:
                self.tried[settings] = self._measure(settings, self._round_s, self._until)

    def _take_turns(self) -> None:
        """Measure the finalists again, alternately, so that other load on the machine affects all alike."""
        finalists = [finalist.settings for finalist in self._finalists()]
        left_s = max(0.0, self._until - self._clock())
        share = left_s / self._goal.budget_s
        round_s = self._goal.round_s(max(1, len(finalists) * TURNS), share)
        longest_s = 0.0
        for _ in range(TURNS):
            begun = self._clock()
            if begun + longest_s > self._until:
                return
            again = [self._measure(settings, round_s, self._until) for settings in finalists]
            if self._clock() > self._until and any(finalist.refused for finalist in again):
                return  # there was no time left for all of them
            for finalist in again:
                before = self.finals.pop(finalist.settings, Measured(finalist.settings))
                if not finalist.refused:
                    self.finals[finalist.settings] = Measured(
                        finalist.settings, before.rounds + finalist.rounds
                    )
            finalists = list(self.finals)
            longest_s = max(longest_s, self._clock() - begun)

    def _finalists(self) -> Sequence[Measured]:
        """Return the settings for the final load tests: the best settings, and the unchanged config.yml."""
        best = survivors(list(self.tried.values()), self._goal.p99_ms, FINALISTS)
        baseline = self.tried[self._baseline]
        return best if baseline in best or baseline.refused else [*best, baseline]
