"""The batch limit learned from dispatches, on a fake clock."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable

import pytest

from pipeline.front.scheduler.batch_limit import FIRST_REST_S, LIMITS, BatchLimit
from pipeline.tuning.choice import Choice, Served, Timed
from tests.support.simulated_service import SimulatedService

MINUTE_S = 60.0
Cost = Callable[[int], float]  # seconds per request by batch limit


class Traffic:
    """Callers whose requests wait in the queue, for one instance with a known cost of each batch limit."""

    def __init__(
        self, limit: int, cost: Cost, *, tasks: int = 64, idle_s: float = 0.0, noise: float = 0.0
    ) -> None:
        self.now = 100.0
        self.learned = BatchLimit(limit, 32, self.now)
        self.used_s: dict[int, float] = {}
        self.adopted: list[int] = []
        self._cost = cost
        self._tasks = tasks
        self._idle_s = idle_s
        self._noise = noise
        self._chance = random.Random(7)

    def run(self, seconds: float) -> int:
        """Let time pass, and return the adopted limit."""
        until = self.now + seconds
        while self.now < until:
            self.now += self._idle_s
            began, used, limit = self.now, self.learned.used, self.learned.limit
            tasks = min(self._tasks, 4 * used)
            took_s = tasks * self._cost(used) * self._chance.uniform(1, 1 + self._noise)
            self.now += took_s
            self.used_s[used] = self.used_s.get(used, 0.0) + took_s
            self.learned.record(began, began, self.now, tasks)
            if self.learned.limit != limit:
                self.adopted.append(self.learned.limit)
        return self.learned.limit


def around(best: int) -> Cost:
    """A cost that grows by 6 % with each doubling or halving from the best limit."""
    return lambda limit: 1e-3 * 1.06 ** abs(limit.bit_length() - best.bit_length())


@pytest.mark.parametrize("first", LIMITS)
@pytest.mark.parametrize("best", LIMITS)
def test_a_wrong_limit_is_corrected_within_a_minute_of_traffic(first: int, best: int) -> None:
    traffic = Traffic(first, around(best), noise=0.1)
    assert traffic.run(MINUTE_S) == best
    assert traffic.run(5 * MINUTE_S) == best


def test_a_slow_model_is_corrected_too() -> None:
    traffic = Traffic(32, lambda limit: 12 * around(8)(limit))
    assert traffic.run(2 * MINUTE_S) == 8


def test_equal_limits_stay_and_trials_become_rare() -> None:
    traffic = Traffic(16, lambda limit: 1e-3, noise=0.1)
    assert traffic.run(10 * MINUTE_S) == 16
    assert not traffic.adopted
    assert traffic.used_s[16] > 0.9 * sum(traffic.used_s.values())


def test_a_limit_that_is_far_worse_is_used_for_one_window() -> None:
    traffic = Traffic(16, lambda limit: 1e-3 if limit == 16 else 2e-3)
    traffic.run(FIRST_REST_S)
    for limit in (8, 32):
        assert 0 < traffic.used_s[limit] < 0.8


def test_small_dispatches_start_no_trial() -> None:
    traffic = Traffic(16, around(4), tasks=3, idle_s=0.01)
    assert traffic.run(MINUTE_S) == 16
    assert set(traffic.used_s) == {16}


def test_idle_time_does_not_count() -> None:
    traffic = Traffic(32, around(8), idle_s=0.05)
    assert traffic.run(MINUTE_S) == 8


def test_the_limit_of_config_yml_is_not_exceeded() -> None:
    learned = BatchLimit(8, 8, 0.0)
    now = 0.0
    for _ in range(2000):
        now += 0.01
        learned.record(now - 0.01, now - 0.01, now, 32)
        assert learned.used <= 8


def test_a_service_adopts_larger_batches_and_logs_each_change(
    serve: Callable[..., SimulatedService], caplog: pytest.LogCaptureFixture
) -> None:
    """A simulated run takes the same time for any batch, and a dispatch of two batches of 16 is one run."""
    caplog.set_level(logging.INFO)
    served = Served("onnxruntime", "fp32", "auto", LIMITS[0])
    timed = Timed("onnxruntime", "fp32", points=((1, 16, 0.001),))
    choices = {"a": Choice((timed,), left_open=("batch_size",), served=(served,))}
    service = serve({"a": {"batch_size": 32}}, run_s=0.05, choices=choices)
    calls = service.ask_several(192)
    while service.now < MINUTE_S / 4:
        service.advance(0.025)
        answered = [call for call in calls if call.answers]
        calls = [call for call in calls if not call.answers]
        calls += service.ask_several(len(answered))
    changes = [line for line in caplog.messages if line.startswith("Op a: batches of up to ")]
    assert [line.split(" save ")[0] for line in changes] == [
        f"Op a: batches of up to {limit} requests in place of {before}"
        for before, limit in itertools.pairwise(LIMITS[:3])
    ]
