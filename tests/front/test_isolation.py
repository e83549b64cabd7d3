"""Callbacks of the event loop: a fault in one object must not leave the others in a half-way state."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import cast

import pytest

from pipeline.front.dag_run import DagRun, InOrder
from pipeline.front.scheduler.scheduler import Deadlines
from pipeline.process import isolation
from pipeline.process.isolation import run_isolated


class FakeRun:
    """A DAG run, and a task of it, that may raise at its end."""

    wanted = True
    answered_at = 0.0

    def __init__(self, number: int, *, raises: bool = False) -> None:
        self.number = number
        self.raises = raises
        self.ended = asyncio.Event()

    def expire(self) -> None:
        self.ended.set()
        if self.raises:
            raise ZeroDivisionError(f"run {self.number}")


@pytest.fixture(autouse=True)
def _forget_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_logged_at", {})


def test_every_request_expires_though_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def expire() -> None:
        deadlines, now = Deadlines(), time.monotonic()
        runs = [FakeRun(number, raises=number == 0) for number in range(4)]
        for place, run in enumerate(runs):
            deadlines.expire_at(cast(DagRun, run), now + 0.02 * (place // 2))
        for run in runs:
            await run.ended.wait()

    asyncio.run(asyncio.wait_for(expire(), 60))
    assert "run 0" in caplog.text


def test_answers_in_order_go_on_though_one_raises(caplog: pytest.LogCaptureFixture) -> None:
    async def answer_in_order() -> None:
        order, runs = InOrder(), [FakeRun(0, raises=True), FakeRun(1)]
        for run in runs:
            order.sent(run)
        for run in reversed(runs):
            order.complete(run, run.expire)
        for run in runs:
            await run.ended.wait()

    asyncio.run(asyncio.wait_for(answer_in_order(), 60))
    assert "run 0" in caplog.text


def test_a_fault_that_repeats_has_one_traceback_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    def divide() -> float:
        return 1 / 0

    with caplog.at_level(logging.ERROR):
        assert [run_isolated(divide) for _ in range(100)] == [False] * 100
    assert len(caplog.records) == 1
    assert run_isolated(len, "")


def test_an_answer_of_either_instance_waits_for_its_turn() -> None:
    """The second is run by another instance, too, for its own hangs; the first is under way for longer."""
    order, answered = InOrder(), list[str]()
    first, second, copy = FakeRun(0), FakeRun(1), FakeRun(1)
    for run in (first, second, copy):
        order.sent(run)
    order.complete(second, lambda: answered.append("second"))
    assert answered == []
    order.complete(first, lambda: answered.append("first"))
    assert answered == ["first", "second"]
