"""The batch plan: decides which requests of a dispatch share one inference. Pure: no clock, no predictor."""

from __future__ import annotations

import math
import sys
from bisect import bisect_left
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby, product
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from pipeline.worker.call import Call

FOLLOWS = 0.05  # how far one real run moves what is known of its size
MAX_RATIO = 1.5  # a run that took longer than so many times the expected was disturbed, and counts as that
_MOVED = 1.05  # a measured size whose time has changed so much: what was worked out by it is worked out anew


class RunCosts:
    """Estimates the time of an inference, for any number of rows and any length, from a few measured sizes.

    points: seconds by (rows, length), for each pair of a few row counts and a few lengths; `record_run`
    adjusts them. Between measured sizes, times are interpolated on logarithmic scales. Beyond the largest
    measured size, time is proportional to the size.
    """

    def __init__(
        self, points: Mapping[tuple[int, int], float], most_rows: int, *, follows: bool = True
    ) -> None:
        """Check and store the measured times. Raises ValueError if a combination is missing.

        most_rows: greatest number of rows in the tables of `of_length`. follows: whether `record_run` updates
        the times.
        """
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
        """Return a list of estimated seconds for 0 to `most_rows` rows of one length."""
        costs = self._known.get(length)
        if costs is None:
            costs = [0.0, *(self.estimate_s(rows, length) for rows in range(1, self._most_rows + 1))]
            self._known[length] = costs
        return costs

    def estimate_s(self, rows: int, length: int) -> float:
        """Return the estimated seconds of an inference on `rows` rows, the longest of this length."""
        r0, r1, r_share = _between(self._rows, rows)
        l0, l1, l_share = _between(self._lengths, length)
        short = _power(self.points[r0, l0], self.points[r1, l0], r_share)
        cost = _power(short, _power(self.points[r0, l1], self.points[r1, l1], r_share), l_share)
        beyond = max(1.0, rows / self._rows[-1]) * max(1.0, length / self._lengths[-1])
        return cost * beyond

    def record_run(self, rows: int, length: int, took_s: float) -> None:
        """Move the nearest measured size a little towards the CPU seconds that an inference has taken."""
        if not self._follows:
            return
        expected_s = self.estimate_s(rows, length)
        ratio = min(MAX_RATIO, max(1 / MAX_RATIO, took_s / expected_s))
        near = _nearest(self._rows, rows), _nearest(self._lengths, length)
        self.points[near] *= 1 + FOLLOWS * (ratio - 1)
        if not 1 / _MOVED < self.points[near] / self._used[near] < _MOVED:
            self._known.clear()
            self._used = dict(self.points)


def _between(measured: Sequence[int], value: int) -> tuple[int, int, float]:
    """Return the measured values on both sides of `value`, and its position between them, from 0 to 1."""
    at = bisect_left(measured, value)
    if at == len(measured):
        return measured[-1], measured[-1], 0.0
    if at == 0 or measured[at] == value:
        return measured[at], measured[at], 0.0
    lower, upper = measured[at - 1], measured[at]
    return lower, upper, math.log(value / lower) / math.log(upper / lower)


def _nearest(measured: Sequence[int], value: int) -> int:
    return min(measured, key=lambda other: max(other / value, value / other))


def _power(lower_s: float, upper_s: float, share: float) -> float:
    """Interpolate between two times on a logarithmic scale. share: 0 for the first time, 1 for the second."""
    return lower_s if share == 0.0 else lower_s * (upper_s / lower_s) ** share


# What a run costs beside the predictor: feeds are joined, fetches cut apart, answers sent and passed on.
# Without it batches are so small that the default service is a tenth slower (docs/decisions/batching.md).
RUN_OVERHEAD_S = 150e-6
# Sizes of a batch that are tried: all would take three times as long to try, and save a hundredth more.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)


class Slice(msgspec.Struct, eq=False):
    """A model input of one request, or some of its rows: the unit of a batch.

    Its rows and length are at least 1: inputs without elements are refused earlier, or run alone as one row
    of length 1.
    """

    rows: int  # length on axis 0
    length: int  # length of the longest padded axis; 1 without one
    shape: Hashable  # equal for slices that can run together; None for a slice that runs alone
    feed: Any = None
    call: Call = None  # type: ignore[assignment]  # set by the runner
    feed_number: int = 0  # place of the feed among the feeds of the request
    number: int = 0  # place of the slice within the feed


@dataclass(frozen=True)
class BatchLimits:
    """Maximum sizes of one inference: requests, rows and tokens."""

    requests: int = 1  # maximum of feeds
    rows: int | None = None  # maximum of rows; None for any number
    tokens: int | None = None  # maximum of rows x longest row


def plan(slices: Sequence[Slice], limits: BatchLimits, costs: RunCosts | None = None) -> list[list[int]]:
    """Group slices into batches for inference.

    Returns the batches as lists of indices into `slices`, short lengths first. Slices of one shape are sorted
    by length, so that a batch wastes little padding. With `costs` the cuts minimize the total time of all
    inferences. Without `costs` each batch is as large as the limits allow. A slice that exceeds a limit is a
    batch of its own.
    """
    batches: list[list[int]] = []
    in_order = sorted([(hash(part.shape), part.length, at) for at, part in enumerate(slices)])
    for _, equal in groupby(in_order, key=lambda entry: slices[entry[2]].shape):
        group = [at for _, _, at in equal]
        if slices[group[0]].shape is None:
            batches += [[at] for at in group]
        elif costs is None:
            batches += _cut_at_limits(slices, group, limits)
        else:
            batches += _cut_by_cost(slices, group, limits, costs)
    batches.sort(key=lambda batch: slices[batch[-1]].length)
    return batches


def _cut_at_limits(slices: Sequence[Slice], group: list[int], limits: BatchLimits) -> list[list[int]]:
    """Cut a group of slices into as few batches as the limits allow. Returns the batches.

    group: indices of slices of one shape, short ones first.
    """
    batches: list[list[int]] = []
    rows = 0
    most_rows, most_tokens = limits.rows or sys.maxsize, limits.tokens or sys.maxsize
    for at in group:
        part = slices[at]
        rows += part.rows
        joins = (
            batches
            and len(batches[-1]) < limits.requests
            and rows <= most_rows
            and rows * part.length <= most_tokens
        )
        if joins:
            batches[-1].append(at)
        else:
            batches.append([at])
            rows = part.rows
    return batches


def _cut_by_cost(
    slices: Sequence[Slice], group: list[int], limits: BatchLimits, costs: RunCosts
) -> list[list[int]]:
    """Cut a group of slices into batches with the least total inference time, by dynamic programming.

    The time of an inference includes its overhead beside the predictor. The best cut of the first n slices is
    the best cut of the first n - k, followed by a batch of k slices. group: indices of slices of one shape,
    short ones first, so that a batch is as long as its last slice.
    """
    most_rows, most_tokens = limits.rows or sys.maxsize, limits.tokens or sys.maxsize
    before = [0, *accumulate(slices[at].rows for at in group)]  # rows of the first n slices
    least_s, sizes = [0.0], [0]  # of the best cut of the first n slices: its time, the size of its last batch
    for end in range(1, len(group) + 1):
        length = slices[group[end - 1]].length
        of_rows = costs.of_length(length)
        best_s, best = math.inf, 1
        for size in _SIZES:
            if size > end or size > limits.requests:
                break
            rows = before[end] - before[end - size]
            if size > 1 and (rows > most_rows or rows * length > most_tokens):
                break
            run_s = of_rows[rows] if rows < len(of_rows) else costs.estimate_s(rows, length)
            if least_s[end - size] + run_s < best_s:
                best_s, best = least_s[end - size] + run_s, size
        least_s.append(best_s + RUN_OVERHEAD_S)
        sizes.append(best)
    batches = []
    end = len(group)
    while end:
        batches.append(group[end - sizes[end] : end])
        end -= sizes[end]
    return batches[::-1]


def bucket(length: int, buckets: Sequence[int] | None, max_length: int | None = None) -> int:
    """Return the length to which `length` is padded: the next of `buckets`, or of built-in steps.

    The built-in steps waste at most an eighth for lengths over 64, and bound the number of shapes an engine
    meets. A length over the last bucket, or over `max_length`, stays as it is. No length is padded beyond
    `max_length`.
    """
    if buckets:
        padded = next((b for b in buckets if b >= length), length)
    else:
        step = 8 if length <= 64 else 1 << max(3, (length - 1).bit_length() - 4)
        padded = -(-length // step) * step
    return padded if max_length is None or padded <= max_length else max(length, min(padded, max_length))
