"""The test of changed answers: on simulated requests, and its bounds."""

from __future__ import annotations

import random

import pytest

from pipeline.front.upgrades.sequential_test import ALPHA, SequentialTest, Verdict

REQUESTS = 2000


def simulate(seed: int, changed: float, noise: float, tolerance: float = 0.0) -> SequentialTest:
    """A comparison up to its verdict. changed, noise: probabilities of the two indicators."""
    test, rng = SequentialTest(tolerance, REQUESTS), random.Random(seed)
    while test.verdict is Verdict.CONTINUE:
        test.count_request(changed=rng.random() < changed, noise=rng.random() < noise)
    return test


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_an_equal_model_is_refused_at_most_once_in_100_upgrades(noise: float) -> None:
    verdicts = [simulate(seed, noise, noise).verdict for seed in range(100)]
    assert verdicts.count(Verdict.REFUSE) <= 1


def test_a_model_that_changes_1_percent_of_the_classes_is_found_within_2000_requests() -> None:
    tests = [simulate(seed, 0.01, 0.0) for seed in range(100)]
    assert sum(test.verdict is Verdict.REFUSE for test in tests) >= 97
    assert sorted(test.requests for test in tests)[50] < 1200


def test_a_tolerance_accepts_early_and_refuses_more_changes() -> None:
    accepted = simulate(1, 0.01, 0.0, tolerance=0.1)
    assert (accepted.verdict, accepted.requests < 300) == (Verdict.ACCEPT, True)
    assert accepted.compute_bound() <= 0.1
    assert simulate(2, 0.3, 0.0, tolerance=0.1).verdict is Verdict.REFUSE


def test_the_noise_of_the_old_model_is_no_change_of_the_new_one() -> None:
    test = SequentialTest(max_requests=100)
    for _ in range(100):
        test.count_request(changed=True, noise=True)
    assert (test.verdict, test.excess, test.changed) == (Verdict.ACCEPT, 0.0, 100)


def test_the_bound_shrinks_with_the_requests() -> None:
    test = SequentialTest()
    assert test.compute_bound() == pytest.approx(1.0)
    bounds = []
    for _ in range(3):
        for _ in range(500):
            test.count_request(changed=False, noise=False)
        bounds.append(test.compute_bound())
    assert bounds == sorted(bounds, reverse=True)
    assert bounds[-1] < 0.006


def test_evidence_decides_at_one_over_alpha() -> None:
    test = SequentialTest()
    while test.verdict is Verdict.CONTINUE:
        assert test.evidence < 1 / ALPHA
        test.count_request(changed=True, noise=False)
    assert test.evidence >= 1 / ALPHA
    assert test.requests < 12


@pytest.mark.parametrize("tolerance", [-0.1, 1.0, float("nan")])
def test_a_tolerance_is_a_share(tolerance: float) -> None:
    with pytest.raises(ValueError, match="tolerance"):
        SequentialTest(tolerance)
