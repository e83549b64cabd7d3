"""Job: one Op's share of one request, from the batcher's queue to its settling."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pipeline.errors import DeadlineExceeded, ServingError
from pipeline.server.engine.deadlines import Deadlines
from pipeline.server.engine.walk import Inputs, Walk
from pipeline.values import Part
from pipeline.wire import Outcome, stow


class Job(msgspec.Struct, eq=False):
    """What a batcher queues and a worker settles.

    number: its place among those of one turn. deadline: the instant (time.monotonic) after which nobody waits
    for it. tries: how many workers died under it. suspect: one of them had begun with it, so that it may only
    run by itself from now on.
    """

    walk: Walk
    node: str
    inputs: Inputs
    number: int
    queued_at: float
    deadline: float
    tries: int = 0
    suspect: bool = False

    def __lt__(self, other: Job) -> bool:
        """Asked only of two tries with one place in the queue, of which one is not wanted any more."""
        return False

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for it; a jump may have started its Op anew."""
        return self.walk.awaited.get(self.node) is self.inputs

    def row(self, index: int, tail: list[Part]) -> list[Any]:
        """How it stands in a hand-over:

        [index, data_id, log_id, form, wish, options, deadline, [[input, value], ...]].
        """
        request = self.walk.request
        inputs = [[name, stow(parts, tail)] for name, parts in self.inputs]
        told = request.wish, request.options, request.deadline
        return [index, self.walk.data_id, request.log_id, request.form, *told, inputs]

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        walk, node = self.walk, self.node
        if walk.awaited.get(node) is self.inputs:  # `wanted`
            walk.settle(node, outcome, parts)

    def fail(self, error: ServingError) -> None:
        if not self.wanted:
            return
        if error.err_no == DeadlineExceeded.err_no:  # a remote Op's tries are counted in its worker
            self.walk.time_out(self.node, error)
        else:
            self.walk.refuse(self.node, error)


class TimedJob(Job, eq=False, kw_only=True):
    """A job of an Op with a timeout: one try, which is followed by another while there are tries left.

    due: when it is over, time.monotonic; `on_timeout` is then called, unless it is settled or unwanted.
    """

    deadlines: Deadlines
    due: float
    tries_left: int
    on_timeout: Callable[[TimedJob], None]
    due_key: int = 0

    def watch(self) -> None:
        self.due_key = self.deadlines.add(self, self.due)

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        self.deadlines.discard(self, self.due_key)
        super().settle(outcome, parts)

    def fail(self, error: ServingError) -> None:
        self.deadlines.discard(self, self.due_key)
        super().fail(error)

    def expire(self) -> None:
        if self.wanted:
            self.on_timeout(self)

    def give_up(self, error: DeadlineExceeded) -> None:
        """The last try is over."""
        self.walk.time_out(self.node, error)
