"""Replies of a worker instance: each task gets the parts of its own result."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

from pipeline.front.pool.worker_process import Dispatch, Instance, State, TimeLimits
from pipeline.messages.frames import Tail, stow
from pipeline.messages.messages import Outcome, Reply, Settled, Timings

LARGE = 5000  # bytes, which are sent behind the message


class Results:
    """A task that records the parts of its result."""

    streaming = False

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def complete(self, outcome: Outcome, parts: list[Any], state: Any) -> None:
        self.parts = [bytes(part) for part in parts]


async def test_a_result_that_is_not_wanted_any_more_leaves_the_others_their_parts() -> None:
    calls: Any = SimpleNamespace(replying=None, replied=lambda *_: None)
    process: Any = SimpleNamespace(reserved=False)
    instance = Instance("op", 0, process, calls, TimeLimits(math.inf, math.inf))
    instance.state = State.READY
    instance._loop = asyncio.get_running_loop()
    first, last = Results(), Results()
    tasks: list[Any] = [first, None, last]  # another instance has the second one
    instance.in_flight.append(Dispatch(0, tasks, math.inf, 0.0, 0.0, 3, recalled=True))
    tail: list[Any] = []
    results = [[bytes([65 + index]) * LARGE] for index in range(3)]
    settled = [Settled(index, Outcome.ANSWER, stow(parts, tail)) for index, parts in enumerate(results)]
    for _ in instance._take_reply(Reply(0, True, settled, Timings()), Tail(b"".join(tail))):
        pass
    assert (first.parts, last.parts) == (results[0], results[2])
