"""Reshaped: a predictor whose callers have other shapes for its tensors than the model, as `reshape` says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array
from pipeline.models.signature import Variable

Shape = tuple[int, ...]


class Reshape(NamedTuple):
    """A tensor as its callers have it and as the model has it, -1 for any length; rows are in neither."""

    outer: Shape
    inner: Shape


class Reshapes(NamedTuple):
    """By the tensor's name. rows: whether an axis of rows is before each shape."""

    inputs: Mapping[str, Reshape]
    outputs: Mapping[str, Reshape]
    rows: bool


class Reshaped:
    """Runs the model by another predictor, on tensors of the shapes that this has."""

    def __init__(self, predictor: Predictor, reshapes: Reshapes) -> None:
        self._predictor = predictor
        self._reshapes = reshapes
        self.feeds = _as_outer(predictor.feeds, reshapes.inputs, reshapes.rows)
        self.fetches = _as_outer(predictor.fetches, reshapes.outputs, reshapes.rows)
        self.merges = predictor.merges

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """As the predictor's."""
        inputs, outputs, rows = self._reshapes
        given = {
            name: _reshaped(array, *inputs[name], rows) if name in inputs else array
            for name, array in feeds.items()
        }
        return {
            name: _reshaped(array, outputs[name].inner, outputs[name].outer, rows)
            if name in outputs
            else array
            for name, array in self._predictor.run(given).items()
        }

    def close(self) -> None:
        self._predictor.close()


def _as_outer(
    variables: Sequence[Variable], reshapes: Mapping[str, Reshape], rows: bool
) -> tuple[Variable, ...]:
    return tuple(
        replace(v, shape=((-1,) if rows else ()) + reshapes[v.alias].outer) if v.alias in reshapes else v
        for v in variables
    )


def _reshaped(array: Array, own: Shape, wanted: Shape, rows: bool) -> Array:
    """The array, whose shape is `own`, as `wanted`: its open axes keep their lengths, in their order."""
    before = array.shape[: int(rows)]
    open_axes = iter(
        length for length, axis in zip(array.shape[int(rows) :], own, strict=False) if axis == -1
    )
    shape = tuple(next(open_axes, -1) if axis == -1 else axis for axis in wanted)
    return array.reshape(before + shape)
