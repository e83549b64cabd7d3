"""Upgrades of a model to the same model under live requests, and what the comparison costs the callers.

The demo model of 2 x 128 runs as ONNX in a model repository. First windows of the load alternate: without an
upgrade, and while an upgrade compares answers. Then the model is upgraded many times, to a copy of itself.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.cache import PROGRAM, build_body
from bench.load import CannotMeasure, Load, bodies_file, wrk
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until

EXAMPLES = """examples:
  python -m bench.upgrades --upgrades 100
  python -m bench.upgrades --upgrades 20 --canary 10 50 100
  python -m bench.upgrades --upgrades 0 --rounds 20      the cost of the comparison alone
"""
CONFIG = 'backend: "onnxruntime"\nmax_batch_size: 16\ndynamic_batching { }\n'
UPGRADE = "/v2/repository/models/bert/upgrade"
INFER = "/v2/models/bert/infer"
BODIES, CONNECTIONS, DELAY_MS = 2000, 4, 20
LATE_S = 1  # an answer after that is an error
LOAD_S = 5.0  # of a run of the load generator beside the upgrades
PATIENCE_S = 600.0
GOAL_P99, GOAL_REFUSED = 1.1, 1


class Outcome(NamedTuple):
    """The end of one upgrade. report: as the service reports it."""

    report: dict[str, Any]
    seconds: float


class Model:
    """A model of a repository with numbered versions, which are all the same.

    served: the version that the service answers with.
    """

    def __init__(self, repository: Path) -> None:
        self._folder = repository / "bert"
        self._folder.mkdir()
        (self._folder / "config.pbtxt").write_text(CONFIG)
        self.version, self.served = 0, 1
        self.add_version()

    def add_version(self) -> None:
        """Add the next version, and remove versions that are not served."""
        for version in range(1, self.version + 1):
            if version != self.served:
                shutil.rmtree(self._folder / str(version), ignore_errors=True)
        self.version += 1
        (self._folder / str(self.version)).mkdir()
        shutil.copy(PROGRAM, self._folder / str(self.version))


class Callers:
    """Closed-loop callers of the model, which pause after each answer."""

    def __init__(self, service: RepositoryProcess, bodies: Path) -> None:
        self.loads: list[Load] = []
        self._url = f"http://127.0.0.1:{service.http_port}"
        self._bodies = bodies
        self._ended = threading.Event()

    def send(self, seconds: float) -> Load:
        """Send requests for some seconds."""
        return wrk(
            self._url, INFER, connections=CONNECTIONS, seconds=seconds, bodies=self._bodies,
            timeout_s=LATE_S, delay_ms=DELAY_MS,
        )  # fmt: skip

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Send requests up to the end of the block."""
        thread = threading.Thread(target=self._send_on)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _send_on(self) -> None:
        while not self._ended.is_set():
            self.loads.append(self.send(LOAD_S))


def begin(service: RepositoryProcess, version: int, **settings: Any) -> None:
    """Begin an upgrade. Raises CannotMeasure if the service refuses it."""
    answer = service.http(UPGRADE, json.dumps({"version": version, **settings}))
    if answer.status != 202:
        raise CannotMeasure(f"the upgrade does not begin: {answer.json}")


def wait_for(service: RepositoryProcess, key: str, *values: str) -> dict[str, Any]:
    """Wait until the report of the upgrade has one of these values. Return the report."""
    wait_until(lambda: service.http(UPGRADE).json[key] in values, f"{key} is {values[0]}", PATIENCE_S)
    report: dict[str, Any] = service.http(UPGRADE).json
    return report


def measure_windows(
    service: RepositoryProcess, model: Model, callers: Callers, rounds: int, seconds: float
) -> list[tuple[Load, Load]]:
    """Alternate windows of load without and with an upgrade that compares answers. Return them by round."""
    model.add_version()
    windows = []
    for number in range(rounds):
        of_round: dict[bool, Load] = {}
        for mirrors in (bool(number % 2), not number % 2):
            if mirrors:
                begin(service, model.version, requests=10**7)
                wait_for(service, "phase", "comparing")
            of_round[mirrors] = callers.send(seconds)
            if mirrors:
                service.http(UPGRADE, method="DELETE")
                wait_for(service, "result", "inconclusive")
        windows.append((of_round[False], of_round[True]))
    return windows


def upgrade_often(
    service: RepositoryProcess, model: Model, callers: Callers, upgrades: int, settings: dict[str, Any]
) -> Iterator[Outcome]:
    """Upgrade the model to a copy of itself, again and again, under load. Yield each end."""
    with callers.going_on():
        for _ in range(upgrades):
            model.add_version()
            began = time.monotonic()
            begin(service, model.version, **settings)
            report = wait_for(service, "result", "accepted", "refused", "inconclusive")
            if report["result"] == "accepted":
                model.served = model.version
            yield Outcome(report, time.monotonic() - began)


def print_upgrades(console: Console, outcomes: list[Outcome], loads: list[Load]) -> bool:
    """Print the results of the upgrades and of the live requests. Return whether the goals are met."""
    results = Counter(outcome.report["result"] for outcome in outcomes)
    seconds = median(outcome.seconds for outcome in outcomes)
    compared = sum(outcome.report["requests"]["compared"] for outcome in outcomes)
    sent, errors = (sum(getattr(load, name) for load in loads) for name in ("requests", "errors"))
    p50_ms, p99_ms = (median(getattr(load, name) for load in loads) for name in ("p50_ms", "p99_ms"))
    console.print(
        f"{len(outcomes)} upgrades: {dict(results)} (goal: at most {GOAL_REFUSED} of 100 refused); "
        f"{seconds:.1f} s each in the median, {compared:,} answers compared"
    )
    console.print(
        f"{errors} of {sent:,} live requests failed or took over {LATE_S} s (goal 0); with upgrades p50 "
        f"{p50_ms:.2f} and p99 {p99_ms:.2f} ms, medians of {len(loads)} windows of {LOAD_S:g} s"
    )
    return not errors and results["refused"] <= GOAL_REFUSED


def print_windows(console: Console, windows: list[tuple[Load, Load]]) -> None:
    """Print the windows, and the ratio of their p99."""
    table = Table("window", "requests/s", "p50 ms", "p99 ms", "errors")
    for name, loads in zip(("no upgrade", "comparing"), zip(*windows, strict=True), strict=True):
        figures = (median(load.per_s for load in loads), median(load.p50_ms for load in loads))
        p99_ms, errors = median(load.p99_ms for load in loads), sum(load.errors for load in loads)
        table.add_row(name, f"{figures[0]:,.0f}", f"{figures[1]:.2f}", f"{p99_ms:.2f}", str(errors))
    console.print(table)
    ratio = median(mirrored.p99_ms / plain.p99_ms for plain, mirrored in windows)
    console.print(
        f"p99 with / without the comparison, median of {len(windows)}: {ratio:.2f} (goal {GOAL_P99})"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.upgrades", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--upgrades", type=int, default=10, help="to the same model (%(default)s)")
    parser.add_argument("--requests", type=int, default=2000, help="that each compares (%(default)s)")
    parser.add_argument(
        "--canary", type=float, nargs="*", default=[], metavar="PERCENT", help="steps of each"
    )
    parser.add_argument("--share-cpu", action="store_true", help="compare without idle CPU time, too")
    parser.add_argument("--rounds", type=int, default=5, help="of two windows each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each window (%(default)s)")
    options, console = parser.parse_args(), Console()
    settings = {"requests": options.requests, "canary": options.canary, "share_cpu": options.share_cpu}
    outcomes: list[Outcome] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        bodies_file([build_body(n) for n in range(BODIES)]) as bodies,
    ):
        model = Model(Path(folder))
        arguments = ["--model-control-mode=explicit", "--load-model=*"]
        with RepositoryProcess(Path(folder), arguments=arguments) as service:
            callers = Callers(service, bodies)
            try:
                if options.rounds:
                    print_windows(
                        console, measure_windows(service, model, callers, options.rounds, options.seconds)
                    )
                for outcome in upgrade_often(service, model, callers, options.upgrades, settings):
                    outcomes.append(outcome)
                    if outcome.report["result"] != "accepted":
                        console.print(f"{outcome.report['result']}: {outcome.report['reason']}")
                    if len(outcomes) % 10 == 0:
                        console.print(f"{len(outcomes)} upgrades have ended")
            except CannotMeasure as exc:
                console.print(f"[red]{exc}[/red]")
                return 1
    return int(bool(outcomes) and not print_upgrades(console, outcomes, callers.loads))


if __name__ == "__main__":
    sys.exit(main())
