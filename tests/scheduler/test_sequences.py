"""The sequences of an Op on a clock that the tests move: order, state, failures, expiry and limits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pipeline.api.request_options import RequestOptions
from pipeline.api.sequences import SequenceRules
from pipeline.config.config_file import Limits
from pipeline.errors import InvalidInput, NotReady, Overloaded, SequenceLost, ServingError
from pipeline.front.dag_run import Request
from pipeline.front.scheduler.sequences import Sequences, Turn, end_turns

START, END = 1, 2
IDLE_S = 10.0


class FakeTask:
    """Stands for the task of a request."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wanted = True
        self.errors: list[ServingError] = []

    def fail(self, error: ServingError) -> None:
        self.errors.append(error)

    def of(self, turn: Turn) -> Any:
        """The task, queued for a request."""
        self.turn = turn
        return self


class Harness:
    """Sequences, the tasks that they have released, and the time."""

    def __init__(self, **limits: int) -> None:
        self.now = 100.0
        self.released: list[str] = []
        self.instances = ["first"]
        rules = SequenceRules(idle_s=IDLE_S)
        self.sequences = Sequences(
            "asr:1", rules, Limits(**limits), lambda task: self.released.append(task.name), lambda: self.now
        )

    def request(self, flags: int = 0, key: int | str = 7, rows: int = 1) -> Request:
        request = Request("asr", "infer", {}, rows=rows)
        request.options = RequestOptions(correlation_id=key, flags=flags)
        return request

    def join(self, flags: int = 0, key: int | str = 7) -> Turn:
        request = self.request(flags, key)
        self.sequences.check(request)
        return self.sequences.join(request)

    def run(self, flags: int = 0, state: bytes = b"", key: int | str = 7) -> Any:
        """Run a request to its end. Returns the state that it has got."""
        turn = self.join(flags, key)
        task: Any = FakeTask("lone")
        assert turn.admit(task)
        before = turn.state
        turn.record_state([state] if state else [])
        end_turns([turn], [b"answer"])
        return before


def in_loop(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """The timer of expiry needs a running event loop."""

    def run() -> None:
        asyncio.run(test())  # type: ignore[arg-type]

    run.__name__ = test.__name__
    return run


@in_loop
async def test_a_request_gets_the_state_of_the_last_success_and_start_the_initial_one() -> None:
    harness = Harness()
    assert harness.run(START, b"one") is None
    assert harness.run(0, b"two!") == [b"one"]
    assert harness.sequences.bytes == 4
    assert harness.run(START, b"new") is None
    assert harness.run(END, b"last") == [b"new"]
    assert (harness.sequences.live, harness.sequences.bytes) == (0, 0)


@in_loop
async def test_requests_of_a_sequence_run_in_order_and_those_of_others_beside_them() -> None:
    harness = Harness()
    tasks: list[Any] = [FakeTask(name) for name in ("first", "second", "third")]
    turns = [harness.join(flags) for flags in (START, 0, END)]
    other = harness.join(START, key="other")
    assert [turn.admit(task) for turn, task in zip(turns, tasks, strict=True)] == [True, False, False]
    assert other.admit(FakeTask("other"))  # type: ignore[arg-type]
    turns[0].record_state([b"1"])
    assert harness.released == []  # the first request goes on in other Ops
    end_turns(turns[:1], [b"answer"])
    assert harness.released == ["second"]
    assert turns[1].state == [b"1"]
    end_turns(turns[1:2], InvalidInput("it fails"))
    assert harness.released == ["second", "third"]
    assert turns[2].state == [b"1"]


@in_loop
async def test_a_request_that_fails_or_whose_client_leaves_changes_no_state() -> None:
    harness = Harness()
    harness.run(START, b"kept")
    for answer in (InvalidInput("it fails"), None):
        turn = harness.join(END)
        turn.admit(FakeTask("failing"))  # type: ignore[arg-type]
        turn.record_state([b"lost"])
        end_turns([turn], answer)
        assert harness.run(0, b"kept") == [b"kept"]


@in_loop
async def test_a_request_that_waits_is_dropped_without_the_others_behind_it() -> None:
    harness = Harness()
    turns = [harness.join(flags) for flags in (START, 0, 0)]
    for number, turn in enumerate(turns):
        turn.admit(FakeTask(str(number)))  # type: ignore[arg-type]
    end_turns(turns[1:2], None)
    assert harness.released == []
    turns[0].record_state([b"1"])
    end_turns(turns[:1], [b"answer"])
    assert harness.released == ["2"]


@in_loop
async def test_requests_behind_a_start_that_fails_are_refused() -> None:
    harness = Harness()
    turns = [harness.join(flags) for flags in (START, 0, START)]
    tasks: list[Any] = [FakeTask(str(number)) for number in range(3)]
    for turn, task in zip(turns, tasks, strict=True):
        turn.admit(task)
    end_turns(turns[:1], InvalidInput("it fails"))
    await asyncio.sleep(0)
    assert [len(task.errors) for task in tasks] == [0, 1, 0]
    assert "must specify the START flag" in tasks[1].errors[0].message
    end_turns(turns[1:2], tasks[1].errors[0])
    assert harness.released == ["2"]


@in_loop
async def test_no_request_goes_on_behind_an_end() -> None:
    harness = Harness()
    turn = harness.join(START | END)
    with pytest.raises(InvalidInput, match="sequence 7 to model 'asr' must specify the START flag"):
        harness.join()
    harness.join(START)
    harness.join()
    end_turns([turn], [b"answer"])
    assert harness.sequences.live == 1


@in_loop
async def test_an_idle_sequence_is_freed_and_a_used_one_is_not() -> None:
    harness = Harness()
    harness.run(START, b"state")
    harness.run(START, b"other", key="other")
    open_turn = harness.join(START, key="open")
    harness.now += IDLE_S - 1
    harness.run(0, b"state")
    harness.now += 1
    harness.sequences.expire()
    assert (harness.sequences.live, harness.sequences.bytes, harness.sequences.expired) == (2, 5, 1)
    with pytest.raises(InvalidInput, match="ends after 10 s without a request"):
        harness.join(key="other")
    harness.now += 2 * IDLE_S
    harness.sequences.expire()
    assert harness.sequences.live == 1
    end_turns([open_turn], [b"answer"])


@in_loop
async def test_a_hundred_thousand_idle_sequences_are_freed_together() -> None:
    harness = Harness(sequences=100_000)
    for key in range(1, 100_001):
        harness.run(START, b"state", key=key)
    with pytest.raises(Overloaded, match=r"100000 live sequences, as many as limits.sequences allows"):
        harness.join(START, key="one more")
    assert harness.run(0, key=5) == [b"state"]
    harness.now += IDLE_S
    harness.join(START, key="one more")
    assert (harness.sequences.live, harness.sequences.bytes) == (1, 0)


@in_loop
async def test_a_state_beyond_the_limit_is_not_kept() -> None:
    harness = Harness(sequence_bytes=8)
    harness.run(START, b"12345")
    turn = harness.join(START, key="other")
    turn.record_state([b"1234"])
    refusal = end_turns([turn], [b"answer"])
    assert isinstance(refusal, Overloaded) and "limits.sequence_bytes is 8" in refusal.message
    assert (harness.sequences.live, harness.sequences.bytes) == (1, 5)
    assert harness.run(0, b"12345678") == [b"12345"]


@in_loop
async def test_the_tasks_of_one_request_run_one_after_the_other() -> None:
    harness = Harness()
    turn = harness.join(START)
    tasks: list[Any] = [FakeTask(str(number)) for number in range(3)]
    assert [turn.admit(task) for task in tasks] == [True, False, False]
    tasks[1].wanted = False
    turn.record_state([b"1"])
    assert (harness.released, turn.state) == (["2"], [b"1"])
    turn.restart()  # the whole request is run again
    assert (turn.state, turn.admit(tasks[0])) == (None, True)


@pytest.mark.parametrize(
    ("id_type", "key", "message"),
    [
        ("", 0, "must specify a non-zero or non-empty correlation ID"),
        ("", "", "must specify a non-zero or non-empty correlation ID"),
        ("", "a" * 129, "has more than 128 bytes"),
        ("TYPE_INT64", "7", "is a number .*, and '7' is a text"),
        ("TYPE_UINT32", 1 << 32, "can't hold 4294967296"),
        ("TYPE_UINT64", -1, "can't hold -1"),
    ],
)
def test_an_id_that_the_model_does_not_take_is_refused(id_type: str, key: int | str, message: str) -> None:
    harness = Harness()
    sequences = Sequences("asr:1", SequenceRules(IDLE_S, id_type=id_type), Limits(), lambda task: None)
    with pytest.raises(InvalidInput, match=message):
        sequences.check(harness.request(START, key))


def test_a_text_is_an_id_of_a_model_of_texts_and_of_one_without_an_input_for_it() -> None:
    for id_type in ("", "TYPE_STRING"):
        sequences = Sequences("asr:1", SequenceRules(IDLE_S, id_type=id_type), Limits(), lambda task: None)
        for key in ("a" * 128, 5):
            sequences.check(Harness().request(START, key))


def bound(harness: Harness, slots: int = 0) -> Harness:
    """The sequences of a model that keeps the state in its instance."""
    rules = SequenceRules(idle_s=IDLE_S, bound=True, slots=slots)
    harness.sequences = Sequences(
        "asr:1",
        rules,
        Limits(),
        lambda task: harness.released.append(task.name),
        lambda: harness.now,
        lambda: harness.instances,
    )
    return harness


@in_loop
async def test_a_sequence_ends_if_its_instance_is_another_or_its_request_ran_before() -> None:
    for instance, is_retry in (("other", False), ("first", True)):
        harness = bound(Harness())
        turn = harness.join(START)
        assert turn.bind("first", is_retry=False) is None
        end_turns([turn], [b"answer"])
        turn = harness.join()
        lost = turn.bind(instance, is_retry=is_retry)
        assert lost is not None and (lost.http_status, "start the sequence again" in lost.message) == (
            409,
            True,
        )
        end_turns([turn], lost)
        assert harness.sequences.live == 0


@in_loop
async def test_an_end_that_a_worker_has_got_ends_the_sequence_though_the_client_has_left() -> None:
    harness = bound(Harness())
    for was_sent in (False, True):
        harness.run(START)
        turn = harness.join(END)
        if was_sent:
            turn.bind(None, is_retry=False)
        end_turns([turn], None)
        assert harness.sequences.live == (not was_sent)


@in_loop
async def test_a_sequence_without_a_slot_waits_until_another_ends() -> None:
    harness = bound(Harness(), slots=1)
    turns = [harness.join(START | END, key=key) for key in (1, 2, 3)]
    tasks: list[Any] = [FakeTask(str(number)) for number in range(3)]
    admitted = [turn.admit(task) for turn, task in zip(turns, tasks, strict=True)]
    assert admitted == [True, False, False]
    end_turns(turns[1:2], None)  # its client leaves
    end_turns(turns[:1], [b"answer"])
    assert (harness.released, harness.sequences.live) == (["2"], 1)


@in_loop
async def test_a_new_sequence_goes_to_the_instance_with_the_fewest() -> None:
    harness = bound(Harness(), slots=2)
    harness.instances = ["first", "second"]
    turns = [harness.join(START, key=key) for key in (1, 2, 3, 4, 5)]
    placed = [turn.sequence.instance for turn in turns]
    assert placed == ["first", "second", "first", "second", None]
    end_turns(turns[1:2], InvalidInput("it fails"))
    assert turns[4].sequence.instance == "second"


@in_loop
async def test_only_the_sequences_of_a_dead_instance_end() -> None:
    harness = bound(Harness())
    harness.instances = ["first", "second"]
    for key in (1, 2, 3):
        harness.run(START, key=key)
    harness.instances = ["second", "third"]
    tasks = [FakeTask(str(key)).of(harness.join(START * (key == 3), key=key)) for key in (1, 2, 3)]
    assert harness.sequences.group_tasks(tasks) == {"second": [tasks[1]], "third": [tasks[2]]}
    await asyncio.sleep(0)
    assert [len(task.errors) for task in tasks] == [1, 0, 0]
    assert isinstance(tasks[0].errors[0], SequenceLost)


@in_loop
async def test_sequences_that_wait_for_an_instance_are_refused_where_none_comes() -> None:
    harness = bound(Harness())
    harness.instances = []
    turns = [harness.join(START, key=key) for key in (1, 2)]
    tasks: list[Any] = [FakeTask(str(number)) for number in range(2)]
    assert [turn.admit(task) for turn, task in zip(turns, tasks, strict=True)] == [False, False]
    harness.sequences.clear_backlog(NotReady("no instance"))
    await asyncio.sleep(0)
    assert [len(task.errors) for task in tasks] == [1, 1]
