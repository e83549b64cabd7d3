"""What a run of a model costs, by its rows and their length: measured once, kept up to date by real runs.

Pure: no clock, no predictor. Costs are seconds of CPU where a run has one thread, which a busy host hardly
changes; else seconds. They are not proportional to rows: a run has a price of its own, so that single short
texts are dear, and large runs leave the caches, so that one of 32 rows may cost half as much again, a row, as
one of 8. The batch plan asks here where to cut.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import product

FOLLOWS = 0.05  # how far one real run moves what is known of its size
MOST_OFF = 1.5  # a run that took longer than so many times the expected was disturbed, and counts as that
_MOVED = 1.05  # a measured size whose time has changed so much: what was worked out by it is worked out anew


class RunCosts:
    """Seconds of a run, for any number of rows and any length, from those of a few measured sizes.

    points: seconds by (rows, length), for every one of a few numbers of rows with every one of a few lengths;
    the same with `note`d runs later. In between, time is taken to be a power of either (a straight line in
    logarithms); beyond the largest measured size, proportional to it.
    """

    def __init__(
        self, points: Mapping[tuple[int, int], float], most_rows: int, *, follows: bool = True
    ) -> None:
        """most_rows: of a run that `of_length` is asked for. follows: whether `note` has an effect."""
        self._rows = sorted({rows for rows, _ in points})
        self._lengths = sorted({length for _, length in points})
        missing = set(product(self._rows, self._lengths)) - points.keys()
        if not points or missing or min(points.values()) <= 0:
            raise ValueError(f"run costs need a time over 0 for each size; without one: {sorted(missing)}")
        self.points = dict(points)
        self._most_rows = most_rows
        self._follows = follows
        self._known: dict[int, list[float]] = {}  # by length, worked out from:
        self._used = dict(points)

    def of_length(self, length: int) -> Sequence[float]:
        """Seconds by the number of rows, 0 to `most_rows`, of a run whose longest row has this length."""
        costs = self._known.get(length)
        if costs is None:
            costs = [0.0, *(self.of(rows, length) for rows in range(1, self._most_rows + 1))]
            self._known[length] = costs
        return costs

    def of(self, rows: int, length: int) -> float:
        """Seconds of a run."""
        r0, r1, r_share = _between(self._rows, rows)
        l0, l1, l_share = _between(self._lengths, length)
        short = _power(self.points[r0, l0], self.points[r1, l0], r_share)
        cost = _power(short, _power(self.points[r0, l1], self.points[r1, l1], r_share), l_share)
        beyond = max(1.0, rows / self._rows[-1]) * max(1.0, length / self._lengths[-1])
        return cost * beyond

    def note(self, rows: int, length: int, took_s: float) -> None:
        """A run of this size took so much CPU: the nearest measured size moves a little towards it."""
        if not self._follows:
            return
        expected_s = self.of(rows, length)
        ratio = min(MOST_OFF, max(1 / MOST_OFF, took_s / expected_s))
        near = _nearest(self._rows, rows), _nearest(self._lengths, length)
        self.points[near] *= 1 + FOLLOWS * (ratio - 1)
        if not 1 / _MOVED < self.points[near] / self._used[near] < _MOVED:
            self._known.clear()
            self._used = dict(self.points)


def _between(known: Sequence[int], value: int) -> tuple[int, int, float]:
    """The measured values on both sides of one, and how far it is from the lower to the upper, 0 to 1."""
    at = bisect_left(known, value)
    if at == len(known):
        return known[-1], known[-1], 0.0
    if at == 0 or known[at] == value:
        return known[at], known[at], 0.0
    lower, upper = known[at - 1], known[at]
    return lower, upper, math.log(value / lower) / math.log(upper / lower)


def _nearest(known: Sequence[int], value: int) -> int:
    return min(known, key=lambda one: max(one / value, value / one))


def _power(lower_s: float, upper_s: float, share: float) -> float:
    """Between two times, as a power of what they are the times of."""
    return lower_s if share == 0.0 else lower_s * (upper_s / lower_s) ** share
