"""The batch plan: which feeds of a hand-over run together. Pure: no clock, no arrays, no predictor."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import NamedTuple


class Item(NamedTuple):
    """One feed to be run.

    rows: its length on axis 0. length: its longest padded axis, 1 where nothing is padded.
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


def plan(items: Sequence[Item], limits: BatchLimits) -> list[list[int]]:
    """The predictor batches, as indices into `items`, short ones first.

    Feeds of one shape are sorted by length, so that a batch wastes little padding, and cut where a limit
    would be passed. An item over a limit by itself is a batch of its own.
    """
    batches: list[list[int]] = []
    open_shape: Hashable = None
    rows = 0
    most_rows, most_tokens = limits.rows or sys.maxsize, limits.tokens or sys.maxsize
    for _, length, index in sorted([(hash(item.shape), item.length, at) for at, item in enumerate(items)]):
        item = items[index]
        rows += item.rows
        joins = (
            item.shape is not None
            and item.shape == open_shape
            and len(batches[-1]) < limits.requests
            and rows <= most_rows
            and rows * length <= most_tokens
        )
        if joins:
            batches[-1].append(index)
        else:
            batches.append([index])
            open_shape, rows = item.shape, item.rows
    batches.sort(key=lambda batch: items[batch[-1]].length)
    return batches


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
