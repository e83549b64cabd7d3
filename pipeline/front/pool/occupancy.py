"""Occupancy: what the instances of an Op are busy with, and whether they seem to get on with it."""

from __future__ import annotations

import time
from collections.abc import Sequence

from pipeline.front.pool.pace import Pace
from pipeline.front.pool.worker_instance import Instance, State

STUCK_AFTER_S, STUCK_RUNS = 10.0, 10  # who is busy for longer than both is not counted on any more


def handed_over(instances: Sequence[Instance]) -> int:
    """Jobs that are under way, but for those that nobody waits for any more."""
    in_flight = (handover for instance in instances for handover in instance.in_flight)
    return sum(len(handover.jobs) for handover in in_flight if not handover.abandoned)


def sound(instances: Sequence[Instance], pace: Pace, stuck_after_s: float) -> int:
    """Instances that are ready, and not in a run that seems to hang.

    One that seems so is killed only at its time limit: its run may be slow for once.
    """
    most_s = max(min(STUCK_AFTER_S, stuck_after_s), STUCK_RUNS * pace.run_s)
    busy_since = time.monotonic() - most_s
    return sum(
        instance.state is State.READY
        and (not instance.in_flight or not pace.run_s or instance.in_flight[0].began > busy_since)
        for instance in instances
    )


def overdue_s(instances: Sequence[Instance], pace: Pace) -> float:
    """By how many seconds all ready instances are late with their runs; 0 where one is not."""
    began = [
        instance.in_flight[0].began if instance.in_flight else time.monotonic()
        for instance in instances
        if instance.state is State.READY
    ]
    return max(0.0, time.monotonic() - max(began) - pace.run_s) if began and pace.run_s else 0.0
