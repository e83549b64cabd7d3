"""Stateful: a predictor whose callers see the batch axis of each state first, and no constant inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.engines.base import FeedsChecked, Predictor
from pipeline.engines.feeds import Array
from pipeline.models.sequence_tensors import StateTensor
from pipeline.models.signature import Variable


class Stateful:
    """Wraps a predictor with sequence states: makes their batch axis the first, and adds constants.

    The constants are inputs that clients do not send. Rows of several requests can then be joined along the
    first axis of every input, as for other models.
    """

    def __init__(
        self, predictor: Predictor, states: Sequence[StateTensor], constants: Mapping[str, Array]
    ) -> None:
        self._predictor = predictor
        self._constants = constants
        self._inputs = {state.input: state.axis for state in states}
        self._outputs = {state.output: state.axis for state in states}
        feeds = [feed for feed in predictor.feeds if feed.alias not in constants]
        self.feeds = _with_rows_first(feeds, self._inputs)
        self.fetches = _with_rows_first(predictor.fetches, self._outputs)
        # The declared batch axes promise rows that are independent.
        self.merges = all(variable.has_rows for variable in (*self.feeds, *self.fetches))

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Run inference on input arrays by alias. Returns output arrays by alias.

        Batch axes come first in both.
        """
        outputs = self._predictor.run(self._inner(feeds))
        return {
            name: np.ascontiguousarray(np.moveaxis(array, self._outputs[name], 0))
            if self._outputs.get(name)
            else array
            for name, array in outputs.items()
        }

    def _inner(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        inner = {**feeds, **self._constants}
        for name, axis in self._inputs.items():
            array = inner.get(name)
            if axis and array is not None and array.ndim > axis:
                inner[name] = np.ascontiguousarray(np.moveaxis(array, 0, axis))
        return inner

    def check(self, feeds: Mapping[str, Array]) -> None:
        """Raise InvalidInput for inputs that the model rejects regardless of their elements."""
        if isinstance(self._predictor, FeedsChecked):
            self._predictor.check(self._inner(feeds))

    def close(self) -> None:
        self._predictor.close()


def _with_rows_first(variables: Sequence[Variable], axes: Mapping[str, int]) -> tuple[Variable, ...]:
    return tuple(replace(v, shape=_move_first(v.shape, axes.get(v.alias, 0))) for v in variables)


def _move_first(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return (shape[axis], *shape[:axis], *shape[axis + 1 :]) if axis else shape
