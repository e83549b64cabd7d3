"""Simulated runs of the scheduler and the pool: every invariant holds, and planted bugs are found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.planted_bugs import BUGS, OF_SEQUENCES, find_seed
from tests.simulation.run import simulate
from tests.support.service_process import ROOT

SEEDS = 500
SEQUENCE_SEEDS = 100
# `make simulate` looks for all of them.
QUICK_BUGS = (
    "real_time_signals_have_no_name",
    "hung_instances_keep_their_requests",
    "queue_policy_timers_stay",
    "tasks_behind_an_abandoned_call_stay",
)


def test_no_seed_breaks_an_invariant() -> None:
    broken = {seed: violations for seed in range(SEEDS) if (violations := simulate(seed).violations)}
    assert not broken, f"python -m tests.simulation --seed {min(broken)}"


def test_no_seed_of_sequences_breaks_an_invariant() -> None:
    seeds = range(SEQUENCE_SEEDS)
    broken = {seed: found for seed in seeds if (found := simulate(seed, sequences=True).violations)}
    assert not broken, f"python -m tests.simulation --sequences --seed {min(broken)}"


@pytest.mark.parametrize("name", [*QUICK_BUGS, *OF_SEQUENCES])
def test_a_planted_bug_is_found(name: str) -> None:
    assert find_seed(name, SEEDS) is not None


def test_every_planted_bug_says_what_is_wrong() -> None:
    assert len(BUGS) >= 20
    assert all(plant.__doc__ for plant in BUGS.values())


def test_a_seed_replays_the_same_events_in_another_process() -> None:
    seed = 1  # of a request timeout that several requests share
    command = [sys.executable, "-m", "tests.simulation", "--seed", str(seed)]
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, simulate(seed).trace)


def test_a_broken_invariant_ends_the_command_with_1() -> None:
    program = (
        "import sys\n"
        "from tests.simulation import __main__, planted_bugs\n"
        "with planted_bugs.planted('requests_end_twice'):\n"
        "    sys.exit(not __main__.replay(0))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "violation: " in done.stdout
