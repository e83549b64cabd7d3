"""Random input rows for the padding proof, and functions that pad inputs and cut outputs.

Each batch mixes several kinds of content, because a model may be wrong for a few of them only. A maximum over
time is wrong for negative rows. A pooled embedding is wrong for rows without a large value.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from pipeline.engines.feeds import Array
from pipeline.models.additions import FeedPadding
from pipeline.models.signature import Variable

Feeds = dict[str, Array]


def pad_feeds(feeds: Mapping[str, Array], padding: Mapping[str, FeedPadding], length: int) -> Feeds:
    """Return the input arrays with each padded axis filled up to `length`.

    padding: axis and padding value of each padded input.
    """
    return {
        name: pad_array(array, padding[name], length) if name in padding else array
        for name, array in feeds.items()
    }


def pad_array(array: Array, rule: FeedPadding, length: int) -> Array:
    """Return the array with the axis of `rule` filled up to `length` with the rule's value."""
    widths = [(0, 0)] * array.ndim
    widths[rule.axis] = (0, length - array.shape[rule.axis])
    return np.pad(array, widths, constant_values=rule.value)


def cut_output(output: Array, axis: int | None, length: int) -> Array:
    """Return a model output cut back to `length` on `axis`. If `axis` is None, the output is unchanged."""
    if axis is None or axis >= output.ndim:
        return output
    return output.take(range(min(output.shape[axis], length)), axis=axis)


def growing_axes(outputs: Sequence[Array]) -> list[int]:
    """Return the axes, besides the batch, whose length differs between `outputs`.

    outputs: one output of the model, for inputs of several lengths. Raises ValueError if the ranks of the
    outputs differ.
    """
    if len({output.ndim for output in outputs}) != 1:
        raise ValueError("changes its rank with its input")
    return [axis for axis in range(1, outputs[0].ndim) if len({output.shape[axis] for output in outputs}) > 1]


FREE_DIM = 4  # of an open axis that is not the padded axis
SMALL_IDS = 10
UNCHECKED_IDS = 50  # ids that are tried where neither the file nor the engine limits them
SCALES = (1.0, 1e-3, 1e3)
ROUGH_SCALE = 1e3  # rounding errors of rows this large hide small differences


class Role(Enum):
    """The kind of content of a model input: numbers, token ids, segments, a mask, or an example."""

    NUMBERS = "numbers"  # floats, where no value means padding
    IDS = "ids"
    TYPES = "types"  # of a BERT, the first or the second text
    MASK = "mask"
    EXAMPLE = "example"  # never padded, repeated from an example


@dataclass(frozen=True)
class FeedContent:
    """Describes how a padding proof fills one model input with random values."""

    variable: Variable
    role: Role
    pad: FeedPadding
    limit: int = 0  # ids are below it; 0: any integer of the dtype
    example: Array | None = None  # content of a feed that is never padded


class RowContents:
    """Generates batches of random model inputs. The same seed gives the same inputs."""

    def __init__(self, feeds: Sequence[FeedContent], seed: int) -> None:
        self._feeds = feeds
        self._random = np.random.default_rng(seed)

    def rows(self, count: int, length: int) -> tuple[Feeds, Array]:
        """Return inputs of `count` random rows, and a bool array of the rows to compare with more tolerance.

        Rounding errors of rows with large values hide small differences.
        """
        scales = self._random.choice(SCALES, count)
        feeds = {feed.variable.alias: self._draw_values(feed, scales, length) for feed in self._feeds}
        numbers = any(feed.role is Role.NUMBERS for feed in self._feeds)
        return feeds, (scales >= ROUGH_SCALE) & numbers

    def single_ids(self, count: int) -> Feeds | None:
        """Return rows of one token each, whose ids cover the vocabulary evenly; None if no input has ids."""
        if not any(feed.role is Role.IDS and feed.limit for feed in self._feeds):
            return None
        feeds, _ = self.rows(count, 1)
        for feed in self._feeds:
            if feed.role is Role.IDS and feed.limit:
                array = feeds[feed.variable.alias]
                ids = np.unique(np.linspace(0, feed.limit - 1, count).astype(np.int64))
                ids = ids[ids != feed.pad.value] if feed.limit > 1 else ids
                array[:] = np.resize(ids, (count,) + (1,) * (array.ndim - 1)).astype(array.dtype)
            elif feed.role is Role.MASK:
                feeds[feed.variable.alias][:] = 1
        return feeds

    def junk(self, feeds: Feeds, length: int, roles: Container[Role]) -> Feeds:
        """Return padded inputs with random content in the padding, in the inputs of these roles.

        length: length of the rows before padding.
        """
        count, target = next(
            (len(feeds[feed.variable.alias]), feeds[feed.variable.alias].shape[feed.pad.axis])
            for feed in self._feeds
            if feed.role is not Role.EXAMPLE
        )
        content, _ = self.rows(count, target)
        filled = dict(feeds)
        for feed in self._feeds:
            if feed.role in roles:
                array = content[feed.variable.alias]
                places = (slice(None),) * feed.pad.axis + (slice(length),)
                array[places] = feeds[feed.variable.alias][places]
                filled[feed.variable.alias] = array
        return filled

    def plain_row(self, length: int) -> Feeds:
        """Return one row that any model with these inputs runs: a mask of ones, and no padding id."""
        feeds = {}
        for feed in self._feeds:
            shape = self._shape(feed, 1, length)
            if feed.role is Role.EXAMPLE and feed.example is not None:
                feeds[feed.variable.alias] = feed.example[:1]
            elif feed.role is Role.IDS:
                last = (feed.limit or UNCHECKED_IDS) - 1
                feeds[feed.variable.alias] = np.full(shape, min(2, last), feed.variable.numpy_dtype)
            else:
                value = 0 if feed.role is Role.TYPES else 1
                feeds[feed.variable.alias] = np.full(shape, value, feed.variable.numpy_dtype)
        return feeds

    def _draw_values(self, feed: FeedContent, scales: Array, length: int) -> Array:
        count = len(scales)
        shape = self._shape(feed, count, length)
        dtype = feed.variable.numpy_dtype
        if feed.role is Role.EXAMPLE and feed.example is not None:
            return np.repeat(feed.example[:1], count, axis=0)
        values: Any = np.zeros((count, length, *_rest(shape, feed.pad.axis)))
        for row in range(count):
            values[row] = self._draw_row(feed, scales[row], values[row].shape, row)
        return np.ascontiguousarray(np.moveaxis(values, 1, feed.pad.axis).astype(dtype))

    def _draw_row(self, feed: FeedContent, scale: float, shape: tuple[int, ...], number: int) -> Array:
        if feed.role is Role.NUMBERS:
            return self._numbers(scale, shape)
        if feed.role is Role.TYPES and feed.limit:
            return self._random.integers(0, feed.limit, shape)
        if feed.role is Role.MASK:
            return self._mask(shape, number)
        if feed.limit:
            return self._ids(feed, shape)
        return self._integers(feed, shape)

    def _numbers(self, scale: float, shape: tuple[int, ...]) -> Array:
        values = self._random.standard_normal(shape) * scale
        kind = self._random.integers(5)
        if kind == 0:
            return np.abs(values)
        if kind == 1:
            return -np.abs(values)
        if kind == 2:
            return np.where(self._random.random(shape) < 0.3, 0.0, values)
        return values

    def _mask(self, shape: tuple[int, ...], number: int) -> Array:
        """Return a random mask: all ones, ones before zeros, or zeros inside.

        The first element is always one, so that at least one value is not masked.
        """
        length = shape[0]
        mask = np.ones(shape)
        if number % 3 == 1:
            mask[self._random.integers(1, length + 1) :] = 0
        elif number % 3 == 2:
            keeps = self._random.random(length) < 0.6
            mask[~keeps] = 0
            mask[0] = 1
        return mask

    def _ids(self, feed: FeedContent, shape: tuple[int, ...]) -> Array:
        """Return random ids: from all the vocabulary, from its beginning, all equal, or some padding ids."""
        kind = self._random.integers(4)
        ids = self._random.integers(0, min(feed.limit, SMALL_IDS) if kind == 1 else feed.limit, shape)
        if kind == 2:
            ids[:] = ids[0]
        elif kind == 3:
            ids[self._random.random(shape) < 0.3] = feed.pad.value
        first = ids[:1]
        if feed.limit > 1:  # a row of nothing but padding ids is empty
            first[first == feed.pad.value] = (feed.pad.value + 1) % feed.limit
        return ids

    def _integers(self, feed: FeedContent, shape: tuple[int, ...]) -> Array:
        """Return random integers of several magnitudes, with both signs if the dtype is signed."""
        limits = np.iinfo(feed.variable.numpy_dtype) if feed.variable.numpy_dtype.kind != "b" else None
        top = min(self._random.choice([2, SMALL_IDS, 1000, 1_000_000]), limits.max if limits else 1)
        values = self._random.integers(0, int(top) + 1, shape)
        signed = limits is not None and limits.min < 0
        kind = self._random.integers(3)
        if signed and kind == 0:
            values = -values
        elif signed and kind == 1:
            values *= self._random.choice([-1, 1], shape)
        return values

    def _shape(self, feed: FeedContent, count: int, length: int) -> tuple[int, ...]:
        dims = feed.variable.shape[1:]
        return (
            count,
            *(
                length if axis == feed.pad.axis else FREE_DIM if dim < 0 else dim
                for axis, dim in enumerate(dims, 1)
            ),
        )


def _rest(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (*shape[1:axis], *shape[axis + 1 :])


def content_role(variable: Variable, mask: str) -> Role:
    """Return the kind of content of a model input, by its dtype and name. mask: name of the mask input."""
    if variable.numpy_dtype.kind == "f":
        return Role.NUMBERS
    if variable.alias == mask:
        return Role.MASK
    name = variable.alias.lower()
    return Role.TYPES if "type" in name or "segment" in name else Role.IDS
