"""Cost of refusals: goodput, and CPU of the front, with callers that retry at once.

1,000 requests may be pending, so only levels with more connections have refusals. Levels are measured in
turns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.burning_service import ON_CARD
from bench.load import CannotMeasure, bodies_file, wrk
from bench.running import ROOT, ServiceCpu, default_config, running_service
from bench.texts import headlines, http_body
from tests.support.service_process import ServiceProcess

EXAMPLES = """examples:
  python -m bench.refusals
  python -m bench.refusals --rounds 5 --seconds 8
  python -m bench.refusals --subject resting
"""
_MAX_PENDING = 1000
_OVERLOADED = "3001"
_IDLE_WITHIN_S = 30.0


class Subject(NamedTuple):
    """A service, and the numbers of connections to load it with."""

    title: str
    script: Path
    config: dict[str, Any]
    connections: tuple[int, ...]
    env: dict[str, str] = {}


def demo() -> Subject:
    return Subject("the demo model", ROOT / "web_service.py", default_config(), (64, 256, 1024))


def resting() -> Subject:
    """Return a service whose workers use no CPU and answer little: the front's CPU goes into refusals."""
    config = {
        "dag": {"http_errors": "status", "is_thread_op": False, "max_pending_requests": _MAX_PENDING},
        "op": {"burn": {"concurrency": 1}},
    }
    script = ROOT / "bench" / "burning_service.py"
    return Subject("an Op that sleeps for 10 ms", script, config, (64, 1024, 2000), {ON_CARD: "1"})


SUBJECTS = {"demo": demo, "resting": resting}


class Level(NamedTuple):
    """Results of one load: answers and refusals per second, the latency of both, CPU seconds per second."""

    answered: float
    refused: float
    p50_ms: float
    p99_ms: float
    front_cpu: float
    workers_cpu: float


def measured(service: ServiceProcess, connections: int, seconds: float) -> Level:
    _until_idle(service)
    cpu = ServiceCpu(service)
    with bodies_file([http_body(text) for text in headlines()]) as bodies:
        before, (front_s, workers_s), began = service.answered(), cpu.so_far_s(), time.monotonic()
        load = wrk(service.url, "/bert/prediction", connections=connections, seconds=seconds, bodies=bodies)
        took_s = time.monotonic() - began
        after, (front_end_s, workers_end_s) = service.answered(), cpu.so_far_s()
    came = {outcome: (count - before.get(outcome, 0)) / took_s for outcome, count in after.items()}
    refused = came.pop(_OVERLOADED, 0.0)
    busy = (front_end_s - front_s) / took_s, (workers_end_s - workers_s) / took_s
    return Level(came.pop("ok", came.pop("0", 0.0)), refused, load.p50_ms, load.p99_ms, *busy)


def _until_idle(service: ServiceProcess) -> None:
    """Wait until no request of the former load is pending, whose clients have left."""
    until = time.monotonic() + _IDLE_WITHIN_S
    while time.monotonic() < until:
        with urllib.request.urlopen(f"{service.url}/metrics") as answer:
            if b"\npaddlewheel_pending_requests 0" in answer.read():
                return
        time.sleep(0.1)
    raise CannotMeasure(f"requests are still pending {_IDLE_WITHIN_S:g} s after their callers have left")


def build_table(title: str, levels: dict[int, list[Level]]) -> Table:
    """Return the table of medians.

    The level with the fewest connections gives the cost of an answer. The remaining CPU of other levels is
    that of their refusals.
    """
    table = Table(title=f"{title}, callers that retry at once", title_justify="left")
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
    parser.add_argument("--subject", choices=[*SUBJECTS], default="demo", help="default: %(default)s")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        subject = SUBJECTS[options.subject]()
        levels: dict[int, list[Level]] = {connections: [] for connections in subject.connections}
        with running_service(subject.script, subject.config, os.environ | subject.env) as service:
            measured(service, subject.connections[0], 2)
            for _ in range(options.rounds):
                for connections, rounds in levels.items():
                    rounds.append(measured(service, connections, options.seconds))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    console.print(build_table(subject.title, levels))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
