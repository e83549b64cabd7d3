"""Requests behind a long run of their shard: another shard answers them."""

from __future__ import annotations

import contextlib
import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    ServiceProcess,
    key_value,
    read_answer,
    wait_until,
)


@pytest.fixture(scope="module")
def shards() -> Iterator[ServiceProcess]:
    config = {"shards": 2, "dag": {"request_timeout": PATIENCE_S}, "op": {"echo": {"batch_size": 4}}}
    with ServiceProcess(APPS / "echo.py", config, wait=False) as service:
        service.wait_until_ready(every_instance=True)
        yield service


def ask(client: http.client.HTTPConnection, **inputs: str) -> dict[str, str]:
    """Return the outputs by name."""
    client.request("POST", "/test/prediction", key_value(inputs))
    return read_outputs(client)


def read_outputs(client: http.client.HTTPConnection) -> dict[str, str]:
    answer = read_answer(client).json
    assert answer["err_no"] == 0, answer
    return dict(zip(answer["key"], answer["value"], strict=True))


def test_another_shard_answers_requests_behind_a_late_run(shards: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(shards.connection())) for _ in range(6)]
        pids = [ask(client, number="1")["pid"] for client in clients]
        held, *behind = (client for client, pid in zip(clients, pids, strict=True) if pid == pids[0])
        assert len(behind) == 2
        body = key_value({"number": "2", "action": "wait", "argument": str(gate)})
        held.request("POST", "/test/prediction", body)
        wait_until(Path(f"{gate}.waiting").exists, "the hook runs")
        for client in behind:
            client.request("POST", "/test/prediction", key_value({"number": "3"}))
        for client in behind:
            outputs = read_outputs(client)
            assert (outputs["number"], outputs["pid"] == pids[0]) == ("3", False)
        gate.touch()
        assert read_outputs(held)["number"] == "2"
        assert ask(held, number="4")["number"] == "4"
        wait_until(lambda: shards.answered() == {"ok": 10}, "the requests are counted")
    assert shards.metric("paddlewheel_request_seconds_count") == 10
