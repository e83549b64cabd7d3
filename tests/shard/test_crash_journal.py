"""Shards that die: other shards answer the requests of their connections."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    ServiceProcess,
    is_running,
    key_value,
    read_answer,
    wait_until,
)

CALLERS, KILLS = 12, 10
LARGE = """
import os
from pipeline import Op, WebService

class LargeOp(Op):
    def postprocess(self, input_dicts, fetch_dict, data_id, log_id):
        (inputs,) = input_dicts.values()
        return {"text": "x" * int(inputs["size"])}, None, ""

class LargeService(WebService):
    def get_pipeline_response(self, read_op):
        return LargeOp(name="large", input_ops=[read_op])

service = LargeService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
"""


@pytest.fixture(scope="module")
def shards() -> Iterator[ServiceProcess]:
    # On a busy machine, a request may wait for the start of a shard longer than the default allows.
    dag = {"request_timeout": PATIENCE_S}
    config = {"shards": 2, "dag": dag, "op": {"echo": {"batch_size": 4, "concurrency": 2}}}
    with ServiceProcess(APPS / "echo.py", config, wait=False) as service:
        service.wait_until_ready(every_instance=True)
        yield service


def shard_of(service: ServiceProcess, connection: http.client.HTTPConnection) -> int:
    """Return the PID of the shard that serves a connection."""
    connection.request("POST", "/test/prediction", key_value({"number": "0"}))
    answer = read_answer(connection).json
    return int(dict(zip(answer["key"], answer["value"], strict=True))["pid"])


class Caller(threading.Thread):
    """Sends numbers over one connection, and checks that each answer is that of its number."""

    def __init__(self, service: ServiceProcess, first: int, over: threading.Event) -> None:
        super().__init__()
        self._service, self._first, self._over = service, first, over
        self.answered = self.closed = 0
        self.wrong: list[object] = []

    @property
    def ended(self) -> int:
        """Requests that were answered, or whose connection was closed."""
        return self.answered + self.closed

    def run(self) -> None:
        connection, number = self._service.connection(), self._first
        while not self._over.is_set():
            number += 1
            try:
                connection.request("POST", "/test/prediction", key_value({"number": str(number)}))
                answer = read_answer(connection).json
            except (OSError, http.client.HTTPException):
                self.closed += 1
                connection.close()
                continue
            if answer["value"][:2] != [str(number), str(2 * number)]:
                self.wrong.append((number, answer))
            self.answered += 1
        connection.close()


def wait_for_answers(callers: list[Caller]) -> None:
    """Wait for a hundred answers, of which each caller has two or has found its connection closed.

    The request of a caller that is under way now has ended by then, and the next one has found out whether
    its connection is open.
    """
    answered, ended = sum(caller.answered for caller in callers), [caller.ended for caller in callers]
    wait_until(lambda: sum(caller.answered for caller in callers) > answered + 100, "requests are answered")
    wait_until(
        lambda: all(caller.ended >= before + 2 for caller, before in zip(callers, ended, strict=True)),
        "each caller goes on",
    )


def test_kills_at_any_moment_lose_no_request_and_answer_none_twice(shards: ServiceProcess) -> None:
    over, chance = threading.Event(), random.Random(31)
    lost_before = shards.metric("paddlewheel_shard_lost_connections_total")
    callers = [Caller(shards, 1_000_000 * place, over) for place in range(CALLERS)]
    for caller in callers:
        caller.start()
    for _ in range(KILLS):
        wait_for_answers(callers)
        time.sleep(0.01 * chance.random())  # any moment
        os.kill(chance.choice(shards.worker_pids()), signal.SIGKILL)
    wait_for_answers(callers)
    over.set()
    for caller in callers:
        caller.join()
    assert [wrong for caller in callers for wrong in caller.wrong] == []
    lost = shards.metric("paddlewheel_shard_lost_connections_total") - lost_before
    assert sum(caller.closed for caller in callers) == lost, "only answers that had begun"
    assert lost <= KILLS / 2
    shards.wait_until_ready(every_instance=True)


def test_a_request_in_a_hook_is_answered_by_another_shard(shards: ServiceProcess, tmp_path: Path) -> None:
    moved = shards.metric("paddlewheel_shard_moved_connections_total")
    with contextlib.closing(shards.connection()) as connection:
        pid = shard_of(shards, connection)
        request = {"number": "5", "action": "wait", "argument": str(tmp_path / "gate")}
        connection.request("POST", "/test/prediction", key_value(request))
        wait_until((tmp_path / "gate.waiting").exists, "the hook runs")
        (tmp_path / "gate.waiting").unlink()
        os.kill(pid, signal.SIGKILL)
        wait_until((tmp_path / "gate.waiting").exists, "the hook runs again")
        (tmp_path / "gate").touch()
        answer = read_answer(connection).json
    assert answer["value"][:2] == ["5", "10"]
    assert answer["value"][4] != str(pid)
    assert shards.metric("paddlewheel_shard_moved_connections_total") >= moved + 1
    shards.wait_until_ready(every_instance=True)


def test_a_request_that_kills_is_refused_and_its_neighbours_are_answered(
    shards: ServiceProcess, tmp_path: Path
) -> None:
    held = {"number": "7", "action": "wait_once", "argument": str(tmp_path / "first")}
    # Else both new connections might go to one shard.
    wait_until(lambda: shards.metric("paddlewheel_shard_connections") == 0, "earlier ones are forgotten")
    with (
        contextlib.closing(shards.connection()) as neighbour,
        contextlib.closing(shards.connection()) as poison,
    ):
        neighbour.request("POST", "/test/prediction", key_value(held))
        wait_until((tmp_path / "first").exists, "the hook of the neighbour runs")
        moved = shards.metric("paddlewheel_shard_moved_connections_total")
        poison.request("POST", "/test/prediction", key_value({"number": "13", "action": "die"}))
        wait_until(
            lambda: shards.metric("paddlewheel_shard_moved_connections_total") > moved, "a shard is dead"
        )
        (tmp_path / "first.gate").touch()
        answer, refusal = read_answer(neighbour).json, read_answer(poison).json
    assert refusal["err_no"] == 9000
    assert "killed by SIGKILL" in refusal["err_msg"]
    assert answer["value"][:2] == ["7", "14"]
    shards.wait_until_ready(every_instance=True)


def test_a_connection_whose_answer_had_begun_is_closed_and_counted(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE, "utf-8")
    with ServiceProcess(tmp_path / "large.py", {"shards": 2, "op": {"large": {}}}, wait=False) as service:
        service.wait_until_ready(every_instance=True)
        with contextlib.closing(socket.create_connection(("127.0.0.1", service.http_port))) as client:
            client.settimeout(PATIENCE_S)
            body = key_value({"size": str(32 << 20)})
            head = b"POST /test/prediction HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
            client.sendall(head + body)
            assert client.recv(100).startswith(b"HTTP/1.1 200")
            for pid in service.worker_pids():
                os.kill(pid, signal.SIGKILL)
            received = 0
            with contextlib.suppress(ConnectionResetError):
                while data := client.recv(1 << 20):
                    received += len(data)
        assert received < 32 << 20
        lost = "paddlewheel_shard_lost_connections_total"
        wait_until(lambda: service.metric(lost) == 1, "the connection is counted")


def test_shards_end_with_the_front(tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE, "utf-8")
    with ServiceProcess(tmp_path / "large.py", {"shards": 2, "op": {"large": {}}}) as service:
        pids = service.worker_pids()
        service.process.kill()
        wait_until(lambda: not any(map(is_running, pids)), "the shards end")
