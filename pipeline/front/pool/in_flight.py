"""InFlight: requests that have been handed to a worker together."""

from __future__ import annotations

from typing import Protocol

import msgspec

from pipeline.errors import ServingError
from pipeline.messages.messages import Outcome, Share
from pipeline.messages.values import Part


class Job(Protocol):
    """One Op's share of a request as the pool sees it: what is sent, and who is told what became of it."""

    @property
    def deadline(self) -> float:
        """The instant (time.monotonic) after which nobody waits for it; infinite for none."""
        ...

    def share(self, index: int, tail: list[Part]) -> Share:
        """How it stands in a hand-over; its large parts are added to `tail`."""
        ...

    def settle(self, outcome: Outcome, parts: list[Part]) -> None: ...
    def fail(self, error: ServingError) -> None: ...


class InFlight(msgspec.Struct, eq=False):
    """Jobs under way; a settled one leaves a None.

    In time.monotonic: deadline: the latest of its requests'; began: when it could begin; run_began: the same
    of what runs now, where a hand-over takes several runs.
    abandoned: nobody waits for it any more: it is over its Op's timeout, or was taken back.
    preprocess_ns: as the latest reply that has any tells, for `Events.replying`.
    """

    id: int
    jobs: list[Job | None]
    deadline: float
    began: float
    run_began: float
    abandoned: bool = False
    preprocess_ns: int = 0

    def open_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job is not None]
