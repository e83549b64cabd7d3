"""Tracer: a line in the log for each Op's work, every `dag.tracer.interval_s`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable

from pipeline.front.metrics.metrics import Metrics
from pipeline.process.isolation import isolated

log = logging.getLogger(__name__)


class Tracer:
    """Tells what the figures of /metrics have grown by. interval_s: 0 and less for never."""

    def __init__(self, metrics: Metrics, ops: Iterable[str], interval_s: float) -> None:
        self._metrics = metrics
        self._ops = tuple(ops)
        self._interval_s = interval_s
        self._told: dict[tuple[str, str], float] = {}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._run(), name="tracer") if self._interval_s > 0 else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()

    async def _run(self) -> None:
        self._told = self._metrics.op_totals()
        while True:
            await asyncio.sleep(self._interval_s)
            self._log_growth()

    @isolated(None)
    def _log_growth(self) -> None:
        totals = self._metrics.op_totals()
        grown = {key: value - self._told.get(key, 0.0) for key, value in totals.items()}
        self._told = totals
        for op in self._ops:
            log.info("%s", self._line(op, grown))

    def _line(self, op: str, grown: dict[tuple[str, str], float]) -> str:
        def sum_and_count(histogram: str) -> tuple[float, float]:
            name = f"paddlewheel_op_{histogram}"
            return grown.get((f"{name}_sum", op), 0.0), grown.get((f"{name}_count", op), 0.0)

        queue_s, requests = sum_and_count("queue_seconds")
        predictor_s, batches = sum_and_count("predictor_seconds")
        rows, _ = sum_and_count("batch_rows")
        errors = grown.get(("paddlewheel_op_errors_total", op), 0.0)
        return (
            f"Op {op} in {self._interval_s:g} s: {requests:.0f} requests, "
            f"queue {_mean_ms(queue_s, requests)}; "
            f"{batches:.0f} batches of {rows / max(1.0, batches):.1f} rows, "
            f"predictor {_mean_ms(predictor_s, batches)}; {errors:.0f} errors"
        )


def _mean_ms(total_s: float, count: float) -> str:
    return f"{total_s / max(1.0, count) * 1000:.1f} ms"
