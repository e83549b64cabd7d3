"""What refusals cost: goodput and CPU at 64, 256 and 1,024 connections whose callers retry at once.

With the most pending of config.yml, 1,000, only the last has more callers than that. Levels are measured in
turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.load import CannotMeasure, bodies_file, wrk
from bench.running import ROOT, RunningService, default_config, running_service
from bench.texts import headlines, http_body

EXAMPLES = """examples:
  python -m bench.refusals
  python -m bench.refusals --rounds 5 --seconds 8
"""
CONNECTIONS = (64, 256, 1024)
_OVERLOADED = "3001"


class Level(NamedTuple):
    """One load: answers and refusals a second, the latency of both, CPU seconds a second."""

    answered: float
    refused: float
    p50_ms: float
    p99_ms: float
    front_cpu: float
    workers_cpu: float


def measured(service: RunningService, connections: int, seconds: float) -> Level:
    with bodies_file([http_body(text) for text in headlines()]) as bodies:
        before, (front_s, workers_s), began = service.answered(), service.cpu_s(), time.monotonic()
        load = wrk(service.url, "/bert/prediction", connections=connections, seconds=seconds, bodies=bodies)
        took_s = time.monotonic() - began
        after, (front_end_s, workers_end_s) = service.answered(), service.cpu_s()
    came = {outcome: (count - before.get(outcome, 0)) / took_s for outcome, count in after.items()}
    refused = came.pop(_OVERLOADED, 0.0)
    cpu = (front_end_s - front_s) / took_s, (workers_end_s - workers_s) / took_s
    return Level(came.pop("ok", came.pop("0", 0.0)), refused, load.p50_ms, load.p99_ms, *cpu)


def table_of(levels: dict[int, list[Level]]) -> Table:
    """The medians; what an answer costs is that of the fewest connections, and refusals have the rest."""
    table = Table(title="the demo model, callers that retry at once", title_justify="left")
    for heading in (
        "connections", "goodput/s", "refused/s", "p50 ms", "p99", "front CPU", "workers CPU",
        "us an answer", "us a refusal",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    answer_s = 0.0
    for connections, rounds in levels.items():
        level = Level(*map(median, zip(*rounds, strict=True)))
        if not level.refused:
            answer_s = level.front_cpu / level.answered
        refusal_s = (level.front_cpu - answer_s * level.answered) / level.refused if level.refused else None
        table.add_row(
            str(connections), f"{level.answered:.0f}", f"{level.refused:.0f}", f"{level.p50_ms:.0f}",
            f"{level.p99_ms:.0f}", f"{level.front_cpu:.2f}", f"{level.workers_cpu:.2f}",
            f"{answer_s * 1e6:.0f}", "" if refusal_s is None else f"{refusal_s * 1e6:.0f}",
        )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.refusals",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=3, help="of each load (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=5, help="of each load (default: %(default)s)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    levels: dict[int, list[Level]] = {connections: [] for connections in CONNECTIONS}
    try:
        with running_service(ROOT / "web_service.py", default_config()) as service:
            measured(service, CONNECTIONS[0], 2)
            for _ in range(options.rounds):
                for connections, rounds in levels.items():
                    rounds.append(measured(service, connections, options.seconds))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    console.print(table_of(levels))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
