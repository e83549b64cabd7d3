"""BatchAxis: adds or removes a tensor's batch axis between two models, as Triton does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class BatchAxis(NamedTuple):
    """The receiving model's view of a tensor, where either sender or receiver has a batch axis, not both."""

    dims: tuple[int, ...]  # without the batch axis, -1 for any length
    batched: bool  # whether the receiver has a batch axis

    def fits(self, shape: tuple[int, ...]) -> bool:
        """Whether the receiver declares this shape, its batch axis included."""
        return _match(self.dims, shape[1:] if self.batched and shape else shape)

    def adapt(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape for the receiver.

        A tensor of the receiver's dims becomes a batch of 1. A batch of 1 loses its axis where the receiver's
        dims have none. Other shapes stay as they are: one of their dims may be the batch.
        """
        matches = _match(self.dims, shape)
        if self.batched and matches:
            return (1, *shape)
        if not self.batched and not matches and shape[:1] == (1,):
            return shape[1:]
        return shape


BatchAxes = tuple[BatchAxis, ...]
"""The receivers that a tensor passes through: models, and ensembles around models."""


def adapt_array(array: Any, axes: Sequence[BatchAxis]) -> Any:
    """Return the array in the shape for the last receiver."""
    shape = tuple(array.shape)
    for axis in axes:
        shape = axis.adapt(shape)
    return array.reshape(shape)


def _match(dims: Sequence[int], shape: Sequence[int]) -> bool:
    return len(dims) == len(shape) and all(
        dim in (-1, length) for dim, length in zip(dims, shape, strict=True)
    )
