"""The steps of a canary: exact shares, and the limits that end the canary."""

from __future__ import annotations

import itertools

import pytest

from pipeline.front.upgrades.shift import MIN_TIMES, CanarySettings, Shift

OLD_S = 0.010


def start(*shares: float, **settings: float) -> Shift:
    """A canary in its first step, after requests of the served version."""
    shift = Shift(CanarySettings(shares, **settings))  # type: ignore[arg-type]
    for _ in range(MIN_TIMES):
        shift.record_old(OLD_S)
    shift.begin_step()
    return shift


@pytest.mark.parametrize(("share", "chosen"), [(1, 10), (10, 100), (12.5, 125), (50, 500), (100, 1000)])
def test_the_share_of_the_requests_is_exact(share: float, chosen: int) -> None:
    shift = start(share)
    choices = [shift.choose() for _ in range(1000)]
    assert sum(choices) == chosen
    gaps = [len(list(group)) for is_chosen, group in itertools.groupby(choices) if not is_chosen]
    assert max(gaps, default=0) - min(gaps, default=0) <= 1, "the requests are spread evenly"


def test_a_step_ends_after_its_requests() -> None:
    shift = start(1, 50, 100, requests=30)
    assert not Shift(CanarySettings((50,))).choose(), "nothing is chosen before the first step"
    shares = []
    while not shift.is_over:
        shares.append(shift.share)
        shift.record_new(OLD_S)
    assert shares == [1] * 30 + [50] * 30 + [100] * 30
    assert (shift.share, shift.choose(), shift.fault) == (0, False, "")
    assert [(step.share, step.requests) for step in shift.steps] == [(1, 30), (50, 30), (100, 30)]


def test_errors_that_only_the_new_version_makes_return_the_share_to_0() -> None:
    shift = start(10, requests=1000)
    while not shift.is_over:
        shift.record_new(OLD_S, failed=True)
    assert "it failed" in shift.fault
    assert (shift.share, shift.choose()) == (0, False)
    assert shift.steps[0].failed < 12


def test_errors_of_both_versions_are_no_fault() -> None:
    shift = start(10, requests=500)
    for _ in range(500):
        shift.record_new(OLD_S, failed=True, failed_again=True)
    assert (shift.is_over, shift.fault, shift.steps[0].failed) == (True, "", 500)


@pytest.mark.parametrize(("new_s", "is_late"), [(3 * OLD_S, True), (1.9 * OLD_S, False)])
def test_late_requests_return_the_share_to_0(new_s: float, *, is_late: bool) -> None:
    shift = start(10, 100, requests=200, latency_limit=2)
    while not shift.is_over:
        shift.record_new(new_s)
    assert ("took more than 20 ms" in shift.fault) == is_late
    assert (len(shift.steps), shift.steps[0].late > 0) == ((1, True) if is_late else (2, False))


def test_a_request_is_late_in_comparison_with_the_latest_requests_of_the_served_version() -> None:
    shift = start(50, requests=1000)
    for _ in range(1000):  # both versions become slower
        shift.record_old(10 * OLD_S)
    for _ in range(999):
        shift.record_new(10 * OLD_S)
    assert (shift.share, shift.fault) == (50, "")
