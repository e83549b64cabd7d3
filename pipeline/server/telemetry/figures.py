"""Figures: totals since the start of a service's requests and of an Op's runs; times in nanoseconds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

_NS = 1_000_000_000


@dataclass(slots=True)
class RequestFigures:
    """The requests of the service, whole walks. last_ms: when the latest ended, since 1970."""

    succeeded: int = 0
    succeeded_ns: int = 0
    failed: int = 0
    failed_ns: int = 0
    rows: int = 0
    last_ms: int = 0

    def note(self, took_s: float, rows: int, *, failed: bool) -> None:
        self.last_ms = time.time_ns() // 1_000_000
        took_ns = int(took_s * _NS)
        if failed:
            self.failed += 1
            self.failed_ns += took_ns
        else:
            self.succeeded += 1
            self.succeeded_ns += took_ns
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
    """

    queued: int = 0
    queued_ns: int = 0
    failed: int = 0
    shares: RunFigures = field(default_factory=RunFigures)
    by_rows: dict[int, RunFigures] = field(default_factory=dict)
    last_ms: int = 0

    def note_queue(self, waited_s: float) -> None:
        self.queued += 1
        self.queued_ns += int(waited_s * _NS)

    def note_run(self, timings: Sequence[int], settled: int) -> None:
        """timings: of a reply, see `pipeline.worker.executor.Executor.run`. settled: its requests."""
        input_ns, infer_ns, output_ns = timings[:3]
        answered = timings[-1]
        self.last_ms = time.time_ns() // 1_000_000
        self.shares.add(input_ns, infer_ns, output_ns, settled)
        if answered:
            self.by_rows.setdefault(answered, RunFigures()).add(input_ns, infer_ns, output_ns)

    @property
    def runs(self) -> int:
        return sum(run.count for run in self.by_rows.values())

    @property
    def rows(self) -> int:
        return sum(rows * run.count for rows, run in self.by_rows.items())
