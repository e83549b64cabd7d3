"""Figures: totals since the start of a service's requests and of an Op's runs.

Plain numbers, which a request only adds to, and no request fails for: `Metrics` makes of them what /metrics
says when it is asked.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pipeline.errors import DeadlineExceeded, Overloaded, ServingError, is_clients
from pipeline.messages.messages import Timings
from pipeline.process.isolation import isolated

_NS = 1_000_000_000
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Distribution:
    """Values counted by their size. bounds: the most that each bucket holds; the last one has no bound."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def note(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def note_all(self, values: Iterable[float]) -> None:
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self.total += value


@dataclass(slots=True)
class Failures:
    """What was not answered. rejected: for want of time or room; canceled: the client left; broken: the app's
    code or its model failed; other: the request could not be read or used. steps: of an ensemble those that
    it failed at, each by its name and its Op's.
    """

    rejected: int = 0
    canceled: int = 0
    broken: int = 0
    other: int = 0
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)

    @isolated(None)
    def note(self, error: ServingError) -> None:
        if error.err_no in _OF_TIME_AND_ROOM:
            self.rejected += 1
        elif is_clients(error):
            self.other += 1
        else:
            self.broken += 1


_OF_TIME_AND_ROOM = Overloaded.err_no, DeadlineExceeded.err_no


@dataclass(slots=True)
class RequestFigures:
    """The requests of the service, whole DAG runs. last_s: when the latest ended, since 1970.

    failed: of those that were admitted, while their clients waited.
    """

    succeeded: int = 0
    succeeded_s: float = 0.0
    failed: int = 0
    failed_s: float = 0.0
    rows: int = 0
    last_s: float = 0.0
    failures: Failures = field(default_factory=Failures)

    def note(self, took_s: float, rows: int, *, failed: bool) -> None:
        self.last_s = time.time()
        if failed:
            self.failed += 1
            self.failed_s += took_s
        else:
            self.succeeded += 1
            self.succeeded_s += took_s
            self.rows += rows


@dataclass(slots=True)
class RunFigures:
    """Predictor batches of one size: how many, and what was done before, in and after the predictor."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, input_ns: int, infer_ns: int, output_ns: int, times: int = 1) -> None:
        self.count += times
        self.input_ns += input_ns * times
        self.infer_ns += infer_ns * times
        self.output_ns += output_ns * times


@dataclass(slots=True)
class OpFigures:
    """What an Op did. shares: as each request sees it, the whole of every batch that it was part of.

    by_rows: the batches that were answered, by their rows; of an Op without a model by their requests.
    batch_rows: of all predictor batches. tokens: their rows x own length; padding: what was added to them.
    retried: requests that were queued again because their worker had died. moved: requests that another
    instance runs because theirs seemed to hang. abandoned: hand-overs that were
    over the Op's timeout.
    """

    queue_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    predictor_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    batch_rows: Distribution = field(default_factory=lambda: Distribution(ROWS))
    tokens: int = 0
    padding: int = 0
    failed: int = 0
    failures: Failures = field(default_factory=Failures)
    retried: int = 0
    moved: int = 0
    abandoned: int = 0
    preprocess_ns: int = 0
    postprocess_ns: int = 0
    shares: RunFigures = field(default_factory=RunFigures)
    by_rows: dict[int, RunFigures] = field(default_factory=dict)
    last_ms: int = 0

    def note_run(self, timings: Timings, settled: int) -> None:
        """timings: of a reply. settled: its requests."""
        input_ns, infer_ns, output_ns = timings.preprocess_ns, timings.process_ns, timings.postprocess_ns
        self.last_ms = time.time_ns() // 1_000_000
        self.preprocess_ns += input_ns
        self.postprocess_ns += output_ns
        self.shares.add(input_ns, infer_ns, output_ns, settled)
        if timings.answered:
            run = self.by_rows.get(timings.answered)
            if run is None:
                run = self.by_rows[timings.answered] = RunFigures()
            run.add(input_ns, infer_ns, output_ns)
        if timings.batches:
            self.predictor_s.note(infer_ns / _NS)
            self.batch_rows.note(timings.rows)
            self.tokens += timings.tokens
            self.padding += timings.padded_tokens - timings.tokens

    @property
    def queued(self) -> int:
        return sum(self.queue_s.counts)

    @property
    def queued_ns(self) -> int:
        return int(self.queue_s.total * _NS)

    @property
    def runs(self) -> int:
        return sum(run.count for run in self.by_rows.values())

    @property
    def rows(self) -> int:
        return sum(rows * run.count for rows, run in self.by_rows.items())
