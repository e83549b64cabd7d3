"""BatchAxis: a tensor on its way between a model with a batch axis and a model without, as in Triton."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class BatchAxis(NamedTuple):
    """The model that takes a tensor: exactly one of giver and taker has a batch axis."""

    dims: tuple[int, ...]  # without the batch axis, -1 for any length
    batched: bool  # whether the taker has a batch axis

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the taker declares this shape, its batch axis included."""
        return _match(self.dims, shape[1:] if self.batched and shape else shape)

    def adapt(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape as the taker has it.

        A tensor of the taker's dims becomes a batch of one. A batch of one loses its axis where the taker's
        dims want that. Any other shape passes as it is: one of its dims may be the batch.
        """
        matches = _match(self.dims, shape)
        if self.batched and matches:
            return (1, *shape)
        if not self.batched and not matches and shape[:1] == (1,):
            return shape[1:]
        return shape


BatchAxes = Sequence[BatchAxis]
"""The takers that a tensor passes, a model or an ensemble around models each."""


def adapt_array(array: Any, axes: BatchAxes) -> Any:
    """Return the array in the shape that the last taker gets."""
    shape = tuple(array.shape)
    for axis in axes:
        shape = axis.adapt(shape)
    return array.reshape(shape)


def _match(dims: Sequence[int], shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(
        dim in (-1, length) for dim, length in zip(dims, shape, strict=True)
    )
