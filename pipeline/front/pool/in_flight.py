"""Handover: jobs that travel to a worker together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pipeline.front.scheduler.job import Job


class Handover(msgspec.Struct, eq=False):
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
