"""The text report of a load test: throughput, latency percentiles, errors and a histogram."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

BAR_WIDTH = 40
BLOCKS = " ▏▎▍▌▋▊▉█"


class Sample(NamedTuple):
    """The record of one request of a load test: its time, latency and error."""

    at_s: float  # end of the request, since the start of the test
    latency_ms: float
    error: str | None
    late: bool = False  # started after it was due, because no thread was free


class Bin(NamedTuple):
    """A bar of the latency histogram: `size` requests between `low_ms` and `high_ms`."""

    low_ms: float
    high_ms: float
    size: int


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Return a percentile of sorted values by nearest rank, without interpolation. percent: 0 to 100."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def histogram(latencies_ms: Sequence[float], bins: int = 16) -> list[Bin]:
    """Count latencies in `bins` intervals of equal width on a logarithmic scale.

    A logarithmic scale suits the long tails of latencies.
    """
    low, high = max(min(latencies_ms), 0.001), max(latencies_ms)
    if high <= low:
        return [Bin(low, high, len(latencies_ms))]
    step = math.log(high / low) / bins
    counts = Counter(min(bins - 1, max(0, int(math.log(max(x, low) / low) / step))) for x in latencies_ms)
    edges = [low * math.exp(step * number) for number in range(bins)] + [high]
    return [Bin(edges[number], edges[number + 1], counts[number]) for number in range(bins)]


def print_report(console: Console, title: str, samples: Sequence[Sample], elapsed_s: float) -> int:
    """Print throughput, percentiles, errors and a histogram; return the number of failed requests."""
    answered = sorted(sample.latency_ms for sample in samples if sample.error is None)
    errors = Counter(sample.error for sample in samples if sample.error is not None)
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{len(samples)} in {elapsed_s:.1f} s")
    table.add_row("answered/s", f"{len(answered) / elapsed_s:.1f}")
    if answered:
        for percent in (50, 90, 99):
            table.add_row(f"p{percent}", f"{percentile(answered, percent):.2f} ms")
        table.add_row("max", f"{answered[-1]:.2f} ms")
    if late := sum(sample.late for sample in samples):
        table.add_row("begun late: take more --threads", str(late))
    table.add_row("errors", str(errors.total()))
    for kind, count in errors.most_common():
        table.add_row(f"  {kind}", str(count))
    console.print(title, style="bold", soft_wrap=True)
    console.print(table)
    if answered:
        console.print("\n".join(histogram_lines(histogram(answered))), soft_wrap=True)
    return errors.total()


def histogram_lines(bins: Sequence[Bin]) -> list[str]:
    """Return a text line with interval, bar and count for each bin of a histogram."""
    largest = max(bin.size for bin in bins)
    lines = []
    for bin in bins:
        eighths = math.ceil(bin.size / largest * BAR_WIDTH * 8)
        bar = (BLOCKS[8] * (eighths // 8) + BLOCKS[eighths % 8]).rstrip()
        lines.append(f"{bin.low_ms:9.2f} - {bin.high_ms:9.2f} ms  {bar} {bin.size}")
    return lines
