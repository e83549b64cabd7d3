"""20,000 sequences under faults: the harness of `make bench-sequences`."""

from __future__ import annotations

from bench.sequences import CANCELLED, TOLERANCE, Plan, measure

SEQUENCES, KILLS = 20_000, 4


def test_no_sequence_is_lost_and_no_state_is_mixed() -> None:
    outcome = measure(Plan(SEQUENCES, KILLS))
    assert outcome.errors == []
    assert outcome.difference <= TOLERANCE
    assert (outcome.kills, outcome.remaining, outcome.remaining_bytes) == (KILLS, 0, 0)
    assert outcome.cancelled + outcome.timed_out > CANCELLED * SEQUENCES / 2
    assert outcome.expired > outcome.abandoned / 2
