"""Compares an ensemble of tokenizer, ONNX model and postprocess with other ways to serve the same function.

The ensemble is a model repository that our server runs. The other subjects are a PyTriton function, one
Python model in Triton, the same ensemble of Python models in Triton, and our service with one Op. All get
requests of KServe v2. Each has to give the same 256 answers first. Only ratios of adjacent turns count.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.ensemble.repository import ENSEMBLE, write_repository
from bench.load import CannotMeasure, bodies_file
from bench.peers.comparison import compare_answers
from bench.peers.dialects import V2
from bench.peers.figures import Pair, Turn
from bench.peers.ours import instances, our_service
from bench.peers.peer_server import peer_server
from bench.peers.scenarios import MIXED, SHORT, WORKLOADS, Model, get_model
from bench.peers.server import Endpoint, Processes, Server, running
from bench.peers.subjects import SUBJECTS, Ours, Peer
from bench.peers.turns import Asked, Bodies, pair
from bench.processes import cpu_s
from bench.running import ROOT, free_ports

MODEL = "2x128"
CONNECTIONS = (20, 64)
BATCH = 32  # of our ensemble; 8 is fastest for the others (docs/decisions/peers.md)
TRITON, PYTRITON, SAME, ONE_OP = "triton", "pytriton", "triton-ensemble", "one-op"
APART = "steps-apart"  # our ensemble, whose steps go through the front
_CHECKED = 256
_PATH = f"/v2/models/{ENSEMBLE}/infer"


class Target(NamedTuple):
    """Goals of a comparison. per_s: minimum ratio of our requests/s to the subject's.

    cpu: maximum ratio of CPU.
    """

    per_s: float | None = None
    cpu: float | None = None


TARGETS = {
    (PYTRITON, SHORT): Target(per_s=1.5),
    (PYTRITON, MIXED): Target(per_s=2),
    (TRITON, SHORT): Target(per_s=1),
    (TRITON, MIXED): Target(per_s=2),
    (ONE_OP, SHORT): Target(cpu=2),
}


class Measured(NamedTuple):
    """A subject compared with our ensemble: kind of texts, connections, and its pairs of turns."""

    subject: str
    workload: str
    connections: int
    pairs: list[Pair]

    def ratios(self) -> tuple[float, float]:
        """Return the ratios of our ensemble to the subject: requests per second, and CPU of a request."""
        per_s = median(one.ours.per_s / one.theirs.per_s for one in self.pairs)
        return per_s, median(one.ours.cpu_ms / one.theirs.cpu_ms for one in self.pairs)


@contextlib.contextmanager
def our_ensemble(
    model: Path, text: str, options: argparse.Namespace, workers: int
) -> Iterator[tuple[Server, Endpoint]]:
    """Start our server with the ensemble. workers: number of workers that run all steps.

    Raises CannotMeasure.
    """
    (port,) = free_ports(1)
    endpoint = Endpoint(port, _PATH, V2)
    with tempfile.TemporaryDirectory() as folder:
        models = write_repository(
            Path(folder), model, batch=options.batch, instances=instances(), delay_us=options.delay_us,
            workers=workers,
        )  # fmt: skip
        flags = [f"--model-repository={models}", f"--http-port={port}", "--http-address=127.0.0.1"]
        flags += ["--allow-grpc=false", "--allow-metrics=false"]
        command = [sys.executable, "-m", "pipeline", "serve", *flags]
        with running(command, endpoint, os.environ | {"PYTHONPATH": str(ROOT)}, text) as server:
            yield server, endpoint


@contextlib.contextmanager
def other(
    key: str, model: Model, texts: Sequence[str], options: argparse.Namespace
) -> Iterator[tuple[Server, Endpoint]]:
    """Start another subject. Raises CannotMeasure."""
    if key == APART:
        with our_ensemble(model.directory, texts[0], options, 0) as ours:
            yield ours
        return
    if key == ONE_OP:
        with our_service(Ours(key, key, engine="onnxruntime"), model, texts[0]) as service:
            yield service.server, service.endpoint(V2)
        return
    with tempfile.TemporaryDirectory() as folder:
        wanted = TRITON if key == SAME else key
        peer = next(one for one in SUBJECTS if isinstance(one, Peer) and one.key == wanted)
        peer = peer._replace(env={**peer.env, "PYTHONPATH": str(ROOT)})
        if key == SAME:
            batch = peer.settings[0].batch
            models = write_repository(
                Path(folder), model.directory, batch=batch, instances=instances(), python_alone=True
            )
            peer = peer._replace(command=(*peer.command, str(models)), path=_PATH)
        with peer_server(peer, peer.settings[0], model, texts, "") as (server, endpoint):
            yield server, endpoint


def measure(options: argparse.Namespace, console: Console) -> list[Measured]:
    """Measure all subjects. A subject that can't be measured is reported and skipped.

    Raises CannotMeasure if our ensemble can't be measured.
    """
    model = get_model(MODEL)
    texts = {key: WORKLOADS[key].texts() for key in options.workloads}
    every = [text for some in texts.values() for text in some]
    found: list[Measured] = []
    ours = our_ensemble(model.directory, every[0], options, options.workers)
    with ours as (server, endpoint):
        for key in options.subjects:
            try:
                with other(key, model, every, options) as (their_server, their_endpoint):
                    for some in texts.values():
                        answers = (one.ask_all(some[:_CHECKED]) for one in (endpoint, their_endpoint))
                        compare_answers(*answers)
                    sides = (server, endpoint), (their_server, their_endpoint)
                    found += turns(key, sides, texts, options)
            except CannotMeasure as exc:
                console.print(f"{key} is left out: {exc}", markup=False)
    return found


def turns(
    key: str,
    sides: Sequence[tuple[Server, Endpoint]],
    texts: dict[str, list[str]],
    options: argparse.Namespace,
) -> list[Measured]:
    """Run pairs of turns.

    Each round covers all texts and numbers of connections, so that drift affects all alike.
    """
    with contextlib.ExitStack() as stack:
        takes = {}
        for kind, some in texts.items():
            bodies = Bodies(stack.enter_context(bodies_file([V2.body(text) for text in some])), None)
            ours, theirs = (
                Asked(endpoint, server.processes, bodies, Processes()) for server, endpoint in sides
            )
            takes |= {(kind, count): partial(pair, ours, theirs, count) for count in options.connections}
        found: dict[tuple[str, int], list[Pair]] = {at: [] for at in takes}
        for number in range(options.rounds):
            for at, take in takes.items():
                found[at].append(take(options.seconds, ours_first=number % 2 == 0))
    return [Measured(key, kind, count, pairs) for (kind, count), pairs in found.items()]


def report(console: Console, rows: Sequence[Measured]) -> None:
    table = Table("", "texts", "connections", title="Ours, the other, and ours to the other")
    for heading in ("requests/s", "CPU ms"):
        for of in (heading, "", "ratio"):
            table.add_column(of, justify="right")
    for heading in ("other work", "errors", "target"):
        table.add_column(heading)
    for row in rows:
        per_s, cpu = row.ratios()
        table.add_row(
            row.subject, row.workload, str(row.connections),
            *_medians(row, lambda turn: turn.per_s, ",.0f"), f"{per_s:.2f}",
            *_medians(row, lambda turn: turn.cpu_ms, ".2f"), f"{cpu:.2f}",
            f"{max(one.others for one in row.pairs):.2f}",
            str(sum(one.ours.errors + one.theirs.errors for one in row.pairs)),
            _compare_with_target(TARGETS.get((row.subject, row.workload)), per_s, cpu),
        )  # fmt: skip
    console.print(table)


def _medians(row: Measured, figure: Callable[[Turn], float], form: str) -> Iterator[str]:
    for turns in ([one.ours for one in row.pairs], [one.theirs for one in row.pairs]):
        yield format(median(map(figure, turns)), form)


def _compare_with_target(target: Target | None, per_s: float, cpu: float) -> str:
    if target is None:
        return ""
    if target.cpu is not None:
        return f"CPU {target.cpu:g}x at most: {'met' if cpu <= target.cpu else 'not met'}"
    assert target.per_s is not None
    return f"requests/s {target.per_s:g}x: {'met' if per_s >= target.per_s else 'not met'}"


def report_stages(options: argparse.Namespace, console: Console) -> None:
    """Print the CPU time of a request in the front and in each model's worker. Raises CannotMeasure."""
    table = Table("texts", "connections", "requests/s", "cores", title="Our CPU by process, us a request")
    rows: list[dict[str, str]] = []
    for kind in options.workloads:
        texts = WORKLOADS[kind].texts()
        ours = our_ensemble(get_model(MODEL).directory, texts[0], options, options.workers)
        with ours as (server, endpoint), bodies_file([V2.body(text) for text in texts]) as bodies:
            for count in options.connections:
                asked = Asked(endpoint, server.processes, Bodies(bodies, None), Processes())
                rows.append(_stages(server.processes, asked, kind, count, options.seconds * options.rounds))
    columns = list(dict.fromkeys(itertools.chain(*rows)))
    for name in columns[4:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(row.get(name, "") for name in columns))
    console.print(table)


def _stages(processes: Processes, asked: Asked, kind: str, count: int, seconds: float) -> dict[str, str]:
    asked.turn(count, 1)  # warm
    front, *workers = processes.all()
    names = {pid: Path(f"/proc/{pid}/comm").read_text("utf-8").strip() for pid in workers} | {front: "front"}
    before = {pid: cpu_s([pid]) for pid in names}
    began = time.monotonic()
    answers = asked.load(count, seconds).requests
    took_s = time.monotonic() - began
    spent: Counter[str] = Counter()
    for pid, name in names.items():
        spent[name.partition(":")[0]] += cpu_s([pid]) - before[pid]
    row = {"texts": kind, "connections": str(count), "requests/s": f"{answers / took_s:,.0f}"}
    row["cores"] = f"{spent.total() / took_s:.2f}"
    return row | {name: f"{s * 1e6 / answers:.0f}" for name, s in spent.items() if s * 1e6 > answers}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ensemble", description=__doc__)
    for option, choices, usual in (
        ("--subjects", (PYTRITON, TRITON, ONE_OP, SAME, APART), (PYTRITON, TRITON, ONE_OP)),
        ("--workloads", (SHORT, MIXED), (SHORT, MIXED)),
    ):
        help_text = f"of {', '.join(choices)} (default: {' '.join(usual)})"
        parser.add_argument(option, nargs="+", choices=choices, default=usual, metavar="NAME", help=help_text)
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS, help="default: 20 64")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=2, help="of a turn (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=BATCH, help="most rows of ours (default: %(default)s)")
    parser.add_argument(
        "--delay-us", type=int, default=0, help="that a partial batch of ours waits (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="of ours that run all steps (default: %(default)s)"
    )
    parser.add_argument("--stages", action="store_true", help="of ours alone, what each process takes")
    options, console = parser.parse_args(arguments), Console(width=None if sys.stdout.isatty() else 160)
    try:
        if options.stages:
            report_stages(options, console)
        else:
            report(console, measure(options, console))
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
