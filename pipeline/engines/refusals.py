"""What an engine's refusal of feeds becomes: the request's mistake where they show one, else the model's.

An engine meets them as it runs: shapes that the model's description leaves open, and numbers that it looks up
in a table, ids and positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.engines.feeds import Array, other_shape
from pipeline.errors import ModelFailed, ServingError, UnusableFeed
from pipeline.models.signature import Variable


class Beyond(NamedTuple):
    """A number that was looked up where there are only others, from `least` to `most`."""

    given: int
    least: int
    most: int


class FeedsRefused(ModelFailed):
    """An engine refused feeds of which each by itself is as the model declares.

    engine: its name. reason: in its words. unequal: whether they differ where they are declared alike.
    """

    def __init__(
        self, engine: str, reason: str, feeds: Mapping[str, Array], *, unequal: bool = False
    ) -> None:
        shapes = ", ".join(f"{name} {list(np.shape(array))}" for name, array in feeds.items())
        super().__init__(f"{engine} refused the feeds {shapes}: {reason}")
        self.unequal = unequal
        self._engine, self._reason = engine, reason

    def of(self, feeds: Mapping[str, Array]) -> FeedsRefused:
        """The same of the feeds as a request has brought them, before they were padded."""
        return FeedsRefused(self._engine, self._reason, feeds)


def refusal(
    engine: str,
    declared: Sequence[Variable],
    feeds: Mapping[str, Array],
    reason: str,
    beyond: Beyond | None = None,
) -> ServingError:
    """The error that a failed run is told by. beyond: where the engine names a number that it looked up."""
    told = beyond and _looked_up_in_vain(declared, feeds, beyond)
    if told:
        return UnusableFeed(told)
    other = other_shape(declared, feeds, sides=True)
    if other is not None:
        return UnusableFeed(f"{other}, and the program can't run it: {reason}")
    return FeedsRefused(engine, reason, feeds, unequal=_are_unequal(declared, feeds))


def _are_unequal(declared: Sequence[Variable], feeds: Mapping[str, Array]) -> bool:
    """Whether feeds have other rows than each other, or other lengths where the same are declared."""
    rows = {feeds[variable.alias].shape[:1] for variable in declared if variable.has_rows}
    alike = {variable.shape for variable in declared}
    shapes = {(variable.shape, feeds[variable.alias].shape) for variable in declared}
    return len(rows) > 1 or len(shapes) > len(alike)


def _looked_up_in_vain(
    declared: Sequence[Variable], feeds: Mapping[str, Array], beyond: Beyond
) -> str | None:
    """Which feed holds the number, or is so long that a position has it; None where none is."""
    there_are = f"the model has {beyond.least} to {beyond.most}"
    holding = too_long = None
    for variable in declared:
        array = feeds[variable.alias]
        if array.dtype.kind in "iu" and bool((array == beyond.given).any()):
            holding = holding or f"feed {variable.alias!r} holds {beyond.given}"
        for axis, length in enumerate(variable.shape):
            if axis and length < 0 and axis < array.ndim and array.shape[axis] > beyond.given >= 0:
                too_long = (
                    too_long or f"feed {variable.alias!r} has length {array.shape[axis]} on axis {axis}"
                )
    found = [told for told in (holding, too_long) if told]
    return f"{', or '.join(found)}; {there_are}" if found else None
