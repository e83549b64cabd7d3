"""When the requests of one dispatch are answered: short ones before a run that will be long."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from pipeline import Op, OpRequest
from pipeline.api.op import REQUEST_OP
from pipeline.messages.frames import Part, Tail, encode, stow
from pipeline.messages.messages import Settled, Timings
from pipeline.models.additions import FeedPadding, Padding
from pipeline.models.signature import Variable
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor, Outputs
from pipeline.worker.hooks import Hooks, get_hooks
from pipeline.worker.model import Joining
from pipeline.worker.plan import BatchLimits, RunCosts
from pipeline.worker.runner import Runner

LONG = 1000
# Two rows in a run take less than in two runs.
FAST_RUNS = RunCosts({(1, 1): 1e-6, (2, 1): 1e-6}, 2, follows=False)


class Lengths(Op):
    """Asks the model about as many ids as the request says."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (inputs,) = input_dicts.values()
        return {"ids": np.ones((1, int(inputs["length"])), np.int64)}

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"length": str(int(fetch_dict["sum"][0]))}


class Batchwise(Op):
    """Notes the number of requests in each call of the hook for batches."""

    preprocess = Lengths.preprocess

    def init_op(self) -> None:
        self.events: list[str] = []

    def postprocess_batch(self, requests: Sequence[OpRequest], fetches: Sequence[Any]) -> list[Any]:
        self.events.append(f"postprocess of {len(requests)}")
        return [{"length": str(int(fetch["sum"][0]))} for fetch in fetches]


class PreprocessedTogether(Op):
    """Has a hook for the inputs of all requests, and one for the output of each."""

    def preprocess_batch(self, requests: Sequence[OpRequest]) -> list[Any]:
        return [{"ids": np.ones((1, 2), np.int64)} for _ in requests]

    postprocess = Lengths.postprocess


class Noted:
    """A model that notes its runs in a list, in which the test notes the answers."""

    feeds = (Variable("ids", "ids", "int64", (-1, -1)),)
    fetches = (Variable("sum", "sum", "int64", (-1,)),)
    merges = True

    def __init__(self, events: list[str]) -> None:
        self._events = events

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        self._events.append(f"run of {feeds['ids'].shape[1]}")
        return {"sum": feeds["ids"].sum(axis=1)}

    def close(self) -> None:
        """Nothing is held."""


def call(index: int, length: int) -> Call:
    given = stow(encode({"length": str(length)}, allow_pickle=False), [])
    return Call(index, index + 1, 0, "", None, "", None, math.inf, [(REQUEST_OP, given)])


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([LONG, 2, 2], ["run of 2", "answers to 1, 2", f"run of {LONG}", "answers to 0"]),
        ([LONG, LONG + 1], [f"run of {LONG}", "answers to 0", f"run of {LONG + 1}", "answers to 1"]),
    ],
    ids=["short ones first", "long ones one by one"],
)
def test_what_has_run_is_answered_before_a_run_that_will_be_long(
    lengths: list[int], expected: list[str]
) -> None:
    events: list[str] = []
    # Two rows of the longest length are dear together, so that the plan runs them one by one.
    costs = RunCosts({(1, 1): 1e-5, (1, LONG): 1.0, (2, 1): 1e-5, (2, LONG): 9.0}, 2, follows=False)
    padding = Padding({"ids": FeedPadding(1)}, {})
    hooks = Hooks(Lengths(name="lengths"))
    runner = Runner(hooks, Noted(events), BatchLimits(requests=2), Joining(padding, free=True), costs)
    executor = Executor(hooks, runner, Outputs(hooks, {}, answers={}))
    executor.run([call(at, length) for at, length in enumerate(lengths)], Tail(b""), record_answers(events))
    assert events == expected


@pytest.mark.parametrize(
    ("together_ns", "expected"),
    [
        (10**18, ["run of 2", "run of 2", "postprocess of 4", "answers to 0, 1", "answers to 2, 3"]),
        (
            0,
            [
                *("run of 2", "postprocess of 2", "answers to 0, 1"),
                *("run of 2", "postprocess of 2", "answers to 2, 3"),
            ],
        ),
    ],
    ids=["together", "one by one"],
)
def test_batches_that_end_within_the_limit_are_postprocessed_and_answered_together(
    together_ns: int, expected: list[str]
) -> None:
    op = Batchwise(name="batchwise")
    op.init_op()
    hooks = get_hooks(op)
    executor = create_executor(hooks, Noted(op.events), 2, FAST_RUNS)
    executor.together_ns = together_ns
    executor.run([call(at, 2) for at in range(4)], Tail(b""), record_answers(op.events))
    assert op.events == expected


def test_batches_of_one_request_are_answered_one_by_one() -> None:
    events: list[str] = []
    executor = create_executor(get_hooks(PreprocessedTogether(name="together")), Noted(events), 1, FAST_RUNS)
    executor.together_ns = 10**18
    executor.run([call(at, 2) for at in range(2)], Tail(b""), record_answers(events))
    assert events == ["run of 2", "answers to 0", "run of 2", "answers to 1"]


def test_a_model_without_measured_times_answers_before_its_next_run() -> None:
    """Its runs take longer than the answers of a worker process wait."""
    events: list[str] = []

    class Slow(Noted):
        def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
            end = time.perf_counter_ns() + 3_000_000
            while time.perf_counter_ns() < end:
                pass
            return super().run(feeds)

    executor = create_executor(Hooks(Lengths(name="lengths")), Slow(events), 2, None)
    executor.together_ns = 10**18
    executor.run([call(at, 2) for at in range(4)], Tail(b""), record_answers(events))
    assert events == ["run of 2", "answers to 0, 1", "run of 2", "answers to 2, 3"]


def create_executor(hooks: Hooks, model: Noted, batch_size: int, costs: RunCosts | None) -> Executor:
    runner = Runner(hooks, model, BatchLimits(requests=batch_size), Joining(None, free=True), costs)
    return Executor(hooks, runner, Outputs(hooks, {}, answers={}))


def record_answers(events: list[str]) -> Callable[..., None]:
    """Return a `Send` that records the answered requests of each reply."""

    def send(settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
        answered = ", ".join(str(each.index) for each in sorted(settled, key=lambda each: each.index))
        events.extend([f"answers to {answered}"] if answered else [])

    return send
