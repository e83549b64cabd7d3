"""The search of `paddlewheel tune`: coarse to fine over a bounded grid, within a bounded time.

Each step tries what the best of the step before it leaves open: engine and precision, then instances and
threads, then batches, then the queue delay. The best are then measured in turns, and one of them is chosen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from pipeline.tuning.frontier import TOLERANCE, Chosen, Measured, Round, choose, knee, survivors
from pipeline.tuning.settings import (
    Settings,
    most_candidates,
    of_batches,
    of_delays,
    of_engines,
    of_shapes,
)

KEPT = 2  # that go on from a step to the next
FINALISTS = 3
TURNS = 3  # of the finalists
CONNECTIONS = (1, 4, 16, 64)
SEARCH_SHARE = 0.6  # of the budget; the finals have the rest
START_S = 3.0  # of a candidate, as a guess from which rounds get their length
_SHORTEST_S, _LONGEST_S = 0.3, 4.0
_FALLS = 0.6  # of the throughput before: less is no noise


class Wanted(msgspec.Struct, frozen=True):
    """What is tuned for and within what.

    engines, precisions: candidates. connections: at each number of them a round is measured, in this order.
    p99_ms: None for the knee of the frontier.
    """

    engines: tuple[str, ...]
    precisions: tuple[str, ...]
    cores: int
    budget_s: float
    p99_ms: float | None = None
    connections: tuple[int, ...] = CONNECTIONS

    def most_candidates(self) -> int:
        return most_candidates(len(self.engines), len(self.precisions), self.cores, KEPT)

    def round_s(self, candidates: int, share: float) -> float:
        """Seconds of a round, so that so many candidates fit into a share of the budget."""
        each_s = self.budget_s * share / candidates - START_S
        return min(_LONGEST_S, max(_SHORTEST_S, each_s / len(self.connections)))

    def goes_on(self, before: Round | None, last: Round) -> bool:
        """Whether more connections may be of use: not where p99 is far over, or throughput falls."""
        ordered = sorted(last.latencies_ms)
        if self.p99_ms is not None and ordered[len(ordered) // 2] > self.p99_ms:
            return False
        pace = len(last.latencies_ms) / last.seconds
        return before is None or pace > _FALLS * len(before.latencies_ms) / before.seconds


# Settings, seconds of a round, when it has to end (by the clock): what was measured of them.
Measure = Callable[[Settings, float, float], Measured]


class Search:
    """Tries settings within the budget. `tried` has all of them, `finals` those that were measured in turns.

    left_out: settings for which there was no time.
    """

    def __init__(
        self,
        wanted: Wanted,
        baseline: Settings,
        measure: Measure,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.tried: dict[Settings, Measured] = {}
        self.finals: dict[Settings, Measured] = {}
        self.left_out: list[Settings] = []
        self._wanted = wanted
        self._baseline = baseline
        self._measure = measure
        self._clock = clock

    def run(self) -> Chosen:
        """Raises ConfigError, with each one's reason, where no candidate can run the model."""
        wanted = self._wanted
        begun = self._clock()
        self._search_until = begun + SEARCH_SHARE * wanted.budget_s
        self._until = begun + wanted.budget_s
        self._round_s = wanted.round_s(wanted.most_candidates(), SEARCH_SHARE)
        self._try([self._baseline, *of_engines(wanted.engines, wanted.precisions, wanted.cores)])
        for step in (lambda best: of_shapes(best, wanted.cores), of_batches, of_delays):
            best = survivors(list(self.tried.values()), wanted.p99_ms, KEPT)
            self._try([settings for one in best for settings in step(one.settings)])
        self._take_turns()
        return self.choice()

    def choice(self) -> Chosen:
        """What config.yml says, where that is as good as the best within what two measurements differ by."""
        best = choose(self.measured(), self._wanted.p99_ms)
        own = self.finals.get(self._baseline)
        if own is None:
            return best
        kept = choose([own], self._wanted.p99_ms)
        return kept if self._as_good(kept, best) else best

    def baseline(self) -> Chosen | None:
        """What config.yml gives as it is; None where that can't be run."""
        own = self.finals.get(self._baseline) or self.tried.get(self._baseline)
        return choose([own], self._wanted.p99_ms) if own and not own.refused else None

    def measured(self) -> list[Measured]:
        """Those of the finals, else all that were tried: of what the choice is made."""
        return list(self.finals.values() or self.tried.values())

    def _as_good(self, kept: Chosen, best: Chosen) -> bool:
        if kept.met != best.met:
            return False
        if self._wanted.p99_ms is None:
            return knee(kept.point) >= knee(best.point) * (1 - TOLERANCE)
        if not best.met:
            return kept.point.p99_ms <= best.point.p99_ms * (1 + TOLERANCE)
        return kept.point.per_s >= best.point.per_s * (1 - TOLERANCE)

    def _try(self, candidates: Iterable[Settings]) -> None:
        for settings in dict.fromkeys(candidates):
            if settings in self.tried:
                continue
            # The first is measured whatever the budget: without it there would be nothing to choose.
            if self.tried and self._clock() >= self._search_until:
                self.left_out.append(settings)
            else:
                self.tried[settings] = self._measure(settings, self._round_s, self._until)

    def _take_turns(self) -> None:
        """Measures the best again, in turns: what a machine does meanwhile then concerns all alike."""
        finalists = [one.settings for one in self._finalists()]
        left_s = max(0.0, self._until - self._clock())
        share = left_s / self._wanted.budget_s
        round_s = self._wanted.round_s(max(1, len(finalists) * TURNS), share)
        longest_s = 0.0
        for _ in range(TURNS):
            begun = self._clock()
            if begun + longest_s > self._until:
                return
            again = [self._measure(settings, round_s, self._until) for settings in finalists]
            if self._clock() > self._until and any(one.refused for one in again):
                return  # there was no time left for all of them
            for one in again:
                before = self.finals.pop(one.settings, Measured(one.settings))
                if not one.refused:
                    self.finals[one.settings] = Measured(one.settings, before.rounds + one.rounds)
            finalists = list(self.finals)
            longest_s = max(longest_s, self._clock() - begun)

    def _finalists(self) -> Sequence[Measured]:
        best = survivors(list(self.tried.values()), self._wanted.p99_ms, FINALISTS)
        own = self.tried[self._baseline]
        return best if own in best or own.refused else [*best, own]
