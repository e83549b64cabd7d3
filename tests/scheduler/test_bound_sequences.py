"""The dispatch of sequences whose state an instance keeps: each request goes to its instance."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.api.sequences import SequenceRules
from pipeline.errors import InvalidInput, SequenceLost
from tests.support.simulated_service import RUN_S, Call, SimulatedService

Serve = Callable[..., SimulatedService]
START, END = 1, 2
RULES = {"a": SequenceRules(idle_s=1000.0, bound=True)}


def start_sequences(service: SimulatedService, count: int) -> None:
    """Start the sequences 1 to `count`, one after the other."""
    for number in range(1, count + 1):
        first = service.ask(sequence=number, flags=START)
        service.advance(RUN_S * 1.5)
        assert first.body
    service.begun.clear()


def number(call: Call) -> int:
    return int(call.request.inputs["id"])


def test_a_request_waits_for_the_instance_of_its_sequence_and_others_do_not(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}}, sequences=RULES)
    start_sequences(service, 2)
    of_first = [service.ask(sequence=1) for _ in range(2)]
    service.advance(0.01)
    of_second = service.ask(sequence=2)
    service.advance(0.01)
    assert service.begun == [[number(of_first[0])], [number(of_second)]]
    service.advance(2 * RUN_S)
    assert [call.answered_at for call in of_first] == pytest.approx(
        [of_first[0].answered_at, of_first[0].answered_at + RUN_S], abs=0.01
    )
    assert of_second.answered_at < of_first[1].answered_at


def test_sequences_of_one_instance_share_a_dispatch(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8}}, sequences=RULES)
    start_sequences(service, 5)
    calls = service.send(*(service.make(sequence=number) for number in range(1, 6)))
    service.advance(1.5 * RUN_S)
    assert service.begun == [[number(call) for call in calls]]
    assert all(call.body for call in calls)


def test_two_requests_of_a_sequence_never_share_a_batch(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}}, sequences=RULES)
    start_sequences(service, 1)
    calls = service.send(*(service.make(sequence=1) for _ in range(3)))
    service.advance(4 * RUN_S)
    assert service.begun == [[number(call)] for call in calls]


def test_sequences_that_fill_no_batch_wait_for_the_queue_delay(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2, "auto_batching_timeout": 50}}, sequences=RULES)
    for flags in (START, 0):
        first = service.ask(sequence=1, flags=flags)
        service.advance(0.04)
        assert service.begun == []
        second = service.ask(sequence=2, flags=flags)
        service.advance(0.001)
        assert service.begun == [[number(first), number(second)]]  # the batch is full
        service.advance(RUN_S * 1.5)
        service.begun.clear()
    alone = service.ask(sequence=1)
    service.advance(0.049)
    assert service.begun == []
    service.advance(0.002)
    assert service.begun == [[number(alone)]]
    service.advance(RUN_S)
    assert alone.body


def test_the_death_of_an_instance_ends_its_sequences_alone(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}}, sequences=RULES)
    start_sequences(service, 2)
    running = service.ask(sequence=1)
    service.advance(0.01)
    (worker,) = (worker for worker in service.workers if worker.name == "a.0")
    service.kill(worker)
    service.advance(0.01)
    assert isinstance(running.error, SequenceLost)
    with pytest.raises(InvalidInput, match="sequence 1 to model 'a' must specify the START flag"):
        service.ask(sequence=1)
    other = service.ask(sequence=2)
    service.advance(RUN_S * 1.5)
    assert other.body


def test_an_ended_sequence_may_start_again_on_the_idle_instance(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}}, sequences=RULES)
    start_sequences(service, 2)
    last = service.ask(sequence=1, flags=END)
    service.advance(RUN_S * 1.5)
    assert last.body
    service.begun.clear()
    busy = service.ask(sequence=2)
    again = service.ask(sequence=1, flags=START)
    service.advance(0.01)
    assert sorted(service.begun) == [[number(busy)], [number(again)]]
    service.advance(RUN_S)
