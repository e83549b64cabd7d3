"""The batch plan: which feeds of a hand-over run together. Pure: no clock, no arrays, no predictor."""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import msgspec

from pipeline.worker.run_costs import RunCosts

# What a run costs beside the predictor: feeds are joined, fetches cut apart, answers sent and passed on.
# Without it batches are so small that the default service is a tenth slower (docs/decisions/batching.md).
RUN_OVERHEAD_S = 150e-6
# Sizes of a batch that are tried: all would take three times as long to try, and save a hundredth more.
_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128)


class Item(msgspec.Struct, frozen=True, gc=False):
    """One feed to be run.

    rows: its length on axis 0. length: its longest padded axis, 1 where nothing is padded. Both are at least
    1: feeds without elements are refused before, or run alone as one row of length 1.
    shape: what must be equal for two feeds to be run together; None for one that can only run alone.
    """

    rows: int
    length: int
    shape: Hashable


@dataclass(frozen=True)
class BatchLimits:
    """requests: most feeds in a batch. rows: most rows, None for any. tokens: most rows x longest row."""

    requests: int = 1
    rows: int | None = None
    tokens: int | None = None


def plan(items: Sequence[Item], limits: BatchLimits, costs: RunCosts | None = None) -> list[list[int]]:
    """The predictor batches, as indices into `items`, short ones first.

    Feeds of one shape are sorted by length, so that a batch wastes little padding. With `costs` they are cut
    where all runs together take the least time, within the limits; without, where a limit would be passed.
    An item over a limit by itself is a batch of its own.
    """
    batches: list[list[int]] = []
    in_order = sorted([(hash(item.shape), item.length, at) for at, item in enumerate(items)])
    for _, equal in groupby(in_order, key=lambda entry: items[entry[2]].shape):
        group = [at for _, _, at in equal]
        if items[group[0]].shape is None:
            batches += [[at] for at in group]
        elif costs is None:
            batches += _cut_at_limits(items, group, limits)
        else:
            batches += _cut_by_cost(items, group, limits, costs)
    batches.sort(key=lambda batch: items[batch[-1]].length)
    return batches


def _cut_at_limits(items: Sequence[Item], group: list[int], limits: BatchLimits) -> list[list[int]]:
    """As few batches as the limits allow. group: items of one shape, short ones first."""
    batches: list[list[int]] = []
    rows = 0
    most_rows, most_tokens = limits.rows or sys.maxsize, limits.tokens or sys.maxsize
    for at in group:
        item = items[at]
        rows += item.rows
        joins = (
            batches
            and len(batches[-1]) < limits.requests
            and rows <= most_rows
            and rows * item.length <= most_tokens
        )
        if joins:
            batches[-1].append(at)
        else:
            batches.append([at])
            rows = item.rows
    return batches


def _cut_by_cost(
    items: Sequence[Item], group: list[int], limits: BatchLimits, costs: RunCosts
) -> list[list[int]]:
    """The cut whose runs take the least time together, what each costs beside the predictor included, by
    dynamic programming over the sorted items.

    The best cut of the first n items ends with a batch of some k, before which stands the best cut of the
    first n - k. group: items of one shape, short ones first, so that a batch is as long as its last item.
    """
    most_rows, most_tokens = limits.rows or sys.maxsize, limits.tokens or sys.maxsize
    before = [0, *accumulate(items[at].rows for at in group)]  # rows of the first n items
    least_s, sizes = [0.0], [0]  # of the best cut of the first n items: its time, the size of its last batch
    for end in range(1, len(group) + 1):
        length = items[group[end - 1]].length
        of_rows = costs.of_length(length)
        best_s, best = math.inf, 1
        for size in _SIZES:
            if size > end or size > limits.requests:
                break
            rows = before[end] - before[end - size]
            if size > 1 and (rows > most_rows or rows * length > most_tokens):
                break
            run_s = of_rows[rows] if rows < len(of_rows) else costs.of(rows, length)
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


def bucket(length: int, buckets: Sequence[int] | None, most: int | None = None) -> int:
    """The length that `length` is padded to: the next of `buckets`, or of the built-in steps without any.

    The built-in steps waste at most an eighth over 64 and bound the number of shapes an engine meets.
    A length over the last bucket, or a bucket over `most`, stays as it is.
    """
    if buckets:
        padded = next((b for b in buckets if b >= length), length)
    else:
        step = 8 if length <= 64 else 1 << max(3, (length - 1).bit_length() - 4)
        padded = -(-length // step) * step
    return padded if most is None or padded <= most else max(length, min(padded, most))
