"""Turns: a load of one subject for some seconds, and what it cost; pairs of them, ours and another's."""

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
_MAX_LEFT_S = 30.0  # of work that a subject still has when its clients are gone
_RESTING = 0.1  # cores
_MAX_TIMED = 64  # connections: a thread of the generator for each when short texts are timed


class Measured(Protocol):
    """A subject that runs."""

    def turn(self, connections: int, seconds: float) -> Turn: ...

    def settle(self) -> None: ...


class Bodies(NamedTuple):
    """Files with the texts as one dialect asks them; short: the short ones, None where all are."""

    all: Path
    short: Path | None


class Asked:
    """A server under load by wrk."""

    def __init__(self, endpoint: Endpoint, processes: Processes, bodies: Bodies, beside: Processes) -> None:
        self._endpoint = endpoint
        self._processes = processes
        self._beside = beside
        self._bodies = bodies

    def turn(self, connections: int, seconds: float) -> Turn:
        self.load(connections, _WARM_UP_S)
        self.settle()
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

    def settle(self) -> None:
        """Waits for the end of what its clients have left behind, which would slow the next turn."""
        end = time.monotonic() + _MAX_LEFT_S
        before = self._processes.cpu_s()
        while time.monotonic() < end:
            time.sleep(_LOOK_S)
            now = self._processes.cpu_s()
            if now - before < _RESTING * _LOOK_S:
                return
            before = now

    def load(self, connections: int, seconds: float) -> Load:
        """Ask it for so long, whatever it costs."""
        url, path = self._endpoint.url, self._endpoint.path
        return wrk(url, path, connections=connections, seconds=seconds, bodies=self._bodies.all, timeout_s=30)

    def _short_texts(self, connections: int, seconds: float) -> list[ShortTexts]:
        """Of a mix: its short texts among the others, and alone. Nothing where they are not timed."""
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

    def settle(self) -> None:
        """Nothing is left when a loop has ended."""


class Spent:
    """cpu_s: of the subject's processes. others: cores that were busy with nothing of the measurement. idle:
    cores that were not busy."""

    cpu_s = 0.0
    others = 0.0
    idle = 0.0


@contextlib.contextmanager
def watched(processes: Processes, beside: Processes) -> Iterator[Spent]:
    """Filled in at the end. beside: our own other work."""
    spent = Spent()
    cpu, busy, own, began = processes.cpu_s(), busy_s(), _children_s() + beside.cpu_s(), time.monotonic()
    yield spent
    spent.cpu_s = processes.cpu_s() - cpu
    busy, took = busy_s() - busy, time.monotonic() - began
    own = _children_s() + beside.cpu_s() - own
    spent.others = max(0.0, (busy - spent.cpu_s - own) / took)
    spent.idle = max(0.0, (os.cpu_count() or 1) - busy / took)


def _children_s() -> float:
    """CPU time of this process's children that have ended: the generators of load."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def pair(ours: Measured, theirs: Measured, connections: int, seconds: float, *, ours_first: bool) -> Pair:
    """One turn of each; whose is first changes, so that the host's drift favours nobody."""
    both = [ours, theirs] if ours_first else [theirs, ours]
    turns = {}
    for one in both:
        turns[id(one)] = one.turn(connections, seconds)
        one.settle()
    return Pair(turns[id(ours)], turns[id(theirs)])


@contextlib.contextmanager
def bodies_of(endpoint: Endpoint, texts: Sequence[str]) -> Iterator[Bodies]:
    """The texts in files, as the endpoint is asked for them."""
    short = [text for text in texts if len(text) <= SHORT_CHARACTERS]
    with contextlib.ExitStack() as stack:
        files = [
            stack.enter_context(bodies_file([endpoint.dialect.body(text) for text in some]))
            for some in (texts, short)
            if some
        ]
        yield Bodies(files[0], files[1] if 0 < len(short) < len(texts) else None)
