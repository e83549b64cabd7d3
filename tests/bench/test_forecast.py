"""The simulation of bench.forecast has the throughput and latencies of the times that it is given."""

from __future__ import annotations

import random

import pytest

from bench.open_loop import Arrivals
from bench.simulated_load import MIN_SAMPLES, ServiceTimes, SimulatedLoad

RUN_S = 0.010
TIMES = ServiceTimes({1: [RUN_S] * MIN_SAMPLES}, dispatch_s=0.0, front_s=20e-6, outside_s=0.002)


def offer(rate: float, *, instances: int = 1, times: ServiceTimes = TIMES, batch_size: int = 1) -> Arrivals:
    load = SimulatedLoad(times, instances=instances, batch_size=batch_size)
    return load.run(rate, 5.0, 0.5)


def test_a_service_with_spare_time_answers_everything_in_the_time_of_a_run() -> None:
    got = offer(50)
    assert got.sent == pytest.approx(250, abs=2)
    assert (got.refused, got.late, got.failed, got.lost, got.unsent) == (0, 0, 0, 0, 0)
    assert got.p50_ms == pytest.approx(1e3 * (RUN_S + TIMES.outside_s), rel=0.1)


@pytest.mark.parametrize("instances", [1, 2])
def test_an_overloaded_service_answers_what_its_instances_can(instances: int) -> None:
    got = offer(300, instances=instances)
    assert got.answered / got.seconds == pytest.approx(instances / RUN_S, rel=0.1)
    assert got.refused > 0 and got.failed == 0
    assert got.p99_ms <= 500


def test_batches_raise_the_throughput() -> None:
    times = ServiceTimes({1: [RUN_S] * MIN_SAMPLES, 4: [2 * RUN_S] * MIN_SAMPLES}, 0.0, 20e-6)
    got = offer(400, times=times, batch_size=4)
    assert got.answered / got.seconds == pytest.approx(4 / (2 * RUN_S), rel=0.1)


def test_a_size_that_was_not_measured_lies_on_the_line_through_all() -> None:
    times = ServiceTimes({1: [0.010] * MIN_SAMPLES, 5: [0.030] * MIN_SAMPLES}, 0.001, 0.0)
    rng = random.Random(1)
    assert times.draw_run_s(rng, 1) == pytest.approx(0.011)
    assert times.draw_run_s(rng, 2) == pytest.approx(0.016)
    assert times.draw_run_s(rng, 8) == pytest.approx(0.046)
