"""Where the CPU time of a request goes: front, worker's own code, tokenizer, predictor, kernel.

The subjects are those of bench.peers. All of them run at the same time, and are loaded in turns. Threads that
run the tokenizer or the predictor are instance threads. They count the CPU time of both. Processes without an
instance thread are the front. The second table shows what the threads do while they don't compute.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.instrumented_service import FOLDER_VARIABLE, Inside, read_inside, read_threads_inside
from bench.instrumented_service import __file__ as INSTRUMENTED
from bench.load import CannotMeasure
from bench.peers.comparison import compare_answers
from bench.peers.dialects import PAIRS, Answer
from bench.peers.ours import our_service
from bench.peers.peer_server import peer_server
from bench.peers.scenarios import MODELS, WORKLOADS, Model, get_model
from bench.peers.server import Endpoint, Processes, Server
from bench.peers.subjects import OURS, SUBJECTS, Loop, Ours, Peer
from bench.peers.turns import Asked, write_bodies
from bench.processes import ThreadUse, children, read_threads
from pipeline.tuning.choice import describe_machine

FRONT, OTHER, INSTANCE = "front", "other threads", "instance threads"
_MEASURED = {subject.key: subject for subject in (OURS, *SUBJECTS) if not isinstance(subject, Loop)}
_USUAL = ("ours", "ours-processes", "trial", "mosec")
_CHECKED = 64
_WARM_UP_S = 2
_SAMPLE_S = 0.005
_SYSTEM_CALLS = {  # of x86-64, by number
    0: "read", 1: "write", 7: "poll", 20: "writev", 23: "select", 24: "sched_yield", 35: "nanosleep",
    44: "sendto", 45: "recvfrom", 46: "sendmsg", 47: "recvmsg", 202: "futex", 230: "clock_nanosleep",
    232: "epoll_wait", 281: "epoll_pwait", 441: "epoll_pwait2",
}  # fmt: skip
EXAMPLES = """examples:
  python -m bench.cpu_by_part
  python -m bench.cpu_by_part --subjects ours trial --connections 64 --rounds 1
"""


class Figures(NamedTuple):
    """Results of one load, or of several with the same subject and number of connections."""

    requests: int = 0
    seconds: float = 0.0
    threads: Mapping[str, ThreadUse] = {}  # by kind
    counts: Mapping[str, int] = {}  # number of threads, by kind
    inside: Inside = Inside()
    blocked: Mapping[str, int] = {}  # samples of instance threads beside an idle core, by system call
    samples: int = 0  # of instance threads

    def __add__(self, other: object) -> Figures:
        assert isinstance(other, Figures)
        return Figures(
            self.requests + other.requests,
            self.seconds + other.seconds,
            {kind: self.threads.get(kind, ThreadUse()) + use for kind, use in other.threads.items()},
            other.counts,
            Inside(*(sum(pair) for pair in zip(self.inside, other.inside, strict=True))),
            Counter(self.blocked) + Counter(other.blocked),
            self.samples + other.samples,
        )


class Sampler:
    """Samples the system calls in which instance threads block while a core is idle."""

    def __init__(self, instances: Sequence[tuple[int, int]], pids: Sequence[int]) -> None:
        self.blocked: Counter[str] = Counter()
        self.samples = 0
        self._instances = instances
        self._pids = pids
        self._cores = os.cpu_count() or 1
        self._ended = threading.Event()

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_SAMPLE_S):
            with contextlib.suppress(OSError):
                self._sample()

    def _sample(self) -> None:
        calls = [_read_system_call(pid, thread) for pid, thread in self._instances]
        generators = [pid for pid in children(os.getpid()) if pid not in self._pids]
        running = sum(_count_running(pid) for pid in (*self._pids, *generators))
        self.samples += len(calls)
        if running < self._cores:
            self.blocked.update(call for call in calls if call)


def _read_system_call(pid: int, thread: int) -> str:
    """Return the system call in which a thread blocks; empty for a thread that runs."""
    number = Path(f"/proc/{pid}/task/{thread}/syscall").read_text().split()[0]
    return _SYSTEM_CALLS.get(int(number), number) if number.lstrip("-").isdigit() else ""


def _count_running(pid: int) -> int:
    """Return how many threads of the process run, or wait for a core."""
    states = (
        stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")
    )
    return sum(state == "R" for state in states)


class Subject:
    """A server under load, with the files in which its instance threads count."""

    def __init__(
        self, name: str, target: Asked, processes: Processes, folder: Path, answers: Sequence[Answer]
    ) -> None:
        self.name = name
        self.answers = answers
        self._target = target
        self._processes = processes
        self._folder = folder
        self._instances: list[tuple[int, int]] = []  # process and thread ids

    def warm_up(self, connections: int) -> None:
        """Load the server, and find its instance threads: those that run tokenizer or predictor meanwhile."""
        before = read_threads_inside(self._folder)
        self._target.load(connections, _WARM_UP_S)
        totals = read_threads_inside(self._folder).items()
        self._instances = sorted(thread for thread, inside in totals if inside != before.get(thread))

    def measure(self, connections: int, seconds: float) -> Figures:
        """Load the server, and return the results.

        Raises CannotMeasure if a process ended or began during the load.
        """
        pids, instances = self._processes.all(), self._instances
        sampler = Sampler(instances, pids)
        threads, inside, began = read_threads(pids), read_inside(self._folder), time.monotonic()
        with sampler.sampling():
            load = self._target.load(connections, seconds)
        took_s, later = time.monotonic() - began, read_threads(pids)
        if self._processes.all() != pids:
            raise CannotMeasure(f"the processes of {self.name} changed during the load")
        kinds = {thread: _find_kind(thread, instances) for thread in later}
        uses: dict[str, ThreadUse] = {}
        for thread, use in later.items():
            earlier = threads.get(thread, ThreadUse())
            uses[kinds[thread]] = uses.get(kinds[thread], ThreadUse()) + use.since(earlier)
        counts = Counter(kinds.values())
        spent = read_inside(self._folder).since(inside)
        return Figures(load.requests, took_s, uses, counts, spent, sampler.blocked, sampler.samples)


def _find_kind(thread: tuple[int, int], instances: Sequence[tuple[int, int]]) -> str:
    if thread in instances:
        return INSTANCE
    return OTHER if thread[0] in {pid for pid, _ in instances} else FRONT


@contextlib.contextmanager
def started(key: str, model: Model, texts: Sequence[str]) -> Iterator[Subject]:
    """Start a subject of bench.peers whose instance threads count. Raises CannotMeasure."""
    subject = _MEASURED[key]
    with tempfile.TemporaryDirectory(prefix="inside-") as name, contextlib.ExitStack() as stack:
        env = {FOLDER_VARIABLE: name}
        server: Server
        endpoint: Endpoint
        if isinstance(subject, Ours):
            script = Path(INSTRUMENTED)
            service = stack.enter_context(
                our_service(subject, model, texts[0], script=script, env=os.environ | env)
            )
            server, endpoint = service.server, service.endpoint(PAIRS)
        else:
            assert isinstance(subject, Peer)
            peer = subject._replace(env={**subject.env, **env})
            server, endpoint = stack.enter_context(peer_server(peer, peer.settings[0], model, texts, ""))
        bodies = stack.enter_context(write_bodies(endpoint, texts))
        target = Asked(endpoint, server.processes, bodies, Processes())
        yield Subject(subject.name, target, server.processes, Path(name), endpoint.ask_all(texts[:_CHECKED]))


def measure(options: argparse.Namespace, console: Console) -> dict[tuple[int, str], Figures]:
    """Return figures by number of connections and subject. A subject that can't be started is skipped."""
    model, texts = get_model(options.model), WORKLOADS[options.workload].texts()
    figures: dict[tuple[int, str], Figures] = {}
    with contextlib.ExitStack() as stack:
        subjects: list[Subject] = []
        for key in options.subjects:
            try:
                subject = stack.enter_context(started(key, model, texts))
                compare_answers((subjects or [subject])[0].answers, subject.answers)
                subjects.append(subject)
            except CannotMeasure as exc:
                console.print(f"{key} is left out: {exc}", markup=False)
        for _ in range(options.rounds):
            for count in options.connections:
                for subject in subjects:
                    subject.warm_up(count)
                    at = count, subject.name
                    figures[at] = figures.get(at, Figures()) + subject.measure(count, options.seconds)
    return figures


def build_cpu_table(figures: Mapping[tuple[int, str], Figures], title: str) -> Table:
    """Return the table of CPU time by part, in us per request."""
    table = Table("connections", "", title=title, title_justify="left")
    headings = ("requests/s", "busy cores", "front", "its kernel", "other threads", "own code", "tokenizer")
    for heading in (*headings, "predictor", "kernel", "all, us"):
        table.add_column(heading, justify="right")
    for (connections, name), row in figures.items():
        us = 1e6 / max(1, row.requests)
        front, other, instance = (row.threads.get(kind, ThreadUse()) for kind in (FRONT, OTHER, INSTANCE))
        own_s = max(0.0, instance.user_s - row.inside.cpu_s)
        parts = [
            front.user_s, front.kernel_s, other.user_s + other.kernel_s, own_s, row.inside.tokenizer_ns / 1e9,
            row.inside.predictor_ns / 1e9, instance.kernel_s,
        ]  # fmt: skip
        total_s = sum(use.user_s + use.kernel_s for use in row.threads.values())
        table.add_row(
            str(connections), name, f"{row.requests / row.seconds:,.0f}", f"{total_s / row.seconds:.2f}",
            *(f"{part * us:.0f}" for part in parts), f"{total_s * us:.0f}",
        )  # fmt: skip
    return table


def build_wait_table(figures: Mapping[tuple[int, str], Figures]) -> Table:
    """Return the table of the time in which threads run, wait for a core, and block."""
    table = Table("connections", "", "thread", title="What the threads do", title_justify="left")
    for heading in ("runs", "waits for a core", "blocks", "blocks a request", "texts a run"):
        table.add_column(heading, justify="right")
    table.add_column("blocks beside an idle core in")
    for (connections, name), row in figures.items():
        for kind in (FRONT, INSTANCE):
            use = row.threads.get(kind)
            if use is None:
                continue
            total_s = row.seconds * (1 if kind == FRONT else row.counts[kind])
            runs, waits = (use.user_s + use.kernel_s) / total_s, use.wait_s / total_s
            blocks = max(0.0, 1 - runs - waits)
            blocked = Counter(row.blocked).most_common(3) if kind == INSTANCE else []
            table.add_row(
                str(connections), name, kind, f"{runs:.0%}", f"{waits:.0%}", f"{blocks:.0%}",
                f"{use.switches / max(1, row.requests):.2f}",
                f"{row.inside.texts / max(1, row.inside.predictor_calls):.1f}" if kind == INSTANCE else "",
                ", ".join(f"{call} {count / max(1, row.samples):.0%}" for call, count in blocked),
            )  # fmt: skip
    return table


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.cpu_by_part", description=__doc__, epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    keys = tuple(_MEASURED)
    parser.add_argument(
        "--subjects", nargs="+", choices=keys, default=_USUAL, metavar="NAME",
        help=f"of {', '.join(keys)} (default: {' '.join(_USUAL)})",
    )  # fmt: skip
    parser.add_argument("--model", choices=MODELS, default="2x128", help="default: %(default)s")
    parser.add_argument("--workload", choices=tuple(WORKLOADS), default="short", help="default: %(default)s")
    parser.add_argument("--connections", type=int, nargs="+", default=(20, 64), help="default: 20 64")
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--seconds", type=float, default=5, help="of a load (default: %(default)s)")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    try:
        figures = measure(options, console)
    except CannotMeasure as exc:
        console.print(f"not measured: {exc}", style="red", markup=False)
        return 1
    console.print(build_cpu_table(figures, f"CPU time of a request, {options.model}, {describe_machine()}"))
    console.print(build_wait_table(figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
