"""Connections that shards serve, and those that they leave to the front."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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

CONNECTIONS = "paddlewheel_shard_connections"
PENDING = "paddlewheel_pending_requests"
BROKEN = """
import os
from pathlib import Path
from pipeline import Op, WebService

class BrokenOp(Op):
    def init_op(self):
        Path(os.environ["FOLDER"], "first").touch(exist_ok=False)

    def preprocess(self, input_dicts, data_id, log_id):
        return {}, False, None, ""

class BrokenService(WebService):
    def get_pipeline_response(self, read_op):
        return BrokenOp(name="broken", input_ops=[read_op])

service = BrokenService(name="test")
service.prepare_pipeline_config(os.environ["SERVICE_CONFIG"])
service.run_service()
"""


@pytest.fixture(scope="module")
def shards() -> Iterator[ServiceProcess]:
    config = {"shards": 2, "op": {"echo": {"batch_size": 4}}}
    with ServiceProcess(APPS / "echo.py", config, wait=False) as service:
        service.wait_until_ready(every_instance=True)
        yield service


def post(number: int, text: str = "", *, path: str = "/test/prediction") -> bytes:
    """Return the bytes of a request."""
    body = key_value({"number": str(number), "text": text})
    return b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (path.encode(), len(body), body)


def read_numbers(client: socket.socket, count: int) -> list[str]:
    """Return the numbers in so many answers, in the order of the answers."""
    data, numbers = b"", []
    while len(numbers) < count:
        head, separator, rest = data.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if not separator or len(rest) < length:
            received = client.recv(1 << 20)
            assert received, "the connection was closed"
            data += received
            continue
        numbers.append(json.loads(rest[:length])["value"][0])
        data = rest[length:]
    return numbers


@contextlib.contextmanager
def connected(service: ServiceProcess) -> Iterator[socket.socket]:
    """Context manager: the only client connection that a shard serves."""
    wait_until(lambda: service.metric(CONNECTIONS) == 0, "earlier connections are forgotten")
    address = "127.0.0.1", service.http_port
    with contextlib.closing(socket.create_connection(address, PATIENCE_S)) as client:
        client.sendall(post(0))
        assert read_numbers(client, 1) == ["0"]
        wait_until(lambda: service.metric(CONNECTIONS) == 1, "a shard has the connection")
        yield client
    wait_until(lambda: service.metric(CONNECTIONS) == 0, "the connection is forgotten")


def test_both_shards_get_connections_and_their_metrics_are_summed(shards: ServiceProcess) -> None:
    before = shards.answered().get("ok", 0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(shards.connection())) for _ in range(4)]
        pids = set()
        for client in clients:
            client.request("POST", "/test/prediction", key_value({"number": "3"}))
            pids.add(read_answer(client).json["value"][4])
    assert pids == set(map(str, shards.worker_pids()))
    wait_until(lambda: shards.answered().get("ok", 0) == before + 4, "the requests are counted")
    counted = shards.metric("paddlewheel_op_queue_seconds_count", op="echo")
    assert counted == shards.metric("paddlewheel_op_batch_rows_sum", op="echo")


def test_pipelined_requests_are_answered_in_order(shards: ServiceProcess) -> None:
    with connected(shards) as client:
        client.sendall(b"".join(map(post, range(20))))
        assert read_numbers(client, 20) == [str(number) for number in range(20)]
        wait_until(lambda: shards.metric(CONNECTIONS) == 0, "the front serves the connection")
        client.sendall(post(21))
        assert read_numbers(client, 1) == ["21"]


def test_a_request_that_arrives_during_another_stays_in_the_shard(
    shards: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    body = key_value({"number": "1", "action": "wait", "argument": str(gate)})
    with connected(shards) as client:
        head = b"POST /test/prediction HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        wait_until(Path(f"{gate}.waiting").exists, "the hook runs")
        wait_until(lambda: shards.metric(PENDING) == 1, "the front has the report of the shard")
        client.sendall(post(2))
        gate.touch()
        assert read_numbers(client, 2) == ["1", "2"]
        assert shards.metric(CONNECTIONS) == 1


def test_the_front_serves_a_request_that_arrives_slowly(shards: ServiceProcess) -> None:
    request = post(4)
    with connected(shards) as client:
        client.sendall(request[:-10])
        wait_until(lambda: shards.metric(CONNECTIONS) == 0, "the front serves the connection")
        client.sendall(request[-10:])
        assert read_numbers(client, 1) == ["4"]


@pytest.mark.parametrize("size", [100_000, 5_000_000])
def test_the_front_serves_a_body_larger_than_the_socket_buffer(shards: ServiceProcess, size: int) -> None:
    with connected(shards) as client:
        client.sendall(post(5, "x" * size))
        assert read_numbers(client, 1) == ["5"]
        assert shards.metric(CONNECTIONS) == 0


def test_the_front_serves_pages_and_refuses_what_shards_refuse(shards: ServiceProcess) -> None:
    with connected(shards) as client:
        client.sendall(b"GET /health/ready HTTP/1.1\r\nhost: x\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 200")
        assert shards.metric(CONNECTIONS) == 0
    with connected(shards) as client:
        client.sendall(b"no HTTP at all\r\n\r\n")
        assert client.recv(1000).startswith(b"HTTP/1.1 400")
    assert shards.http("/test/prediction", "{").status == 400
    assert shards.http("/v2/health/ready").status == 200


def test_clients_that_leave_during_the_transfer_cost_nothing(shards: ServiceProcess) -> None:
    request = post(6)
    for size in range(0, len(request) + 1, 7):
        client = socket.create_connection(("127.0.0.1", shards.http_port), PATIENCE_S)
        client.sendall(request[:size])
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", size % 2, 0))
        client.close()
    wait_until(lambda: shards.metric(CONNECTIONS) == 0, "the connections are forgotten")
    assert shards.predict({"number": "8"})["doubled"] == "16"


def test_a_client_that_sends_no_more_gets_its_answer(shards: ServiceProcess) -> None:
    with connected(shards) as client:
        client.sendall(post(9))
        client.shutdown(socket.SHUT_WR)
        assert read_numbers(client, 1) == ["9"]
        assert client.recv(1) == b""


def test_unloading_the_model_refuses_requests_on_every_connection(shards: ServiceProcess) -> None:
    with connected(shards) as client:
        client.sendall(post(1))
        assert read_numbers(client, 1) == ["1"]
        shards.http("/v2/repository/models/echo/unload", "{}")
        assert shards.ask({"number": "1"})["err_no"] != 0
        client.sendall(post(2))
        assert b"unloaded" in client.recv(10_000)
        shards.http("/v2/repository/models/echo/load", "{}")
        client.sendall(post(3))
        assert read_numbers(client, 1) == ["3"]
    shards.wait_until_ready(every_instance=True)
    with connected(shards) as client:
        client.sendall(post(4))
        assert read_numbers(client, 1) == ["4"]


def test_a_reload_moves_connections_to_new_shards_and_loses_no_request(tmp_path: Path) -> None:
    shutil.copy(APPS / "reloaded.py", tmp_path)
    (tmp_path / "state.py").write_text("1")
    with ServiceProcess(tmp_path / "reloaded.py", {"shards": 2, "op": {"op": {}}}, wait=False) as service:
        service.wait_until_ready(every_instance=True)
        old, states, over = service.worker_pids(), [list[str]() for _ in range(4)], threading.Event()

        def ask(answered: list[str]) -> None:
            with contextlib.closing(service.connection()) as connection:
                while not over.is_set():
                    connection.request("POST", "/test/prediction", key_value({"number": "2"}))
                    answered.append(read_answer(connection).json["value"][1])

        with ThreadPoolExecutor(len(states)) as pool:
            callers = [pool.submit(ask, answered) for answered in states]
            wait_until(lambda: all(states), "all callers have answers")
            (tmp_path / "state.py").write_text("2")
            service.process.send_signal(signal.SIGHUP)
            service.wait_for_log("Op op runs what is on disk now")
            wait_until(lambda: all(answered[-1] == "2" for answered in states), "new shards answer")
            wait_until(lambda: service.metric(CONNECTIONS) >= len(states), "in shards, not in the front")
            over.set()
            for caller in callers:
                caller.result()
        assert all(answered == sorted(answered) for answered in states), (
            "a caller never gets the old state again"
        )
        wait_until(lambda: not any(map(is_running, old)), "the old shards have left")


def test_a_stop_answers_what_was_sent(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    held = {"number": "1", "action": "wait", "argument": str(gate)}
    with ServiceProcess(APPS / "echo.py", {"shards": 2, "op": {"echo": {}}}) as service:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(service.ask, held)
            wait_until(Path(f"{gate}.waiting").exists, "the hook runs")
            service.process.send_signal(signal.SIGTERM)
            service.wait_for_log("Stopping")
            gate.touch()
            assert asked.result()["value"][:2] == ["1", "2"]
        assert service.exit_code() == 0


def test_the_others_serve_beside_a_shard_that_can_not_start(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN, "utf-8")
    config, env = {"shards": 2, "op": {"broken": {}}}, {"FOLDER": str(tmp_path)}
    with ServiceProcess(tmp_path / "broken.py", config, env=env) as service:
        service.wait_for_log("did not start", times=3)
        assert service.http("/health/ready").json == {
            "ready": True, "ops": {"broken": {"ready": 1, "instances": 2}},
        }  # fmt: skip
        assert service.ask({"number": "1"})["err_no"] == 0
