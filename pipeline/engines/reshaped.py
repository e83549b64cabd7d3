"""Reshaped: a predictor whose callers see other tensor shapes than the model, as Triton's `reshape`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.engines.base import FeedsChecked, Predictor
from pipeline.engines.feeds import Array
from pipeline.errors import UnusableFeed
from pipeline.models.signature import Variable

Shape = tuple[int, ...]


class Reshape(NamedTuple):
    """The shapes of a reshaped tensor, without the batch axis. -1 stands for any length."""

    outer: Shape  # seen by callers
    inner: Shape  # seen by the model


class Reshapes(NamedTuple):
    """The reshaped tensors of a model, by name."""

    inputs: Mapping[str, Reshape]
    outputs: Mapping[str, Reshape]
    rows: bool  # whether a batch axis precedes each shape


class Reshaped:
    """Wraps a predictor whose callers see other tensor shapes than the model: reshapes inputs and outputs."""

    def __init__(self, predictor: Predictor, reshapes: Reshapes) -> None:
        self._predictor = predictor
        self._reshapes = reshapes
        self.feeds = _as_outer(predictor.feeds, reshapes.inputs, reshapes.rows)
        self.fetches = _as_outer(predictor.fetches, reshapes.outputs, reshapes.rows)
        self.merges = predictor.merges

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Both have the callers' shapes.
        """
        _, outputs, rows = self._reshapes
        return {
            name: _reshape(array, outputs[name].inner, outputs[name].outer, rows)
            if name in outputs
            else array
            for name, array in self._predictor.run(self._inner(feeds)).items()
        }

    def _inner(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return the input arrays in the model's shapes.

        Raises UnusableFeed for an array with a wrong number of elements.
        """
        inputs, _, rows = self._reshapes
        inner = dict(feeds)
        for name in inputs.keys() & feeds.keys():
            try:
                inner[name] = _reshape(feeds[name], *inputs[name], rows)
            except ValueError as exc:
                raise UnusableFeed(f"feed {name!r} has shape {feeds[name].shape}: {exc}") from exc
        return inner

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs that can't be reshaped, or whose reshaped form the model rejects."""
        inner = self._inner(feeds)
        if isinstance(self._predictor, FeedsChecked):
            self._predictor.check(inner)

    def close(self) -> None:
        self._predictor.close()


def _as_outer(
    variables: Sequence[Variable], reshapes: Mapping[str, Reshape], rows: bool
) -> tuple[Variable, ...]:
    return tuple(
        replace(v, shape=((-1,) if rows else ()) + reshapes[v.alias].outer) if v.alias in reshapes else v
        for v in variables
    )


def _reshape(array: Array, source: Shape, target: Shape, rows: bool) -> Array:
    """Return an array of shape `source` in the shape `target`.

    Dynamic axes keep their lengths, in their order. rows: a batch axis precedes both shapes.
    """
    before = array.shape[: int(rows)]
    open_axes = iter(
        length for length, axis in zip(array.shape[int(rows) :], source, strict=False) if axis == -1
    )
    shape = tuple(next(open_axes, -1) if axis == -1 else axis for axis in target)
    return array.reshape(before + shape)
