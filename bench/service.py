"""Loads the default service over HTTP and gRPC, in turns with the bare predictor and a bare ASGI application.

Server CPU is user and system time of front and workers. bench/instrumented_service.py reads the time inside
tokenizer and predictor calls. Every round measures every subject in turn. Subjects with one caller alternate
every second for half of each load's seconds: otherwise the host's speed would drift by more than the
difference.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from bench.baselines import BarePredictorProcess, bare_asgi, bare_pipeline, bare_predictor
from bench.figures import (
    BARE,
    BARE_PACED,
    GRPC,
    HTTP,
    HTTP_ONE,
    PIPELINE_ONE,
    PREDICTOR,
    PREDICTOR_ONE,
    Figures,
    print_table,
    print_targets,
)
from bench.instrumented_service import FOLDER_VARIABLE, ROOT, read_inside
from bench.load import CannotMeasure, Load, bodies_file, h2load, wrk
from bench.processes import children, cpu_s
from bench.running import ServiceCpu, default_config, running_service
from bench.texts import grpc_body, headlines, http_body
from tests.support.service_process import ServiceProcess

PATH = "/bert/prediction"
SCRIPT = ROOT / "bench" / "instrumented_service.py"
BATCHES = (8, 32)
EXAMPLES = """examples:
  python -m bench.service
  python -m bench.service --rounds 1 --seconds 3     a first look
  python -m bench.service --instances 1 --no-grpc
"""


class Bench:
    """All subjects, running side by side; one at a time is loaded."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._options = options
        texts = headlines()
        self._inside = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="inside-")))
        self._bodies = stack.enter_context(bodies_file([http_body(text) for text in texts]))
        self._grpc_body = grpc_body(texts[0])
        env = {FOLDER_VARIABLE: str(self._inside)}
        config = default_config(options.instances)
        self._service: ServiceProcess = stack.enter_context(running_service(SCRIPT, config, env))
        self._cpu = ServiceCpu(self._service)
        answer = self._service.http(PATH, http_body(texts[0])).body
        self._bare_url, self._bare_pid = stack.enter_context(bare_asgi(len(answer)))
        self._pipeline_url, self._pipeline_pid = stack.enter_context(bare_pipeline())
        self._predictor: BarePredictorProcess = stack.enter_context(bare_predictor())
        self._predictor.measure(1, 0.1)
        self._service_gap_ms = 0  # recent time between two requests of a connection to the service

    def steps(self) -> Iterator[tuple[str, Callable[[], Figures]]]:
        """Yield the steps of one round."""
        seconds = self._options.seconds
        alone_s = max(1.0, seconds / 4)
        one_s = 1  # the minimum of wrk
        yield BARE, self._bare
        yield HTTP, self._http
        yield BARE_PACED, lambda: self._bare(self._service_gap_ms)
        if self._options.grpc:
            yield GRPC, lambda: self._of_service(self._h2load, seconds)
        for _ in range(max(1, round(seconds / 2))):
            yield PREDICTOR_ONE, lambda: self._predictor.measure(1, one_s)
            yield HTTP_ONE, lambda: self._of_service(lambda s: self._wrk(1, s), one_s, warm_up=False)
            yield PIPELINE_ONE, lambda: self._bare_pipeline(one_s)
        for batch in BATCHES:
            yield PREDICTOR.format(batch), partial(self._predictor.measure, batch, alone_s)

    def _http(self) -> Figures:
        connections = self._options.connections
        figures = self._of_service(lambda s: self._wrk(connections, s), self._options.seconds)
        self._service_gap_ms = max(1, round(connections * 1e3 / figures.per_s))
        return figures

    def _wrk(self, connections: int, seconds: float) -> Load:
        return wrk(self._service.url, PATH, connections=connections, seconds=seconds, bodies=self._bodies)

    def _h2load(self, seconds: float) -> Load:
        address, connections = self._service.rpc_address, self._options.connections
        return h2load(address, connections=connections, seconds=seconds, body=self._grpc_body)

    def _of_service(self, load: Callable[[float], Load], seconds: float, warm_up: bool = True) -> Figures:
        if warm_up:
            load(self._options.warm_up)
        inside, outcomes = read_inside(self._inside), self._service.answered()
        front, workers = self._cpu.so_far_s()
        done = load(seconds)
        front, workers = (
            now - then for now, then in zip(self._cpu.so_far_s(), (front, workers), strict=True)
        )
        inside = read_inside(self._inside).since(inside)
        # gRPC's errors are in messages and trailers, which h2load does not read: the service counts them.
        refused = _refused(self._service.answered()) - _refused(outcomes)
        ms = 1e3 / done.requests
        return Figures(
            done.per_s, done.p50_ms, done.p90_ms, done.p99_ms, max(done.errors, refused),
            (front + workers) * ms, front * ms, workers * ms, inside.cpu_s * ms,
            inside.texts / max(1, inside.predictor_calls),
        )  # fmt: skip

    def _bare(self, delay_ms: int = 0) -> Figures:
        def load(seconds: float) -> Load:
            connections = self._options.connections
            return wrk(
                self._bare_url, PATH, connections=connections, seconds=seconds, bodies=self._bodies,
                delay_ms=delay_ms,
            )  # fmt: skip

        load(self._options.warm_up)
        began = cpu_s([self._bare_pid])
        done = load(self._options.seconds)
        cpu_ms = (cpu_s([self._bare_pid]) - began) * 1e3 / done.requests
        return Figures(done.per_s, done.p50_ms, done.p90_ms, done.p99_ms, done.errors, cpu_ms)

    def _bare_pipeline(self, seconds: float) -> Figures:
        def load(seconds: float) -> Load:
            return wrk(self._pipeline_url, PATH, connections=1, seconds=seconds, bodies=self._bodies)

        pids = [self._pipeline_pid], children(self._pipeline_pid)
        began = [cpu_s(some) for some in pids]
        done = load(seconds)
        front_ms, worker_ms = (
            (cpu_s(some) - then) * 1e3 / done.requests for some, then in zip(pids, began, strict=True)
        )
        return Figures(
            done.per_s, done.p50_ms, done.p90_ms, done.p99_ms, done.errors,
            front_ms + worker_ms, front_ms, worker_ms,
        )  # fmt: skip


def _refused(outcomes: dict[str, int]) -> int:
    return sum(count for outcome, count in outcomes.items() if outcome != "ok")


def measure(options: argparse.Namespace, console: Console) -> dict[str, list[Figures]]:
    """Measure every subject in every round. Raises CannotMeasure."""
    rounds: dict[str, list[Figures]] = {}
    with contextlib.ExitStack() as stack, Progress(console=console, transient=True) as progress:
        task = progress.add_task("starting the service and the baselines", total=None)
        bench = Bench(options, stack)
        steps = len(list(bench.steps()))
        progress.update(task, total=options.rounds * steps)
        for number in range(options.rounds):
            for name, run in bench.steps():
                progress.update(task, description=f"round {number + 1} of {options.rounds}: {name}")
                rounds.setdefault(name, []).append(run())
                progress.advance(task)
    return rounds


def main() -> int:
    options = _parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        rounds = measure(options, console)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    title = (
        f"{options.connections} connections, closed loop, {options.seconds:g} s after {options.warm_up:g} s, "
        f"medians of {options.rounds} rounds, {os.cpu_count()} cores"
    )
    print_table(console, rounds, title)
    print_targets(console, rounds)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.service",
        description="Loads the default service beside its baselines and prints what a request costs.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--connections", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=10, help="of each load (default: %(default)s)")
    parser.add_argument("--warm-up", type=float, default=2, help="seconds before each (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--instances", type=int, help="workers (default: as config.yml has it)")
    parser.add_argument("--no-grpc", dest="grpc", action="store_false", help="HTTP alone")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
