"""Padded feeds, and outputs cut back to the length of a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from pipeline.engines.feeds import Array
from pipeline.models.additions import FeedPadding

Feeds = dict[str, Array]


def pad_feeds(feeds: Mapping[str, Array], padding: Mapping[str, FeedPadding], length: int) -> Feeds:
    """Return the feeds with each padded axis filled up to `length`."""
    return {
        name: pad_array(array, padding[name], length) if name in padding else array
        for name, array in feeds.items()
    }


def pad_array(array: Array, rule: FeedPadding, length: int) -> Array:
    """Return the array with the axis of `rule` filled up to `length`."""
    widths = [(0, 0)] * array.ndim
    widths[rule.axis] = (0, length - array.shape[rule.axis])
    return np.pad(array, widths, constant_values=rule.value)


def cut_output(output: Array, axis: int | None, length: int) -> Array:
    """Return the output cut back to `length` on `axis`; None: the output has no axis that grows."""
    if axis is None or axis >= output.ndim:
        return output
    return output.take(range(min(output.shape[axis], length)), axis=axis)


def growing_axes(outputs: Sequence[Array]) -> list[int]:
    """Return the axes, besides the batch, on which one output differs between rows of several lengths.

    Raises ValueError when the output has no fixed rank.
    """
    if len({output.ndim for output in outputs}) != 1:
        raise ValueError("changes its rank with its input")
    return [axis for axis in range(1, outputs[0].ndim) if len({output.shape[axis] for output in outputs}) > 1]
