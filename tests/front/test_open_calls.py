"""The open calls of a gRPC server: what a stop tells them, and how long it waits for them."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from pipeline.front.grpc import open_calls
from pipeline.front.grpc.open_calls import OpenCalls

_CHECKS = 10  # of a quiet second


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> OpenCalls:
    monkeypatch.setattr(open_calls, "_CHECK_INTERVAL_S", 0)
    return OpenCalls()


def call() -> Any:
    return object()


def test_streams_learn_of_a_stop_also_those_that_begin_later(calls: OpenCalls) -> None:
    told: list[str] = []
    early, late, ended = call(), call(), call()
    calls.add_call(call())
    for stream, name in ((early, "early"), (ended, "ended")):
        calls.add_call(stream)
        calls.call_on_stop(stream, partial(told.append, name))
    calls.remove_call(ended)
    calls.begin_stop()
    assert told == ["early"]
    calls.add_call(late)
    calls.call_on_stop(late, partial(told.append, "late"))
    assert told == ["early", "late"]


async def until_asleep() -> None:
    for _ in range(2 * _CHECKS):
        await asyncio.sleep(0)


def test_it_is_not_quiet_while_a_call_is_open(calls: OpenCalls) -> None:
    async def run() -> None:
        first, second = call(), call()
        calls.add_call(first)
        quiet = asyncio.ensure_future(calls.wait_until_quiet())
        await until_asleep()
        assert not quiet.done()
        calls.remove_call(first)
        await asyncio.sleep(0)
        calls.add_call(second)  # begins within the second
        await until_asleep()
        assert not quiet.done()
        calls.remove_call(second)
        await quiet

    asyncio.run(run())
