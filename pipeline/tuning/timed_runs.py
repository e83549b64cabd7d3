"""Times runs of a loaded model at several numbers of rows and lengths, within a budget of time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import NamedTuple

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array, input_examples
from pipeline.errors import InvalidInput, ModelFailed
from pipeline.tuning.choice import Point

ROWS = (1, 2, 4, 8, 16, 32)
LENGTHS = (8, 16, 64, 256)
REPEATS = 3
_MIN_S = 1e-7


class Grid(NamedTuple):
    """The sizes to time."""

    rows: tuple[int, ...] = ROWS
    lengths: tuple[int, ...] = LENGTHS


def time_runs(
    predictor: Predictor,
    grid: Grid,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    make_feeds: Callable[[int, int], dict[str, Array]] | None = None,
) -> tuple[Point, ...]:
    """Return the fastest of a few runs of each size, small sizes first, as far as the budget allows.

    Larger sizes are estimated in proportion to their elements. Raise ModelFailed or InvalidInput if the
    smallest size does not run. make_feeds: makes feeds of (rows, length); None: feeds of ones.
    """
    make_feeds = make_feeds or partial(input_examples, predictor)
    until = clock() + budget_s
    measured: dict[tuple[int, int], float] = {}
    for rows, length in sorted(product(*grid), key=lambda size: size[0] * size[1]):
        expected_s = _estimate(measured, rows, length) if measured else 0.0
        if clock() + expected_s * (1 + REPEATS) > until:
            continue
        try:
            measured[rows, length] = min(_runs(predictor, make_feeds(rows, length), clock))
        except (InvalidInput, ModelFailed):
            if not measured:
                raise
    return tuple(
        (rows, length, measured.get((rows, length)) or _estimate(measured, rows, length))
        for rows, length in product(*grid)
    )


def _runs(predictor: Predictor, feeds: dict[str, Array], clock: Callable[[], float]) -> Iterator[float]:
    predictor.run(feeds)  # the first run of a shape prepares memory
    for _ in range(REPEATS):
        started = clock()
        predictor.run(feeds)
        yield max(_MIN_S, clock() - started)


def _estimate(measured: dict[tuple[int, int], float], rows: int, length: int) -> float:
    """Estimate a time from the nearest measured size, in proportion to the number of elements."""
    size = rows * length
    near = min(measured, key=lambda timed: max(timed[0] * timed[1], size) / min(timed[0] * timed[1], size))
    return measured[near] * max(1.0, size / (near[0] * near[1]))
