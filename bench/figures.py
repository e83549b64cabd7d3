"""The results of one measurement, and the table of all results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

TARGET_RATIO = 5.0
TARGET_ADDED_MS = 0.3


class Figures(NamedTuple):
    """Results of one load. Latencies and CPU times in ms; CPU is per request, and None if it was not read.

    inside_ms: the part of `cpu_ms` that was spent in tokenizer and predictor calls.
    """

    per_s: float
    p50_ms: float
    p90_ms: float
    p99_ms: float
    errors: int
    cpu_ms: float
    front_ms: float | None = None
    workers_ms: float | None = None
    inside_ms: float | None = None
    texts_per_run: float | None = None


Rounds = Mapping[str, Sequence[Figures]]

HTTP, GRPC, BARE = "service, HTTP", "service, gRPC", "bare uvicorn"
BARE_PACED = "bare uvicorn at the service's rate"
HTTP_ONE = "service, HTTP, 1 connection"
PIPELINE_ONE = "two bare processes, 1 connection"
PREDICTOR = "tokenizer + predictor, {} at a time"
PREDICTOR_ONE = PREDICTOR.format(1)


def print_table(console: Console, rounds: Rounds, title: str) -> None:
    """Print a line for each subject: the medians of its measurements, and the sum of its errors."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for heading in (
        "texts/s",
        "p50 ms",
        "p90",
        "p99",
        "errors",
        "CPU ms",
        "front",
        "workers",
        "inside",
        "texts/run",
    ):
        table.add_column(heading, justify="right")
    for name, figures in rounds.items():
        columns = zip(*figures, strict=True)
        middle = [median(column) if None not in column else None for column in columns]
        per_s, p50, p90, p99, _, *cpu, texts_per_run = middle
        table.add_row(
            name, f"{per_s:.0f}", f"{p50:.3f}", f"{p90:.3f}", f"{p99:.3f}",
            str(sum(f.errors for f in figures)),
            *("" if value is None else f"{value:.4f}" for value in cpu),
            "" if texts_per_run is None else f"{texts_per_run:.1f}",
        )  # fmt: skip
    console.print(table)
    console.print("CPU ms: of the server, per request; inside: in tokenizer and predictor calls, part of it.")


def print_targets(console: Console, rounds: Rounds) -> None:
    """Print both targets, each with PASS or OVER TARGET. A round is compared with its own baseline."""
    http, bare = rounds[HTTP], rounds[BARE]
    beyond = [f.cpu_ms - (f.inside_ms or 0.0) for f in http]
    ratios = [ms / baseline.cpu_ms for ms, baseline in zip(beyond, bare, strict=True)]
    console.print(
        f"CPU beyond tokenizer and predictor: {median(beyond):.4f} ms a request, {median(ratios):.1f}x "
        f"bare uvicorn (rounds: {', '.join(f'{ratio:.1f}' for ratio in ratios)}); target {TARGET_RATIO:g}x: "
        f"{_verdict(median(ratios) <= TARGET_RATIO)}"
    )
    paced = [ms / baseline.cpu_ms for ms, baseline in zip(beyond, rounds[BARE_PACED], strict=True)]
    console.print(
        f"the same against bare uvicorn at the service's rate: {median(paced):.1f}x "
        f"(rounds: {', '.join(f'{ratio:.1f}' for ratio in paced)}); a process that is seldom woken is dear"
    )
    added = _added_ms(rounds, HTTP_ONE)
    console.print(
        f"latency added at one connection: {_middle_and_spread(added)}; target {TARGET_ADDED_MS:g} ms: "
        f"{_verdict(median(added) <= TARGET_ADDED_MS)}"
    )
    console.print(f"the same of two bare processes: {_middle_and_spread(_added_ms(rounds, PIPELINE_ONE))}")


def _added_ms(rounds: Rounds, name: str) -> list[float]:
    """Return by how much the p50 of each turn exceeds that of tokenizer and predictor just before."""
    pairs = zip(rounds[name], rounds[PREDICTOR_ONE], strict=True)
    return [figures.p50_ms - alone.p50_ms for figures, alone in pairs]


def _middle_and_spread(added_ms: Sequence[float]) -> str:
    low, middle, high = quantiles(added_ms, method="inclusive") if len(added_ms) > 1 else list(added_ms) * 3
    return f"{middle:.3f} ms of p50 ({len(added_ms)} turns, the middle half of them {low:.3f} to {high:.3f})"


def _verdict(met: bool) -> str:
    return "[green]PASS[/]" if met else "[red]OVER TARGET[/]"
