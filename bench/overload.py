"""Goodput under overload: answers within their deadline at 1x, 2x, 3x, 5x and 10x of the peak."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.burning_service import ON_CARD
from bench.load import CannotMeasure, bodies_file, wrk
from bench.open_loop import Arrivals, offer
from bench.processes import resident_mb
from bench.running import ROOT, default_config, running_service
from bench.texts import headlines, http_body

EXAMPLES = """examples:
  python -m bench.overload
  python -m bench.overload --subject model-bound --seconds 20 --deadline-ms 1000
"""
KEPT = 0.9  # minimum goodput, as a share of the peak


class Subject(NamedTuple):
    """A service, the number of connections that finds its peak, and the offered multiples of the peak."""

    title: str
    script: Path
    config: dict[str, Any]
    connections: int
    factors: tuple[int, ...]
    env: dict[str, str] = {}


ONE_INSTANCE = {
    "dag": {"http_errors": "status", "is_thread_op": False},
    "op": {"burn": {"concurrency": 1}},
}
BURNING = ROOT / "bench" / "burning_service.py"


def model_bound() -> Subject:
    title = "an Op of 10 ms of CPU a request, 1 instance"
    return Subject(title, BURNING, ONE_INSTANCE, 4, (1, 2, 5, 10))


def card_bound() -> Subject:
    title = "an Op of 10 ms a request that need no CPU, 1 instance"
    return Subject(title, BURNING, ONE_INSTANCE, 4, (1, 2, 5, 10), {ON_CARD: "1"})


def demo() -> Subject:
    return Subject("the demo model", ROOT / "web_service.py", default_config(), 64, (1, 2, 3, 5))


SUBJECTS = {"model-bound": model_bound, "card-bound": card_bound, "demo": demo}


class Level(NamedTuple):
    """Results at `factor` times the peak. peak: requests per second of a closed loop just before."""

    factor: int
    peak: float
    arrivals: Arrivals
    front_mb: float

    @property
    def goodput(self) -> float:
        return self.arrivals.answered / self.arrivals.seconds


def curve(subject: Subject, seconds: float, deadline_ms: int) -> Iterator[Level]:
    """Yield the levels in turn.

    Each follows a new measurement of the peak, because the speed of a shared host drifts.
    """
    texts = [http_body(text) for text in headlines()]
    with (
        bodies_file(texts) as bodies,
        running_service(subject.script, subject.config, subject.env) as service,
    ):
        closed = partial(wrk, service.url, "/bert/prediction", connections=subject.connections, bodies=bodies)
        closed(seconds=2)
        for factor in subject.factors:
            peak = closed(seconds=seconds).per_s
            arrivals = offer(service.http_port, peak * factor, seconds, deadline_ms)
            yield Level(factor, peak, arrivals, resident_mb(service.process.pid))


def build_table(title: str, levels: list[Level], deadline_ms: int) -> Table:
    table = Table(title=f"{title}, deadline {deadline_ms} ms", title_justify="left")
    for heading in (
        "", "peak/s", "offered/s", "goodput/s", "of peak", "refused/s", "late", "failed", "lost", "unsent",
        "p50 ms", "p99", "max", "front MB",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for level in levels:
        got = level.arrivals
        table.add_row(
            f"{level.factor}x", f"{level.peak:.0f}", f"{got.sent / got.seconds:.0f}", f"{level.goodput:.0f}",
            f"{level.goodput / level.peak:.0%}", f"{got.refused / got.seconds:.0f}",
            *map(str, (got.late, got.failed, got.lost, got.unsent)),
            *(f"{ms:.0f}" for ms in (got.p50_ms, got.p99_ms, got.max_ms)), f"{level.front_mb:.0f}",
        )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.overload",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--subject", choices=[*SUBJECTS, "all"], default="all", help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of each level (default: %(default)s)")
    parser.add_argument("--deadline-ms", type=int, default=500, help="of each request (default: %(default)s)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    holds = True
    for name in SUBJECTS if options.subject == "all" else [options.subject]:
        try:
            subject = SUBJECTS[name]()
            with console.status(f"measuring {subject.title}"):
                levels = list(curve(subject, options.seconds, options.deadline_ms))
        except CannotMeasure as exc:
            console.print(f"not measured: {exc}", style="red", markup=False)
            return 1
        console.print(build_table(subject.title, levels, options.deadline_ms))
        if name != "demo":
            holds = holds and all(level.goodput >= KEPT * level.peak for level in levels if level.factor > 1)
    console.print("late: refused with 504, or answered after the deadline as the client sees it")
    return 0 if holds else 1


if __name__ == "__main__":
    raise SystemExit(main())
