"""InOrder: answers of a model with `preserve_ordering`, given in the order in which its requests left the
queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pipeline.process.isolation import run_isolated


class Ordered(Protocol):
    """A job, as its order sees it. number: the same in each of its tries."""

    number: int

    @property
    def wanted(self) -> bool: ...


class InOrder:
    """Holds what becomes of a job until those before it are settled, or wanted no more."""

    def __init__(self) -> None:
        self._under_way: dict[int, Ordered] = {}  # by number, in the order in which they were sent
        self._settled: dict[int, Callable[[], None]] = {}

    def sent(self, job: Ordered) -> None:
        """A worker is given the job, perhaps again: then it keeps its place."""
        self._under_way[job.number] = job

    def settle(self, job: Ordered, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the job's turn."""
        # It was refused in the queue, or it is an abandoned try, and the next one has its place.
        if job.number not in self._under_way or not job.wanted:
            go_on()
            return
        self._settled[job.number] = go_on
        self.advance()

    def advance(self) -> None:
        """Settle those whose turn has come."""
        while self._under_way:
            number, job = next(iter(self._under_way.items()))
            go_on = self._settled.pop(number, None)
            if go_on is None and job.wanted:
                return
            del self._under_way[number]
            if go_on is not None:
                run_isolated(go_on)
