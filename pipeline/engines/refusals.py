"""Builds the error of a failed inference: the client's mistake if the inputs show one, else the model's.

Only the engine notices some mistakes: shapes that the model's description leaves open, and ids or positions
beyond a lookup table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.engines.feeds import Array, other_shape
from pipeline.errors import DeviceLost, ModelFailed, ServingError, UnusableFeed
from pipeline.models.signature import Variable
from pipeline.process.lost_device import is_device_lost


class OutOfRange(NamedTuple):
    """An id or position beyond the range of a lookup table, as an engine's error message names it."""

    value: int
    low: int  # first number of the table
    high: int  # last number of the table


class FeedsRefused(ModelFailed):
    """Raised if an engine fails on inputs that each match the model's declaration.

    `reason` is the engine's message. `unequal` tells that inputs with equal declared shapes differ in shape.
    """

    def __init__(
        self, engine: str, reason: str, feeds: Mapping[str, Array], *, unequal: bool = False
    ) -> None:
        shapes = ", ".join(f"{name} {list(np.shape(array))}" for name, array in feeds.items())
        super().__init__(f"{engine} refused the feeds {shapes}: {reason}")
        self.unequal = unequal
        self._engine, self._reason = engine, reason

    def with_feeds(self, feeds: Mapping[str, Array]) -> FeedsRefused:
        """Return the same error with the shapes of one request's inputs, before padding."""
        return FeedsRefused(self._engine, self._reason, feeds)


def build_run_error(
    engine: str,
    declared: Sequence[Variable],
    feeds: Mapping[str, Array],
    reason: str,
    out_of_range: OutOfRange | None = None,
) -> ServingError:
    """Return the error of a failed inference: UnusableFeed for a mistake in the inputs, else FeedsRefused.

    Returns DeviceLost if the engine's message says that the GPU can't be used any more.

    engine: the engine's name for messages. reason: the engine's message. out_of_range: the index that is not
    in a lookup table.
    """
    if is_device_lost(reason):
        return DeviceLost(f"{engine} has lost the GPU: {reason}")
    lookup_error = out_of_range and _describe_failed_lookup(declared, feeds, out_of_range)
    if lookup_error:
        return UnusableFeed(lookup_error)
    other = other_shape(declared, feeds, sides=True)
    if other is not None:
        return UnusableFeed(f"{other}, and the program can't run it: {reason}")
    return FeedsRefused(engine, reason, feeds, unequal=_are_unequal(declared, feeds))


def _are_unequal(declared: Sequence[Variable], feeds: Mapping[str, Array]) -> bool:
    """Whether model inputs differ in rows, or inputs with the same declared shape differ in shape."""
    rows = {feeds[variable.alias].shape[:1] for variable in declared if variable.has_rows}
    alike = {variable.shape for variable in declared}
    shapes = {(variable.shape, feeds[variable.alias].shape) for variable in declared}
    return len(rows) > 1 or len(shapes) > len(alike)


def _describe_failed_lookup(
    declared: Sequence[Variable], feeds: Mapping[str, Array], number: OutOfRange
) -> str | None:
    """Return a message about the input that holds the index beyond a lookup table; None if there is none.

    An input whose length exceeds the index is named, too: the index may be a position in the input.
    """
    table_range = f"the model has {number.low} to {number.high}"
    holding = too_long = None
    for variable in declared:
        array = feeds[variable.alias]
        if array.dtype.kind in "iu" and bool((array == number.value).any()):
            holding = holding or f"feed {variable.alias!r} holds {number.value}"
        for axis, length in enumerate(variable.shape):
            if axis and length < 0 and axis < array.ndim and array.shape[axis] > number.value >= 0:
                too_long = (
                    too_long or f"feed {variable.alias!r} has length {array.shape[axis]} on axis {axis}"
                )
    causes = [cause for cause in (holding, too_long) if cause]
    return f"{', or '.join(causes)}; {table_range}" if causes else None
