"""Measures the seconds of a model run at several batch sizes and sequence lengths, in a child process."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import msgspec

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array, input_examples
from pipeline.errors import InvalidInput, ModelFailed
from pipeline.process.environment import MODEL_PROCESS
from pipeline.process.helper_process import HelperFailed, run_helper
from pipeline.tuning.choice import Point, Timed

ROWS = (1, 2, 4, 8, 16, 32)
LENGTHS = (8, 16, 64, 256)
REPEATS = 3
_MIN_S = 1e-7


class Grid(NamedTuple):
    """Batch sizes and sequence lengths at which a model is timed."""

    rows: tuple[int, ...] = ROWS
    lengths: tuple[int, ...] = LENGTHS


def time_runs(
    predictor: Predictor,
    grid: Grid,
    budget_s: float,
    clock: Callable[[], float] = time.perf_counter,
    make_feeds: Callable[[int, int], dict[str, Array]] | None = None,
) -> tuple[Point, ...]:
    """Time a model at each batch size and length, and return a tuple of (rows, length, seconds).

    Each time is the fastest of a few runs. Small sizes go first; sizes beyond the budget are estimated in
    proportion to their elements. Raises ModelFailed or InvalidInput if the smallest size does not run.
    budget_s: seconds of `clock` for all runs. make_feeds: makes the inputs for (rows, length); None: inputs
    filled with ones.
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
    """Yield the seconds of each repeated run on the same inputs, after a warm-up."""
    predictor.run(feeds)  # the first run of a shape prepares memory
    for _ in range(REPEATS):
        started = clock()
        predictor.run(feeds)
        yield max(_MIN_S, clock() - started)


def _estimate(measured: dict[tuple[int, int], float], rows: int, length: int) -> float:
    """Estimate the seconds of a run from the nearest measured size, in proportion to its elements."""
    size = rows * length
    near = min(measured, key=lambda timed: max(timed[0] * timed[1], size) / min(timed[0] * timed[1], size))
    return measured[near] * max(1.0, size / (near[0] * near[1]))


LOAD_S = 120.0  # added to the budget: a large model takes long to load
_ERROR_LINES = 3


class Order(msgspec.Struct, frozen=True):
    """Input of the measuring process: the engine, precision and settings to time, and the sizes."""

    engine: str
    precision: str
    conf: dict[str, Any]  # `local_service_conf`
    rows: list[int]  # numbers of rows to time
    lengths: list[int]  # lengths to time
    budget_s: float  # for the runs, without loading the model
    agreeing: bool = False  # whether the answers on real rows must agree with fp32
    onednn: bool = False  # whether oneDNN is tried, and must agree with the native program on real rows


def timed(order: Order) -> Timed:
    """Measure an engine and precision in a child process, and wait for the result.

    A crash or a hang does not raise: the result's `refused` has the reason.
    """
    refusal = Timed(order.engine, order.precision, onednn=order.onednn)
    # In memory: a container may have no folder that can be written.
    with os.fdopen(os.memfd_create("paddlewheel-timed"), "rb") as answer:
        try:
            result = run_helper(
                "pipeline.tuning",
                f"/proc/self/fd/{answer.fileno()}",
                stdin=msgspec.json.encode(order),
                env={**MODEL_PROCESS, **os.environ},
                pass_fds=(answer.fileno(),),
                timeout_s=LOAD_S + 2 * order.budget_s,
            )
        except HelperFailed as exc:
            return msgspec.structs.replace(refusal, refused=f"its process {exc.message}")
        try:
            return msgspec.json.decode(answer.read(), type=Timed)
        except msgspec.DecodeError:  # it wrote nothing, or not all of it
            last_lines = result.stderr.strip().splitlines()[-_ERROR_LINES:]
            why = ": ".join(
                [f"its process ended with {result.status}", *filter(None, [" ".join(last_lines)])]
            )
            return msgspec.structs.replace(refusal, refused=why)
