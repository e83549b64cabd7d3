"""Turns: the load of one subject for some seconds, with its costs. A pair has one turn of each side."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from bench.load import CannotMeasure, Load, ShortTexts, bodies_file, wrk, wrk_short_texts
from bench.peers.figures import Pair, Turn
from bench.peers.loops import EVERYTHING, LoopProcesses
from bench.peers.scenarios import SHORT_CHARACTERS
from bench.peers.server import Endpoint, Processes
from bench.processes import busy_s

_WARM_UP_S = 1
_LOOK_S = 0.1
_MAX_LEFT_S = 30.0  # maximum wait for the end of a subject's work after its clients have left
_RESTING = 0.1  # cores
_MAX_TIMED = 64  # connections: a thread of the generator for each when short texts are timed


class Measured(Protocol):
    """A running subject."""

    def turn(self, connections: int, seconds: float) -> Turn: ...

    def wait_until_idle(self) -> None: ...


class Bodies(NamedTuple):
    """Files of request bodies in one dialect. short: the short texts; None if all are short."""

    all: Path
    short: Path | None


class Asked:
    """A server that wrk loads."""

    def __init__(self, endpoint: Endpoint, processes: Processes, bodies: Bodies, beside: Processes) -> None:
        self._endpoint = endpoint
        self._processes = processes
        self._beside = beside
        self._bodies = bodies

    def turn(self, connections: int, seconds: float) -> Turn:
        self.load(connections, _WARM_UP_S)
        self.wait_until_idle()
        with watched(self._processes, self._beside) as spent:
            done = self.load(connections, seconds)
        if not done.requests:
            raise CannotMeasure(f"nothing was answered at {self._endpoint.url}{self._endpoint.path}")
        short = self._short_texts(connections, seconds)
        return Turn(
            done.per_s, spent.cpu_s * 1e3 / done.requests, self._processes.resident_mb(), spent.others,
            spent.idle, done.p50_ms, done.p99_ms, done.errors + sum(each.errors for each in short),
            *(each.p99_ms for each in short),
        )  # fmt: skip

    def wait_until_idle(self) -> None:
        """Wait until the server has finished the work of clients that have left.

        That work would slow the next turn.
        """
        end = time.monotonic() + _MAX_LEFT_S
        before = self._processes.cpu_s()
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            now = self._processes.cpu_s()
            if now - before < _RESTING * _LOOK_S:
                return
            before = now

    def load(self, connections: int, seconds: float) -> Load:
        """Load the server for some seconds, without reading its costs."""
        url, path = self._endpoint.url, self._endpoint.path
        return wrk(url, path, connections=connections, seconds=seconds, bodies=self._bodies.all, timeout_s=30)

    def _short_texts(self, connections: int, seconds: float) -> list[ShortTexts]:
        """Return the latencies of a mix's short texts, among long ones and alone.

        Empty if they are not timed.
        """
        short = self._bodies.short
        if short is None or not 1 < connections <= _MAX_TIMED:
            return []
        found = [
            wrk_short_texts(
                self._endpoint.url, self._endpoint.path, connections=connections, seconds=seconds,
                bodies=bodies, short=short, timeout_s=30,
            )
            for bodies in (self._bodies.all, short)
        ]  # fmt: skip
        return found if all(each.timed for each in found) else []


class Looped:
    """A loop without a server."""

    def __init__(self, processes: LoopProcesses, beside: Processes, *, everything: bool) -> None:
        self._loop = processes
        self._beside = beside
        self._processes = Processes(*processes.pids)
        self._everything = everything

    def turn(self, connections: int, seconds: float) -> Turn:
        window = EVERYTHING if self._everything else connections
        self._loop.run(window, _WARM_UP_S, connections)
        with watched(self._processes, self._beside) as spent:
            ran = self._loop.run(window, seconds, connections)
        texts = sum(each.texts for each in ran)
        return Turn(
            sum(each.texts / each.seconds for each in ran), spent.cpu_s * 1e3 / texts,
            self._processes.resident_mb(), spent.others, spent.idle,
        )  # fmt: skip

    def wait_until_idle(self) -> None:
        """Do nothing: a loop leaves no work behind."""


class Spent:
    """Costs of a turn.

    cpu_s: of the subject's processes. others: cores that programs outside of the measurement kept busy. idle:
    cores without work.
    """

    cpu_s = 0.0
    others = 0.0
    idle = 0.0


@contextlib.contextmanager
def watched(processes: Processes, beside: Processes) -> Iterator[Spent]:
    """Measure the costs of the block, and fill in the result at its end. beside: our own other processes."""
    spent = Spent()
    cpu, busy, own, began = processes.cpu_s(), busy_s(), _children_s() + beside.cpu_s(), time.monotonic()
    yield spent
    spent.cpu_s = processes.cpu_s() - cpu
    busy, took = busy_s() - busy, time.monotonic() - began
    own = _children_s() + beside.cpu_s() - own
    spent.others = max(0.0, (busy - spent.cpu_s - own) / took)
    spent.idle = max(0.0, (os.cpu_count() or 1) - busy / took)


def _children_s() -> float:
    """Return the CPU seconds of this process's children that have ended: the load generators."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pair(ours: Measured, theirs: Measured, connections: int, seconds: float, *, ours_first: bool) -> Pair:
    """Run one turn of each side. `ours_first` alternates, so that drift of the host favours neither."""
    both = [ours, theirs] if ours_first else [theirs, ours]
    turns = {}
    for one in both:
        turns[id(one)] = one.turn(connections, seconds)
        one.wait_until_idle()
    return Pair(turns[id(ours)], turns[id(theirs)])


@contextlib.contextmanager
def write_bodies(endpoint: Endpoint, texts: Sequence[str]) -> Iterator[Bodies]:
    """Write the texts to files, as request bodies of the endpoint."""
    short = [text for text in texts if len(text) <= SHORT_CHARACTERS]
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(bodies_file([endpoint.dialect.body(text) for text in some]))
            for some in (texts, short)
            if some
        ]
        yield Bodies(files[0], files[1] if 0 < len(short) < len(texts) else None)
