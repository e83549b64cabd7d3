"""Forecasts throughput and latency by simulation, and compares the forecast with a real run of the service.

Each round measures the service with one instance: the runs of the instance by their size, the front's CPU for
a request, and the way to the client and back. Then the same open-loop load goes to the simulation and to the
real service, in turns. The last table has the forecast for several nodes, each a machine as this one.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.burning_service import ON_CARD
from bench.load import CannotMeasure, Load, bodies_file, wrk
from bench.open_loop import Arrivals, offer
from bench.running import ROOT, ServiceCpu, default_config, running_service
from bench.simulated_load import ServiceTimes, SimulatedLoad
from bench.texts import headlines, http_body
from pipeline.tuning.choice import describe_machine
from tests.support.collector import Collector, get_attributes
from tests.support.service_process import ServiceProcess, wait_until

EXAMPLES = """examples:
  python -m bench.forecast
  python -m bench.forecast --subject card --rounds 5
  python -m bench.forecast --per-minute 1000000 --p99-ms 100
"""
CONNECTIONS = 64  # of the closed loop that keeps the instance busy
IDLE_PER_S = 20.0
FACTORS = (0.5, 0.8, 1.5)  # of the throughput of the closed loop
DEADLINE_MS = 500
TRACED = 5  # one of so many requests is traced while the runs are measured
WITHIN = 0.15
BATCH_SIZE = 16
NODE_LOADS = (0.95, 0.9, 0.8, 0.7, 0.6, 0.5)  # of the throughput of a node


class Subject(NamedTuple):
    """A service of one Op with one instance. config: without the section `trace`."""

    title: str
    script: str
    config: dict[str, Any]
    batch_size: int
    env: dict[str, str] = {}


def demo() -> Subject:
    config = default_config(instances=1)
    config["op"]["bert"]["batch_size"] = BATCH_SIZE
    title = f"the demo model, one instance, batches of {BATCH_SIZE}"
    return Subject(title, "web_service.py", config, BATCH_SIZE)


def card() -> Subject:
    """A service whose model leaves the cores to the front, as one on a GPU does."""
    op = {"concurrency": 1, "batch_size": 1}
    config = {"dag": {"http_errors": "status", "is_thread_op": False}, "op": {"burn": op}}
    title = "an Op of 10 ms a request that need no CPU, one instance"
    return Subject(title, "bench/burning_service.py", config, 1, {ON_CARD: "1"})


SUBJECTS = {"demo": demo, "card": card}


class Comparison(NamedTuple):
    """Results of the same load in the simulation and in the real service.

    factor: of the measured throughput.
    """

    factor: float
    forecast: Arrivals
    real: Arrivals

    def get_ratios(self) -> tuple[float, float, float]:
        """Return throughput, p50 and p99 of the forecast, each divided by the real figure."""
        forecast, real = self.forecast, self.real
        return (
            _divide(forecast.answered / forecast.seconds, real.answered / real.seconds),
            _divide(forecast.p50_ms, real.p50_ms),
            _divide(forecast.p99_ms, real.p99_ms),
        )


def _divide(forecast: float, real: float) -> float:
    return forecast / real if real else float("nan")


class Round(NamedTuple):
    """Results of one round. closed: the load during which the times are measured."""

    times: ServiceTimes
    closed: Load
    comparisons: list[Comparison]


def run_round(subject: Subject, seconds: float, seed: int) -> Round:
    """Measure a service, and compare the forecast of each load with a real run."""
    collector = Collector()
    trace = {
        "mode": "opentelemetry",
        "level": "TIMESTAMPS",
        "rate": TRACED,
        "url": f"http://127.0.0.1:{collector.port}/v1/traces",
        "bsp_schedule_delay": 200,
    }
    config = {**subject.config, "trace": trace}
    try:
        with running_service(ROOT / subject.script, config, subject.env) as service:
            measured, closed = _measure_times(service, collector, subject.batch_size, seconds)
            times = _add_way_outside(service, subject, measured, seconds, seed)
            # Spans are only for the measurement: the loads that are compared are not traced.
            service.http("/v2/trace/setting", json.dumps({"trace_level": ["OFF"]}))
            comparisons = [
                _compare(service, subject, times, factor, closed.per_s * factor, seconds, seed)
                for factor in FACTORS
            ]
    finally:
        collector.close()
    return Round(times, closed, comparisons)


def _measure_times(
    service: ServiceProcess, collector: Collector, batch_size: int, seconds: float
) -> tuple[ServiceTimes, Load]:
    """Keep the instance busy by a closed loop, and return the times of its runs."""
    cpu = ServiceCpu(service)
    with bodies_file([http_body(text) for text in headlines()]) as bodies:

        def load(seconds: float) -> Load:
            return wrk(
                service.url, "/bert/prediction", connections=CONNECTIONS, seconds=seconds, bodies=bodies
            )

        load(2)  # warm-up
        collector.spans.clear()
        runs, front_s = _count_runs(service), cpu.so_far_s()[0]
        closed = load(seconds)
        runs, front_s = _count_runs(service) - runs, cpu.so_far_s()[0] - front_s
    wait_until(lambda: collector.find("batch"), "spans of batches")
    runs_s, mean_run_s = _collect_runs(collector.find("batch"), batch_size)
    dispatch_s = max(0.0, closed.seconds / runs - mean_run_s)
    return ServiceTimes(runs_s, dispatch_s, front_s / closed.requests), closed


def _collect_runs(
    spans: Sequence[Mapping[str, Any]], batch_size: int
) -> tuple[dict[int, list[float]], float]:
    """Return the seconds of the traced runs by their number of requests, and the mean of all runs.

    A reply of an Op without a model has several runs. Long replies are traced more often than short ones.
    """
    runs_s: dict[int, list[float]] = defaultdict(list)
    total_s = count = 0.0
    for span in spans:
        requests = int(get_attributes(span)["paddlewheel.requests"])
        took_s = (int(span["endTimeUnixNano"]) - int(span["startTimeUnixNano"])) * 1e-9
        runs = math.ceil(requests / batch_size)
        runs_s[min(requests, batch_size)] += [took_s / runs] * runs
        weight = 1 / (1 - (1 - 1 / TRACED) ** requests)
        total_s, count = total_s + weight * took_s, count + weight * runs
    return runs_s, total_s / count


def _count_runs(service: ServiceProcess) -> float:
    """Return the number of runs so far. An Op without a model runs one request at a time."""
    name = "paddlewheel_op_batch_rows_count"
    return service.metric(name) or service.metric("paddlewheel_op_queue_seconds_count")


def _add_way_outside(
    service: ServiceProcess, subject: Subject, times: ServiceTimes, seconds: float, seed: int
) -> ServiceTimes:
    """Return the times with the way between client and front.

    The way is the latency of an idle service beyond the forecast.
    """
    real = offer(service.http_port, IDLE_PER_S, seconds, DEADLINE_MS)
    forecast = _simulate(subject, times, IDLE_PER_S, seconds, seed)
    outside_s = (real.p50_ms - forecast.p50_ms) / 1e3
    return ServiceTimes(times.runs_s, times.dispatch_s, times.front_s, outside_s)


def _compare(
    service: ServiceProcess,
    subject: Subject,
    times: ServiceTimes,
    factor: float,
    rate: float,
    seconds: float,
    seed: int,
) -> Comparison:
    forecast = _simulate(subject, times, rate, seconds, seed)
    return Comparison(factor, forecast, offer(service.http_port, rate, seconds, DEADLINE_MS))


def _simulate(subject: Subject, times: ServiceTimes, rate: float, seconds: float, seed: int) -> Arrivals:
    load = SimulatedLoad(times, instances=1, batch_size=subject.batch_size, seed=seed)
    return load.run(rate, seconds, DEADLINE_MS / 1e3)


class Node(NamedTuple):
    """The forecast for one of several nodes, with its part of the requests of independent clients."""

    nodes: int
    forecast: Arrivals

    def keeps(self, p99_ms: float) -> bool:
        """Return whether each request is answered, 99 % of them within this time."""
        got = self.forecast
        return got.p99_ms <= p99_ms and not (got.refused or got.late or got.failed or got.unsent)


def forecast_nodes(subject: Subject, measured: Round, per_s: float, seconds: float, seed: int) -> list[Node]:
    """Return the forecasts for several numbers of nodes that share `per_s` requests per second."""
    counts = sorted({math.ceil(per_s / (measured.closed.per_s * load)) for load in NODE_LOADS})
    nodes = []
    for count in counts:
        load = SimulatedLoad(measured.times, instances=1, batch_size=subject.batch_size, seed=seed)
        nodes.append(Node(count, load.run(per_s / count, seconds, DEADLINE_MS / 1e3, at_random=True)))
    return nodes


def table_of_rounds(title: str, rounds: Sequence[Round]) -> Table:
    table = Table(title=f"{title}, deadline {DEADLINE_MS} ms", title_justify="left")
    for heading in (
        "round", "load", "offered/s", "real/s", "forecast/s", "ratio", "real p50 ms", "forecast", "ratio",
        "real p99 ms", "forecast", "ratio", "real refused/s", "forecast",
    ):  # fmt: skip
        table.add_column(heading, justify="right")
    for number, measured in enumerate(rounds, 1):
        for comparison in measured.comparisons:
            real, forecast = comparison.real, comparison.forecast
            throughput, p50, p99 = comparison.get_ratios()
            table.add_row(
                str(number), f"{comparison.factor:g}", f"{real.sent / real.seconds:.0f}",
                f"{real.answered / real.seconds:.0f}", f"{forecast.answered / forecast.seconds:.0f}",
                f"{throughput:.2f}", f"{real.p50_ms:.1f}", f"{forecast.p50_ms:.1f}", f"{p50:.2f}",
                f"{real.p99_ms:.1f}", f"{forecast.p99_ms:.1f}", f"{p99:.2f}",
                f"{real.refused / real.seconds:.0f}", f"{forecast.refused / forecast.seconds:.0f}",
            )  # fmt: skip
    return table


def table_of_medians(rounds: Sequence[Round]) -> Table:
    table = Table(title="forecast to real run: the median of the rounds", title_justify="left")
    for heading in ("load", "throughput", "p50", "p99", f"within {WITHIN:.0%}"):
        table.add_column(heading, justify="right")
    for at, factor in enumerate(FACTORS):
        ratios = [measured.comparisons[at].get_ratios() for measured in rounds]
        medians = [median(ratio) for ratio in zip(*ratios, strict=True)]
        within = [
            name
            for name, ratio in zip(("throughput", "p50", "p99"), medians, strict=True)
            if abs(ratio - 1) <= WITHIN
        ]
        table.add_row(f"{factor:g}", *(f"{ratio:.2f}" for ratio in medians), ", ".join(within) or "none")
    return table


def table_of_nodes(nodes: Sequence[Node], per_minute: float, p99_ms: float) -> Table:
    title = f"forecast: {per_minute:,.0f} requests a minute of independent clients"
    table = Table(title=title, title_justify="left")
    for heading in (
        "nodes",
        "of a node/s",
        "answered/s",
        "refused or late/s",
        "p50 ms",
        "p99 ms",
        "keeps the limit",
    ):
        table.add_column(heading, justify="right")
    for node in nodes:
        got = node.forecast
        table.add_row(
            str(node.nodes), f"{per_minute / 60 / node.nodes:.0f}", f"{got.answered / got.seconds:.0f}",
            f"{(got.refused + got.late + got.unsent) / got.seconds:.0f}", f"{got.p50_ms:.1f}",
            f"{got.p99_ms:.1f}", "yes" if node.keeps(p99_ms) else "no",
        )  # fmt: skip
    return table


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.forecast",
        description=__doc__,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--subject", choices=SUBJECTS, default="demo", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the simulation (default: %(default)s)")
    parser.add_argument(
        "--per-minute", type=float, default=1e6, help="requests that the nodes share (default: %(default)g)"
    )
    parser.add_argument("--p99-ms", type=float, default=100, help="limit of the nodes (default: %(default)g)")
    return parser


def main() -> int:
    options = build_parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    rounds: list[Round] = []
    try:
        subject = SUBJECTS[options.subject]()
        for number in range(options.rounds):
            with console.status(f"round {number + 1} of {options.rounds}"):
                rounds.append(run_round(subject, options.seconds, options.seed + number))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    console.print(describe_machine())
    for measured in rounds:
        times = measured.times
        console.print(
            f"closed loop {measured.closed.per_s:.0f} requests/s, between runs {times.dispatch_s * 1e6:.0f} "
            f"us, front {times.front_s * 1e6:.0f} us a request, outside {times.outside_s * 1e6:.0f} us"
        )
    console.print(table_of_rounds(subject.title, rounds))
    console.print(table_of_medians(rounds))
    typical = sorted(rounds, key=lambda measured: measured.closed.per_s)[len(rounds) // 2]
    nodes = forecast_nodes(subject, typical, options.per_minute / 60, options.seconds, options.seed)
    console.print(table_of_nodes(nodes, options.per_minute, options.p99_ms))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
