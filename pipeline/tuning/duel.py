"""Comparison of two settings by pairs of short loops, for machines whose speed changes meanwhile."""

from __future__ import annotations

import statistics
from typing import NamedTuple

NOISE = 1.03  # a pair with a ratio below this favours neither side
FAR = 2.0  # two pairs with this ratio are enough
MIN_PAIRS, MAX_PAIRS = 4, 8
_MAX_MISSES = 2  # pairs of `MAX_PAIRS` that do not favour a clear winner


class Load(NamedTuple):
    """Measured load of a candidate: requests per second, CPU seconds per request, and other CPU use."""

    per_s: float
    cpu_s: float  # of the instances and of the front
    other_cores: float = 0.0  # that other work kept busy meanwhile


class Duel:
    """Compares a challenger with an incumbent by pairs of load tests under the same number of callers.

    The load tests of a pair directly follow each other, so slow drifts of the machine's speed cancel out in
    their ratio. The median ignores pairs with a burst of other work in one test.
    """

    def __init__(self, *, has_default: bool, min_ratio: float = 1.0) -> None:
        """has_default: the incumbent is the documented default, and only a clear difference replaces it.

        min_ratio: minimum ratio of the challenger's speed to the default's to replace the default.
        """
        self._has_default = has_default
        self._min_ratio = min_ratio
        self._pairs: list[tuple[Load, Load]] = []  # loads of the incumbent and of the challenger

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, incumbent: Load, challenger: Load) -> None:
        """Add the measured loads of a pair of load tests."""
        self._pairs.append((incumbent, challenger))

    def ratio(self, *, by_cpu: bool) -> float:
        """Return the median of the challenger's speed relative to the incumbent's.

        by_cpu: compare requests per CPU second instead of requests per second.
        """
        return statistics.median(self._ratios(by_cpu=by_cpu))

    def is_decided(self, *, by_cpu: bool) -> bool:
        """Return whether the winner is certain, or enough pairs were measured."""
        ratios = self._ratios(by_cpu=by_cpu)
        # The default stays as soon as too many pairs do not favour the challenger.
        is_hopeless = self._has_default and _count_misses(ratios) > _MAX_MISSES
        losing = [1 / ratio for ratio in ratios]
        return is_hopeless or _is_clear(ratios) or _is_clear(losing) or len(ratios) >= MAX_PAIRS

    def is_promising(self, *, by_cpu: bool) -> bool:
        """Return whether an undecided challenger would win if further pairs had the same results."""
        return self.ratio(by_cpu=by_cpu) >= max(NOISE, self._min_ratio)

    def is_won(self, *, by_cpu: bool) -> bool:
        """Return whether the challenger replaces the incumbent. by_cpu: compare requests per CPU second."""
        ratios = self._ratios(by_cpu=by_cpu)
        median = statistics.median(ratios)
        if not self._has_default:
            return median > 1
        return _is_clear(ratios) and median >= self._min_ratio

    def _ratios(self, *, by_cpu: bool) -> list[float]:
        """Return the challenger's speed relative to the incumbent's in each pair.

        With by_cpu, the challenger of a default has to win in throughput, too: a setting that leaves cores
        idle merges more requests into a batch, and uses less CPU time.
        """
        rates = [challenger.per_s / incumbent.per_s for incumbent, challenger in self._pairs]
        if not by_cpu:
            return rates
        by_cpu_time = [incumbent.cpu_s / challenger.cpu_s for incumbent, challenger in self._pairs]
        return list(map(min, rates, by_cpu_time)) if self._has_default else by_cpu_time


def _is_clear(ratios: list[float]) -> bool:
    """Return whether nearly all ratios are above 1 by more than noise, or two are far above."""
    if len(ratios) >= 2 and min(ratios) >= FAR:
        return True
    misses = _count_misses(ratios)
    allowed = _MAX_MISSES * (len(ratios) - MIN_PAIRS) // (MAX_PAIRS - MIN_PAIRS)
    return len(ratios) >= MIN_PAIRS and misses <= allowed


def _count_misses(ratios: list[float]) -> int:
    """Return the number of ratios that are not above 1 by more than noise."""
    return sum(ratio <= NOISE for ratio in ratios)
