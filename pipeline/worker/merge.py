"""Joining feeds into one batch and cutting the fetches apart again."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pipeline.engines.base import LOD_SUFFIX, is_texts
from pipeline.models.serving_model import FeedPadding, Padding
from pipeline.worker.plan import Item, bucket

Feed = Mapping[str, Any]

ALONE = Item(1, 1, None)


@dataclass(frozen=True)
class Joining:
    """What may be padded, and to which lengths. `most`: the greatest length that model and engine take.

    ranks: how many axes the model declares for a feed; with another number of them it is not padded.
    """

    padding: Padding | None = None
    buckets: tuple[int, ...] | None = None
    most: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)


def describe(feed: object, joining: Joining) -> Item:
    """A feed as the plan sees it.

    Where its padded feeds differ in length it runs alone and as it is: padding was declared for feeds that
    belong together, and filling up the shorter one would hide the client's mistake. So does one of another
    rank than declared, and one with offsets of sequences ("x.lod"): its rows are not instances.
    """
    if not isinstance(feed, dict):
        return ALONE
    padded = joining.padding.feeds if joining.padding else {}
    rows = length = -1
    shape: list[Hashable] = []
    for name, value in feed.items():
        dims = value.shape if isinstance(value, np.ndarray) else ()
        if not dims or (rows != dims[0] and rows != -1) or name.endswith(LOD_SUFFIX):
            return ALONE
        rows = dims[0]
        rule = padded.get(name)
        if rule is not None and 0 < (axis := rule.axis) < len(dims):
            if joining.ranks.get(name, len(dims)) != len(dims):
                return Item(max(rows, 1), 1, None)
            if length != dims[axis] and length != -1:
                return Item(max(rows, 1), 1, None)
            length = dims[axis]
            shape += name, value.dtype.char, dims[1:axis], dims[axis + 1 :]
        else:
            shape += name, value.dtype.char, dims[1:]
    if rows <= 0:
        return ALONE
    return Item(rows, 1 if length < 0 else length, tuple(shape))


def text_arrays(feed: object) -> Feed | None:
    """A feed whose lists of texts are arrays, as a batch has them; None for one without such a list."""
    if not isinstance(feed, dict) or not any(is_texts(value) for value in feed.values()):
        return None
    return {name: np.array(value, object) if is_texts(value) else value for name, value in feed.items()}


def join(feeds: Sequence[Feed], items: Sequence[Item], joining: Joining) -> dict[str, Any]:
    """The feeds of one planned batch, rows after rows; padded axes are as long as the longest, rounded up."""
    if len(feeds) == 1 and (not joining.padding or items[0].shape is None):
        return dict(feeds[0])
    merged: dict[str, Any] = {}
    padded = joining.padding.feeds if joining.padding else {}
    length = bucket(max([item.length for item in items]), joining.buckets, joining.most)
    for name, first in feeds[0].items():
        rule = padded.get(name)
        if rule is not None and isinstance(first, np.ndarray) and 0 < rule.axis < first.ndim:
            merged[name] = _pad([feed[name] for feed in feeds], items, rule, length)
        else:
            merged[name] = first if len(feeds) == 1 else np.concatenate([feed[name] for feed in feeds])
    return merged


def _pad(arrays: Sequence[np.ndarray], items: Sequence[Item], rule: FeedPadding, length: int) -> np.ndarray:
    first, axis = arrays[0], rule.axis
    if len(arrays) == 1 and items[0].length == length:
        return first
    shape = (sum([item.rows for item in items]), *first.shape[1:axis], length, *first.shape[axis + 1 :])
    padded = np.zeros(shape, first.dtype) if rule.value == 0 else np.full(shape, rule.value, first.dtype)
    start = 0
    before = (slice(None),) * (axis - 1)
    for array, item in zip(arrays, items, strict=True):
        stop = start + item.rows
        padded[(slice(start, stop), *before, slice(item.length))] = array
        start = stop
    return padded


def split(
    fetches: Mapping[str, Any], items: Sequence[Item], padding: Padding | None
) -> list[dict[str, Any]] | None:
    """Each item's rows of the fetches, cut back to its own length; None when a fetch has no row for each row.

    A list, as an app's own `process` may return, is a fetch of a row per element.
    The parts are copies where there are several, so that nobody's answer keeps the whole batch alive or can
    be changed through a neighbour's.
    """
    rows = sum([item.rows for item in items])
    for fetch in fetches.values():
        if _rows(fetch) != rows:
            return None
    cuts = padding.fetches if padding else {}
    parts = []
    start = 0
    for item in items:
        stop = start + item.rows
        part = {}
        for name, fetch in fetches.items():
            own = fetch[start:stop]
            axis = cuts.get(name)
            if axis is not None and item.shape is not None and 0 < axis < getattr(fetch, "ndim", 0):
                own = own[(slice(None),) * axis + (slice(item.length),)]
            part[name] = own.copy() if len(items) > 1 else own
        parts.append(part)
        start = stop
    return parts


def _rows(fetch: Any) -> int:
    if isinstance(fetch, list):
        return len(fetch)
    return fetch.shape[0] if isinstance(fetch, np.ndarray) and fetch.ndim else -1


def slices(feed: Feed, item: Item, most_rows: int | None) -> list[Feed]:
    """The feed in slices of at most `most_rows` rows; itself when it has no more, or none can be told."""
    if most_rows is None or item.shape is None or item.rows <= most_rows:
        return [feed]
    starts = range(0, item.rows, most_rows)
    return [{name: array[at : at + most_rows] for name, array in feed.items()} for at in starts]
