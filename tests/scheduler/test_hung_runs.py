"""When a run is late or hangs: which requests go to other instances, and when the process is killed."""

from __future__ import annotations

import pytest

from pipeline.front.scheduler.worker_faults import (
    LATE_S,
    LOOK_S,
    STOPPED_LIMIT_S,
    STUCK_AFTER_S,
    Sighting,
    Verdict,
    judge,
    late_after_s,
)
from pipeline.process.processes import Activity

SLEEPS, RUNS, STOPPED, TRACED = Activity("S", 7.0), Activity("R", 7.0), Activity("T", 7.0), Activity("t", 7.0)


@pytest.mark.parametrize(
    ("now", "idle_s", "stopped_s", "usual_s", "run_s", "expected"),
    [
        (0.01, 0.0, 0.0, 0.005, 0.005, Verdict.WORKING),
        (0.03, 0.0, 0.0, 0.005, 0.005, Verdict.WORKING),
        (0.031, 0.0, 0.0, 0.005, 0.005, Verdict.LATE),
        (0.021, 0.0, 0.0, None, 0.0, Verdict.LATE),
        (9.0, 0.0, 0.0, 5.0, 5.0, Verdict.WORKING),
        (60.0, 0.0, 0.0, 0.005, 0.005, Verdict.LATE),
        (60.0, 9.9, 0.0, 0.005, 0.005, Verdict.LATE),
        (60.0, 10.0, 0.0, 0.005, 0.005, Verdict.HUNG),
        (60.0, 10.0, 0.0, None, 0.0, Verdict.HUNG),
        (60.0, 20.0, 0.0, 2.5, 2.5, Verdict.LATE),
        (60.0, 25.0, 0.0, 2.5, 2.5, Verdict.HUNG),
        (1.0, 1.0, 1.0, 0.005, 0.005, Verdict.STOPPED),
        (1.0, 1.0, 1.0, 30.0, 30.0, Verdict.STOPPED),
        (6.0, 5.0, 5.0, 30.0, 30.0, Verdict.LOST),
    ],
    ids=[
        "as usual", "twice as usual", "beyond that", "late, with no history", "slow, but usual",
        "long, and busy", "idle for a while", "idle for long", "idle for long, with no history",
        "idle, for less than ten runs", "idle for ten runs", "stopped", "stopped in a slow run",
        "stopped for long",
    ],
)  # fmt: skip
def test_a_run_is_judged_by_progress_cpu_and_state(
    now: float, idle_s: float, stopped_s: float, usual_s: float | None, run_s: float, expected: Verdict
) -> None:
    sighting = Sighting(0.0, now, 7.0, idle_s, stopped_s)
    assert judge(sighting, now, usual_s, run_s) is expected


def test_an_instance_that_begins_nothing_and_uses_no_cpu_is_stalled() -> None:
    idle = Sighting(0.0, 2.0, 7.0, LOOK_S)
    assert judge(idle, 2.0, 5.0, 5.0, has_begun=False) is Verdict.STALLED
    assert judge(idle, 2.0, 5.0, 5.0) is Verdict.WORKING, "its hooks may wait"
    assert judge(idle._replace(idle_s=0.0), 2.0, 5.0, 5.0, has_begun=False) is Verdict.WORKING, "it decodes"


def test_an_idle_process_says_nothing_of_runs_that_wait_for_another_server() -> None:
    sighting = Sighting(0.0, 60.0, 7.0, 60.0)
    assert judge(sighting, 60.0, 0.1, 0.1, waits_idly=True) is Verdict.LATE
    assert judge(sighting._replace(stopped_s=1.0), 60.0, 0.1, 0.1, waits_idly=True) is Verdict.STOPPED


@pytest.mark.parametrize(
    ("activities", "idle_s", "stopped_s"),
    [
        ([SLEEPS], 0.0, 0.0),
        ([SLEEPS, SLEEPS, SLEEPS], 2.0, 0.0),
        ([SLEEPS, SLEEPS, Activity("S", 7.01)], 2.0, 0.0),
        ([SLEEPS, SLEEPS, Activity("S", 7.5)], 0.0, 0.0),
        ([SLEEPS, SLEEPS, RUNS, SLEEPS], 1.0, 0.0),
        ([STOPPED], 0.0, 1.0),
        ([SLEEPS, STOPPED, STOPPED], 2.0, 2.0),
        ([STOPPED, STOPPED, SLEEPS], 2.0, 0.0),
        ([TRACED, TRACED, TRACED], 2.0, 0.0),
    ],
    ids=[
        "one look tells nothing of CPU", "asleep", "a thread that wakes now and then", "it has worked",
        "it waits for a core", "stopped at the first look", "stopped later", "it goes on", "a debugger",
    ],
)  # fmt: skip
def test_looks_add_up_to_how_long_a_process_was_idle_or_stopped(
    activities: list[Activity], idle_s: float, stopped_s: float
) -> None:
    sighting = Sighting.first_look(0.0, LOOK_S, activities[0])
    for number, activity in enumerate(activities[1:], start=2):
        sighting = sighting.update(number * LOOK_S, activity)
    assert (sighting.idle_s, sighting.stopped_s) == (idle_s, stopped_s)


def test_the_time_in_which_the_front_itself_did_not_run_counts_as_one_look() -> None:
    sighting = Sighting.first_look(0.0, LOOK_S, SLEEPS).update(3600.0, SLEEPS)
    assert sighting.idle_s < 2 * LOOK_S
    assert judge(sighting, 3600.0, 0.005, 0.005) is Verdict.LATE


def test_limits_leave_time_for_another_instance_within_the_default_deadline() -> None:
    assert late_after_s(None) == LATE_S
    assert STOPPED_LIMIT_S < STUCK_AFTER_S < 15.0


def test_a_run_whose_answers_are_held_back_is_late_later() -> None:
    sighting, now = Sighting(0.0, 0.0, 0.0), 2 * 0.005 + LATE_S + 0.01
    assert judge(sighting, now, 0.005, 0.005) is Verdict.LATE
    assert judge(sighting, now, 0.005, 0.005, 0.02) is Verdict.WORKING
    assert judge(sighting, now + 0.02, 0.005, 0.005, 0.02) is Verdict.LATE


def test_a_process_is_idle_up_to_a_fiftieth_of_a_core() -> None:
    first = Sighting.first_look(0.0, 10.0, Activity("S", 0.0))
    assert first.update(14.0, Activity("S", 0.02 * 4)).idle_s == 1.5 * LOOK_S
    assert first.update(14.0, Activity("S", 0.021 * 4)).idle_s == 0.0


def test_progress_long_after_the_start_of_the_clock_is_no_late_run() -> None:
    assert judge(Sighting(1000.0, 1000.01, 0.0), 1000.01, 0.005, 0.005) is Verdict.WORKING
