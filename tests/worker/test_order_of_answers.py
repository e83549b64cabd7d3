"""When the requests of one dispatch are answered: short ones before a run that will be long."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from pipeline import Op
from pipeline.api.op import REQUEST_OP
from pipeline.messages.frames import Part, Tail, encode, stow
from pipeline.messages.messages import Settled, Timings
from pipeline.models.additions import FeedPadding, Padding
from pipeline.models.signature import Variable
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor, Outputs
from pipeline.worker.hooks import Hooks
from pipeline.worker.model import Joining
from pipeline.worker.plan import BatchLimits, RunCosts
from pipeline.worker.runner import Runner

LONG = 1000


class Lengths(Op):
    """Asks the model about as many ids as the request says."""

    def preprocess(self, input_dicts: dict[str, Any], data_id: int = 0, log_id: int = 0) -> Any:
        (inputs,) = input_dicts.values()
        return {"ids": np.ones((1, int(inputs["length"])), np.int64)}

    def postprocess(
        self, input_dicts: dict[str, Any], fetch_dict: Any, data_id: int = 0, log_id: int = 0
    ) -> Any:
        return {"length": str(int(fetch_dict["sum"][0]))}


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

    def send(settled: list[Settled], tail: list[Part], timings: Timings, *, last: bool) -> None:
        told = ", ".join(str(one.index) for one in sorted(settled, key=lambda one: one.index))
        events.extend([f"answers to {told}"] if told else [])

    executor.run([call(at, length) for at, length in enumerate(lengths)], Tail(b""), send)
    assert events == expected
