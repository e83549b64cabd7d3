"""Latency summaries of models: count, sum, and quantiles over a sliding window, as Triton's summaries."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from pipeline.messages.messages import Timings

WINDOW_S = 60.0
_SLICES = 5  # of the window; the oldest slice is dropped as a whole
_SLICE_S = WINDOW_S / _SLICES
_PER_POWER = 1 / math.log(1.02)  # bounds of the buckets grow by 2 %
_US_PER_S = 1_000_000
_NS_PER_US = 1000

Buckets = dict[int, list[float]]
"""Number and sum of the values in each bucket."""


class Summary:
    """Prometheus summary: count and sum of all values, and quantiles of the values of the last minute.

    Values are counted in buckets that are 2 % wide, and a quantile is the mean value of its bucket.
    """

    __slots__ = ("_clock", "_slice_began", "_slices", "count", "total")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.count = 0
        self.total = 0.0
        self._clock = clock
        self._slice_began = clock()
        self._slices: deque[Buckets] = deque([{}], _SLICES)

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value, in microseconds. times: how many equal values to count."""
        self.count += times
        self.total += value * times
        self._drop_old_slices()
        bucket = 1 + int(math.log(value) * _PER_POWER) if value >= 1 else 0
        entry = self._slices[-1].get(bucket)
        if entry is None:
            self._slices[-1][bucket] = [times, value * times]
        else:
            entry[0] += times
            entry[1] += value * times

    def get_quantiles(self, quantiles: Iterable[float]) -> list[float]:
        """Return these quantiles of the values of the last minute; NaN for each if there are no values."""
        self._drop_old_slices()
        merged: Buckets = {}
        for buckets in self._slices:
            for bucket, (number, total) in buckets.items():
                entry = merged.setdefault(bucket, [0, 0.0])
                entry[0] += number
                entry[1] += total
        ordered = [merged[bucket] for bucket in sorted(merged)]
        return [_find_quantile(ordered, quantile) for quantile in quantiles]

    def _drop_old_slices(self) -> None:
        passed = int((self._clock() - self._slice_began) / _SLICE_S)
        if passed:
            self._slice_began += passed * _SLICE_S
            self._slices.extend({} for _ in range(min(passed, _SLICES)))


def _find_quantile(buckets: Sequence[Sequence[float]], quantile: float) -> float:
    """Return the mean value of the bucket that contains the quantile. buckets: in ascending order."""
    rank = max(1, math.ceil(quantile * sum(number for number, _ in buckets)))
    for number, total in buckets:
        rank -= int(number)
        if rank <= 0:
            return total / number
    return math.nan


class ModelLatencies:
    """Latency summaries of one model, in microseconds."""

    __slots__ = (
        "cache_hit",
        "cache_miss",
        "compute_infer",
        "compute_input",
        "compute_output",
        "queue",
        "request",
    )

    def __init__(self) -> None:
        self.request = Summary()
        self.queue = Summary()
        self.compute_input = Summary()
        self.compute_infer = Summary()
        self.compute_output = Summary()
        self.cache_hit = Summary()  # lookups
        self.cache_miss = Summary()  # lookups and insertions

    def observe(self, request_s: float, stages_s: Sequence[float]) -> None:
        """Count a successful request and its durations.

        stages_s: seconds in the queue, and before, during and after the model run.
        """
        self.request.observe(request_s * _US_PER_S)
        stages = self.queue, self.compute_input, self.compute_infer, self.compute_output
        for summary, stage_s in zip(stages, stages_s, strict=True):
            summary.observe(stage_s * _US_PER_S)

    def observe_step(self, run: Timings, requests: int) -> None:
        """Count a batch of an ensemble's step whose requests did not wait in a queue.

        requests: number of requests in the batch.
        """
        spent_ns = run.preprocess_ns, run.process_ns, run.postprocess_ns
        self.request.observe(sum(spent_ns) / _NS_PER_US, requests)
        self.queue.observe(0.0, requests)
        stages = self.compute_input, self.compute_infer, self.compute_output
        for summary, stage_ns in zip(stages, spent_ns, strict=True):
            summary.observe(stage_ns / _NS_PER_US, requests)

    def observe_hit(self, lookup_ns: int) -> None:
        """Count a request that the response cache has answered."""
        self.queue.observe(0.0)
        self.cache_hit.observe(lookup_ns / _NS_PER_US)

    def observe_miss(self, spent_ns: int) -> None:
        """Count a request that was not in the response cache.

        spent_ns: nanoseconds for the lookup and the insertion.
        """
        self.cache_miss.observe(spent_ns / _NS_PER_US)
