"""Job: one Op's share of one request, from the batcher's queue to its settling."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pipeline.errors import DeadlineExceeded, ServingError
from pipeline.values import Part
from pipeline.wire import Outcome, stow

if TYPE_CHECKING:
    from pipeline.server.engine.deadlines import Deadlines
    from pipeline.server.engine.walk import Walk

Inputs = list[tuple[str, list[Part]]]


class Job:
    """What a batcher queues and a worker settles.

    tries: how many workers died under it. suspect: one of them had begun with it, so that it may only run by
    itself from now on.
    """

    __slots__ = ("inputs", "node", "number", "queued_at", "suspect", "tries", "walk")

    def __init__(self, walk: Walk, node: str, inputs: Inputs, number: int, queued_at: float) -> None:
        self.walk = walk
        self.node = node
        self.inputs = inputs
        self.number = number
        self.queued_at = queued_at
        self.tries = 0
        self.suspect = False

    def __lt__(self, other: Job) -> bool:
        mine, theirs = self.walk.request.priority, other.walk.request.priority
        return self.number < other.number if mine == theirs else mine < theirs

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the queue: the smaller goes first."""
        return self.walk.request.priority, self.number

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for it."""
        return self.walk.awaits(self.node, self.inputs)

    @property
    def deadline(self) -> float:
        """The instant (time.monotonic) after which nobody waits for it."""
        return self.walk.request.deadline

    def row(self, index: int, tail: list[Part]) -> list[Any]:
        """How it stands in a hand-over:

        [index, log_id, form, wish, options, deadline, [[input, value], ...]].
        """
        request = self.walk.request
        inputs = [[name, stow(parts, tail)] for name, parts in self.inputs]
        told = request.wish, request.options, request.deadline
        return [index, request.log_id, int(request.form), *told, inputs]

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        if self.wanted:
            self.walk.settle(self.node, outcome, parts)

    def fail(self, error: ServingError) -> None:
        if not self.wanted:
            return
        if error.err_no == DeadlineExceeded.err_no:  # a remote Op's tries are counted in its worker
            self.walk.time_out(self.node, error)
        else:
            self.walk.refuse(self.node, error)


class TimedJob(Job):
    """A job of an Op with a timeout: one try, which is followed by another while there are tries left."""

    __slots__ = ("_deadlines", "_due", "_key", "_on_timeout", "tries_left")

    def watch(
        self, deadlines: Deadlines, due: float, tries_left: int, on_timeout: Callable[[TimedJob], None]
    ) -> None:
        """Have `on_timeout` called at `due` (time.monotonic), unless it is settled or unwanted by then."""
        self.tries_left = tries_left
        self._due = due
        self._on_timeout = on_timeout
        self._deadlines = deadlines
        self._key = deadlines.add(self, due)

    @property
    def deadline(self) -> float:
        return min(self._due, self.walk.request.deadline)

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        self._deadlines.discard(self, self._key)
        super().settle(outcome, parts)

    def fail(self, error: ServingError) -> None:
        self._deadlines.discard(self, self._key)
        super().fail(error)

    def expire(self) -> None:
        if self.wanted:
            self._on_timeout(self)

    def give_up(self, error: DeadlineExceeded) -> None:
        """The last try is over."""
        self.walk.time_out(self.node, error)
