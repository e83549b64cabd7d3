"""When a dispatch may leave, how many requests are in it, and which instance may be given one."""

from __future__ import annotations

import math

import pytest

from pipeline.front.scheduler.batcher import (
    FAST_DISPATCH_S,
    REST_S,
    SHORT_DISPATCH_S,
    BatchPolicy,
    Pace,
    dispatch_size,
    gathered_in,
    may_follow,
    may_queue_behind,
    prefer_batch,
    ripe_in,
)

FAST, SLOW = 0.001, 0.1


@pytest.mark.parametrize(
    ("waiting", "oldest", "policy", "now", "expected"),
    [
        (1, 100.0, BatchPolicy(8), 100.0, 0.0),
        (1, 100.0, BatchPolicy(8, 0.0), 250.0, 0.0),
        (1, 100.0, BatchPolicy(8, 0.5), 100.0, 0.5),
        (7, 100.0, BatchPolicy(8, 0.5), 100.25, 0.25),
        (7, 100.0, BatchPolicy(8, 0.5), 100.5, 0.0),
        (7, 100.0, BatchPolicy(8, 0.5), 103.0, 0.0),
        (8, 100.0, BatchPolicy(8, 0.5), 100.0, 0.0),
        (9, 100.0, BatchPolicy(8, 0.5), 100.0, 0.0),
        (1, 100.0, BatchPolicy(1, 0.5), 100.0, 0.0),
    ],
    ids=[
        "a lone request never waits", "nor an old one", "held back for more", "counted from the oldest",
        "over in time", "long over", "full", "more than full", "batch_size 1 is always full",
    ],
)  # fmt: skip
def test_a_partial_dispatch_waits_at_most_its_queue_delay(
    waiting: int, oldest: float, policy: BatchPolicy, now: float, expected: float
) -> None:
    assert ripe_in(waiting < policy.full, oldest, policy, now) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("waiting", "free", "batch_size", "usual_s", "expected"),
    [
        (1, 1, 8, None, 1),
        (40, 1, 40, None, 40),
        (40, 1, 40, SLOW, 40),
        (5, 2, 8, None, 3),
        (3, 4, 8, FAST, 1),
        (100, 1, 8, None, 16),
        (100, 1, 8, SLOW, 16),
        (100, 1, 8, FAST, 32),
        (100, 1, 1, SLOW, 2),
    ],
    ids=[
        "one", "a batch of all that wait", "also of a slow model", "an even share", "never nothing",
        "two batches before the first run", "two batches of a slow model", "four of a fast one",
        "batch_size 1",
    ],
)  # fmt: skip
def test_a_dispatch_is_an_even_share_of_a_few_batches(
    waiting: int, free: int, batch_size: int, usual_s: float | None, expected: int
) -> None:
    assert dispatch_size(waiting, free, BatchPolicy(batch_size), usual_s) == expected


def paced(*dispatches: tuple[float, int, int]) -> Pace:
    pace = Pace()
    for took_s, tasks, runs in dispatches * 20:
        pace.record(took_s, tasks, runs)
    return pace


@pytest.mark.parametrize(
    ("pace", "expected"),
    [
        (Pace(), 32),
        (paced((1.6, 32, 4)), 16),
        (paced((0.064, 32, 4)), 32),
        (paced((0.8, 32, 16)), 20),
        (paced((1.6, 32, 1)), 32),
        (paced((1.6, 1, 1)), 32),
        (paced((1.6, 32, 0)), 32),
        (paced((1.6, 16, 2)), 16),
        (paced((0.6, 1, 2)), 1),
    ],
    ids=[
        "nothing known", "two runs of a model that takes long", "all of a fast one", "half a second",
        "one run, whatever is in it", "alone", "a remote model", "and stays so", "a task of several runs",
    ],
)  # fmt: skip
def test_a_long_dispatch_has_few_runs_of_the_model(pace: Pace, expected: int) -> None:
    assert dispatch_size(64, 2, BatchPolicy(32), pace.usual_s, pace.most_tasks) == expected


def test_a_model_that_comes_to_run_more_tasks_at_once_is_given_them_again() -> None:
    pace, size = paced((1.6, 32, 32)), 0
    for _ in range(8):
        size = dispatch_size(64, 2, BatchPolicy(32), pace.usual_s, pace.most_tasks)
        pace.record(1.6, size, 1)
    assert size == 32


def test_dispatches_take_everything_that_waits_and_never_more() -> None:
    for waiting in range(1, 200):
        for free in range(1, 5):
            for usual_s in (None, FAST, SLOW):
                left = waiting
                for idle in range(free, 0, -1):
                    if left:
                        size = dispatch_size(left, idle, BatchPolicy(7), usual_s)
                        assert 1 <= size <= left
                        left -= size
                assert left == 0 or waiting > 7 * 2 * free


@pytest.mark.parametrize(
    ("busy_for_s", "usual_s", "expected"),
    [(0.0, None, False), (0.0, SLOW, False), (0.0, FAST, True), (0.002, FAST, True), (0.1, FAST, False)],
    ids=["nothing known", "a slow model", "a fast one", "nearly done", "late"],
)
def test_only_a_fast_model_that_is_not_late_is_given_its_next_dispatch_early(
    busy_for_s: float, usual_s: float | None, expected: bool
) -> None:
    assert may_queue_behind(1, 100.0, 1, 1, usual_s, 100.0 + busy_for_s) is expected


@pytest.mark.parametrize(("running", "waiting", "expected"), [(4, 3, False), (4, 4, True), (1, 9, True)])
def test_a_second_dispatch_waits_until_it_is_as_large_as_the_first(
    running: int, waiting: int, expected: bool
) -> None:
    assert may_queue_behind(running, 100.0, waiting, 1, 0.002, 100.001) is expected


@pytest.mark.parametrize(("waiting", "expected"), [(7, False), (8, True), (9, True)])
def test_a_second_dispatch_waits_until_it_fills_a_batch(waiting: int, expected: bool) -> None:
    assert may_queue_behind(2, 100.0, waiting, 8, 0.002, 100.001) is expected


@pytest.mark.parametrize(
    ("left", "waiting", "rest_s", "expected"),
    [
        (8, 16, 0.003, True),
        (8, 15, 0.003, False),
        (8, 64, 0.1, False),
        (32, 64, 0.003, False),
        (8, 16, -0.1, False),
    ],
    ids=["its last run", "too few wait", "a slow model", "nothing is answered yet", "a run that is late"],
)
def test_the_next_dispatch_follows_one_whose_rest_is_short(
    left: int, waiting: int, rest_s: float, expected: bool
) -> None:
    assert may_follow(32, left, waiting, rest_s) is expected


@pytest.mark.parametrize(
    ("waiting", "answered", "batch_size", "idle_s", "usual_s", "expected"),
    [
        (1, 10, 32, 0.0, 0.004, 0.002),
        (9, 10, 32, 0.0005, 0.004, 0.0015),
        (1, 10, 32, 0.0, 1.0, 0.005),
        (10, 10, 32, 0.0, 0.004, 0.0),
        (8, 10, 8, 0.0, 0.004, 0.0),
        (1, 10, 1, 0.0, 0.004, 0.0),
        (1, 1, 32, 0.0, 0.004, 0.0),
        (1, 10, 32, 0.003, 0.004, 0.0),
        (1, 0, 32, 0.0, 0.004, 0.0),
        (1, 10, 32, 0.0, None, 0.0),
    ],
    ids=[
        "half a run", "from the end of the last one", "bounded for a slow model", "all are back",
        "a full batch", "batch_size 1 is always full", "a lone caller", "idle for long", "a new instance",
        "nothing known",
    ],
)  # fmt: skip
def test_an_instance_waits_a_little_for_as_many_requests_as_it_has_just_answered(
    waiting: int, answered: int, batch_size: int, idle_s: float, usual_s: float | None, expected: float
) -> None:
    policy = BatchPolicy(batch_size)
    wait = gathered_in(waiting, answered, policy, 100.0, usual_s, 100.0 + idle_s)
    assert wait == pytest.approx(expected)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([1], (1, False)),
        ([1, 1, 1], (2, True)),
        ([1] * 20, (4, True)),
        ([3], (1, False)),
        ([3, 1, 1], (2, True)),
        ([3, 2, 1], (1, True)),
        ([1, 1, 3], (2, True)),
        ([6], (1, False)),
        ([6, 3], (1, True)),
    ],
    ids=[
        "too few", "the smaller size", "the larger size", "no size", "rows, not requests",
        "all sizes exceeded", "the smaller size reached", "larger than all", "the batch would be too large",
    ],
)  # fmt: skip
def test_a_batch_of_a_preferred_number_of_rows_leaves_at_once(
    rows: list[int], expected: tuple[int, bool]
) -> None:
    assert prefer_batch(rows, BatchPolicy(8, preferred=(2, 4), max_rows=8)) == expected


def test_a_dispatch_of_one_batch_has_no_more_where_the_op_has_a_timeout() -> None:
    assert dispatch_size(100, 1, BatchPolicy(8, one_batch=True), FAST) == 8


def test_the_limits_of_a_fast_model_are_exact() -> None:
    assert dispatch_size(100, 1, BatchPolicy(8), SHORT_DISPATCH_S) == 16
    assert dispatch_size(100, 1, BatchPolicy(8), SHORT_DISPATCH_S - 1e-9) == 32
    assert not may_queue_behind(1, 100.0, 9, 8, FAST_DISPATCH_S, 100.0)
    assert may_queue_behind(1, 0.0, 9, 8, 0.004, 0.0085)
    assert not may_queue_behind(1, 0.0, 9, 8, 0.004, 2 * 0.004 + 0.001)
    assert not may_queue_behind(1, 0.0, 9, 8, 0.004, 0.011)


def test_a_rest_of_exactly_the_limit_lets_the_next_dispatch_follow() -> None:
    assert may_follow(32, 8, 16, REST_S)
    assert may_follow(32, 8, 16, -REST_S)
    assert not may_follow(32, 8, 16, 1.01 * REST_S)


def test_a_pace_begins_with_its_first_dispatch() -> None:
    pace = Pace()
    assert (pace.usual_s, pace.run_s, pace.per_task_s, pace.per_row_s) == (None, 0.0, 0.0, 0.0)
    pace.record(0.8, 4, rows=16)
    assert (pace.usual_s, pace.run_s, pace.per_task_s, pace.per_row_s) == (0.8, 0.8, 0.2, 0.05)
    pace = Pace()
    pace.record(0.8, 4)
    assert pace.per_row_s == 0.2, "each task has a row at least"


def test_the_usual_time_follows_each_dispatch_by_a_fifth() -> None:
    pace = Pace()
    for took_s, usual_s in ((1.0, 1.0), (2.0, 1.2), (0.2, 1.0)):
        pace.record(took_s, 1)
        assert pace.usual_s == pytest.approx(usual_s)


def test_means_forget_a_twentieth_with_each_task_and_three_tenths_at_most() -> None:
    pace = Pace()
    pace.record(1.0, 1)
    pace.record(3.0, 1)
    assert pace.run_s == pytest.approx((0.95 + 3.0) / 1.95)
    assert pace.per_task_s == pace.per_row_s == pytest.approx(pace.run_s)
    pace = Pace()
    pace.record(1.0, 20, rows=40)
    pace.record(3.0, 20, rows=30)
    assert pace.run_s == pytest.approx((0.7 + 3.0) / 1.7)
    assert pace.per_task_s == pytest.approx((0.7 + 3.0) / (20 * 1.7))
    assert pace.per_row_s == pytest.approx((0.7 + 3.0) / (40 * 0.7 + 30))


def test_the_maximum_of_tasks_follows_the_tasks_of_a_run() -> None:
    pace = Pace()
    assert pace.most_tasks == math.inf
    pace.record(8.0, 8, runs=1)
    assert pace.most_tasks == math.inf, "the worker has not cut one yet"
    pace.record(8.0, 8, runs=2)
    assert pace.most_tasks == 2 * 4
    pace.record(8.0, 18, runs=2)
    assert pace.most_tasks == pytest.approx(2 * (4 + 0.2 * (9 - 4)))
    pace.record(8.0, 4, runs=1)
    assert pace.most_tasks == pytest.approx(2 * 5), "a run of fewer shows nothing"
    pace.record(8.0, 6, runs=1)
    assert pace.most_tasks == 2 * 6
    pace.record(8.0, 100)
    assert pace.most_tasks == 2 * 6, "nothing is known of its runs"


def test_the_maximum_of_tasks_of_a_fast_model_is_what_half_a_second_takes() -> None:
    pace = Pace()
    pace.record(0.1, 10, runs=5)
    assert pace.most_tasks == 50.0
