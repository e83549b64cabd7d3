"""Handover: jobs that travel to a worker together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pipeline.server.engine.job import Job


class Handover(msgspec.Struct, eq=False):
    """Jobs under way; a settled one leaves a None.

    kill_at: when the worker is late with it; began: when it could begin; time.monotonic. preprocess_ns: as
    the latest reply that has any tells, for `Events.replying`.
    """

    id: int
    jobs: list[Job | None]
    kill_at: float
    began: float
    preprocess_ns: int = 0

    def open_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job is not None]
