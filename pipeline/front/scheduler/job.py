"""Job: one Op's share of one request, from the batcher's queue to its settling."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import msgspec

from pipeline.errors import DeadlineExceeded, ServingError
from pipeline.front.pool import in_flight
from pipeline.front.scheduler.dag_run import DagRun, Inputs
from pipeline.messages.frames import stow
from pipeline.messages.messages import Outcome, Share
from pipeline.messages.values import Part


class Job(msgspec.Struct, eq=False):
    """What a batcher queues and a worker settles.

    number: its place among those of one turn. tries_left: within the Op's timeout, this one included. deaths:
    how many workers died under it. suspect: one of them had begun with it, so that it may only run by itself
    from now on.
    """

    dag_run: DagRun
    node: str
    inputs: Inputs
    number: int
    queued_at: float
    tries_left: int = 1
    deaths: int = 0
    suspect: bool = False

    def __lt__(self, other: Job) -> bool:
        """Asked only of two tries with one place in the queue, of which one is not wanted any more."""
        return False

    def next_try(self, now: float) -> Job:
        """What takes this one's place, whose reply is not wanted any more."""
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, queued_at=now, tries_left=self.tries_left - 1)

    @property
    def deadline(self) -> float:
        """The instant (time.monotonic) after which nobody waits for it; infinite for none."""
        return self.dag_run.request.deadline

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for it; a jump may have started its Op anew."""
        return self.dag_run.awaited.get(self.node) is self.inputs

    def share(self, index: int, tail: list[Part]) -> Share:
        """How it stands in a hand-over; its large parts are added to `tail`."""
        request = self.dag_run.request
        inputs = [(name, stow(parts, tail)) for name, parts in self.inputs]
        told = request.form, request.wish, request.model_version, request.options, request.deadline
        return Share(index, self.dag_run.data_id, request.log_id, *told, inputs)

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        dag_run, node = self.dag_run, self.node
        if dag_run.awaited.get(node) is self.inputs:  # `wanted`
            dag_run.settle(node, outcome, parts)

    def fail(self, error: ServingError) -> None:
        if not self.wanted:
            return
        if error.err_no == DeadlineExceeded.err_no:
            self.dag_run.time_out(self.node, error)
        else:
            self.dag_run.refuse(self.node, error)


def given_back(jobs: Iterable[in_flight.Job]) -> Iterable[Job]:
    """What comes back from the pool, which was given Jobs of this module and knows less of them."""
    return cast(Iterable[Job], jobs)
