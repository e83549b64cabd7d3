"""Ops whose model is another Pipeline service: `server_endpoints` with `client_type: pipeline_grpc`."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ServiceProcess, wait_until

APP = APPS / "remote.py"


def told(*arguments: str, **config: Any) -> ServiceProcess:
    return ServiceProcess(APP, config, arguments=["told", *arguments])


def asking(
    *ports: int, dag: dict[str, Any] | None = None, tensors: bool = False, **op: Any
) -> ServiceProcess:
    section = {"server_endpoints": [f"127.0.0.1:{port}" for port in ports], **op}
    config = {"dag": {"client_type": "pipeline_grpc", **(dag or {})}, "op": {"ask": section}}
    return ServiceProcess(APP, config, arguments=["ask"], env={"TENSORS": "1"} if tensors else {})


@pytest.fixture(scope="module")
def remote() -> Iterator[ServiceProcess]:
    """An instance for each try of a call that times out: where all are busy, the last would be refused."""
    with told(op={"tell": {"concurrency": 4}}) as service:
        yield service


@pytest.fixture(scope="module")
def silent() -> Iterator[int]:
    """The port of a server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", free_port())) as listener:
        yield listener.getsockname()[1]


@pytest.fixture(scope="module")
def service(remote: ServiceProcess, silent: int) -> Iterator[ServiceProcess]:
    """Ops that ask the same remote service in different ways."""
    endpoints = [f"127.0.0.1:{remote.rpc_port}"]
    ops: dict[str, dict[str, Any]] = {
        "ask": {"server_endpoints": endpoints, "concurrency": 2, "batch_size": 8},
        "choosing": {"server_endpoints": endpoints, "fetch_list": ["y", "x"]},
        "impatient": {"server_endpoints": endpoints, "timeout": 100, "retry": 3},
        "together": {"server_endpoints": endpoints, "batch_size": 4},
        "passing": {
            "server_endpoints": [f"127.0.0.1:{free_port()}", f"127.0.0.1:{silent}", *endpoints],
            "timeout": 10_000,
        },
    }
    dag = {"client_type": "pipeline_grpc", "http_errors": "status"}
    config = {"dag": dag, "op": ops}
    with ServiceProcess(APP, config, arguments=["ask", *ops]) as service:
        yield service


def test_texts_go_and_come_as_pipeline_client_sends_them(service: ServiceProcess) -> None:
    answer = service.predict({"x": "国足 wins", "logid": "12"})
    assert json.loads(answer["x"]) == ["国足 wins"], "hooks read fetch_dict['x'][0]"
    assert json.loads(answer["log_id"]) == ["12"]


def test_arrays_go_as_their_repr(service: ServiceProcess) -> None:
    answer = service.predict({"arrays": json.dumps({"x": ["float32", [[1, 2.5]]]})})
    assert json.loads(answer["x"]) == ["array([[1. , 2.5]], dtype=float32)"]


def test_arrays_go_and_come_as_tensors_when_the_op_says_so() -> None:
    with told("tensors") as remote, asking(remote.rpc_port, tensors=True) as service:
        answer = service.predict({"arrays": json.dumps({"x": ["int64", [[1, 2]]]})})
        assert {key: json.loads(value) for key, value in answer.items()} == {
            "doubled": [[2, 4]],
            "half": [0.5],
        }


def test_the_remote_services_own_refusal_is_passed_on(service: ServiceProcess) -> None:
    answer = service.http("/test/prediction", '{"key":["refuse"],"value":["no words today"]}')
    assert (answer.status, answer.json["err_no"], answer.json["err_msg"]) == (400, 57, "no words today")


def test_a_feed_that_cannot_be_sent_is_named(service: ServiceProcess) -> None:
    answer = service.ask({"x": "1", "logid": "seven"})
    assert answer["err_no"] == 5000
    assert "feed 'logid' can't be sent" in answer["err_msg"]


def test_fetch_list_keeps_the_keys_that_it_names(service: ServiceProcess) -> None:
    assert list(service.predict({"op": "choosing", "x": "1", "y": "2"})) == ["y", "x"]
    answer = service.ask({"op": "choosing", "x": "1"})
    assert answer["err_no"] == 9000
    assert "fetch_list" in answer["err_msg"]
    assert "no 'y', only x, pid, log_id" in answer["err_msg"]


def test_endpoints_are_asked_in_turn(remote: ServiceProcess) -> None:
    with told() as other, asking(remote.rpc_port, other.rpc_port) as service:
        pids = [json.loads(service.predict({"x": "1"})["pid"])[0] for _ in range(9)]
        others = {str(pid) for pid in other.worker_pids()}
        assert [pid in others for pid in pids] == [False, True] * 4 + [False]


def test_no_request_fails_when_one_of_two_endpoints_is_killed_under_load() -> None:
    requests = 300
    with (
        told() as staying,
        told() as dying,
        asking(staying.rpc_port, dying.rpc_port, retry=2, concurrency=2) as service,
        ThreadPoolExecutor(4) as pool,
    ):
        answers = pool.map(lambda number: service.ask({"x": str(number)}), range(requests))
        first = [next(answers) for _ in range(50)]
        dying.process.kill()
        answers = [*first, *answers]
        assert [answer["err_no"] for answer in answers] == [0] * requests
        given = [json.loads(answer["value"][0]) for answer in answers]
        assert given == [[str(number)] for number in range(requests)]
        service.wait_for_log(f"no answer from 127.0.0.1:{dying.rpc_port}")


def test_an_endpoint_that_cannot_be_reached_costs_no_try(service: ServiceProcess) -> None:
    assert [service.ask({"op": "passing", "x": "1"})["err_no"] for _ in range(3)] == [0] * 3


def test_an_overloaded_remote_service_makes_this_one_say_so(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with (
        told(dag={"max_pending_requests": 1}) as remote,
        asking(remote.rpc_port, concurrency=2, dag={"http_errors": "status"}) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        held = pool.submit(service.ask, {"x": "1", "wait": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "the remote service is full")
        answer = service.http("/test/prediction", '{"key":["x"],"value":["2"]}')
        gate.touch()
        assert (answer.status, answer.json["err_no"]) == (429, 3001)
        assert f"[ask] 127.0.0.1:{remote.rpc_port} answered RESOURCE_EXHAUSTED" in answer.json["err_msg"]
        assert held.result()["err_no"] == 0


def test_a_service_starts_without_its_remote_and_answers_when_that_is_back() -> None:
    port, elsewhere = free_port(), free_port()
    with asking(elsewhere, port, retry=2) as service:
        answer = service.ask({"x": "1"})
        assert answer["err_no"] == 9000
        assert "[ask] no answer from 127.0.0.1:" in answer["err_msg"]
        assert "check op.ask.server_endpoints" in answer["err_msg"]
        assert service.http("/health/ready").status == 200
        for _ in range(2):
            with told(rpc_port=port):
                wait_until(lambda: service.ask({"x": "1"})["err_no"] == 0, "the remote is found again")
            assert service.ask({"x": "1"})["err_no"] == 9000
        assert service.metric("paddlewheel_op_restarts_total") == 0


def test_a_call_over_its_timeout_is_answered_so(
    service: ServiceProcess, remote: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    handed_over = service.metric("paddlewheel_op_queue_seconds_count", op="impatient")
    answer = service.ask({"op": "impatient", "wait": str(gate)})
    gate.touch()
    assert answer["err_no"] == 6000
    assert f"127.0.0.1:{remote.rpc_port} took more than op.impatient.timeout (100 ms)" in answer["err_msg"]
    assert "in each of 3 tries" in answer["err_msg"]
    tries = service.metric("paddlewheel_op_queue_seconds_count", op="impatient") - handed_over
    assert tries == 1, "the worker itself asks again"
    wait_until(lambda: service.ask({"x": "1"})["err_no"] == 0, "the remote is free again")


def test_a_timed_out_call_begins_the_request_anew_as_dag_retry_says(
    remote: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with asking(remote.rpc_port, timeout=100, dag={"retry": 2}) as service:
        answer = service.ask({"wait": str(gate)})
        gate.touch()
        assert answer["err_no"] == 6000
        assert service.metric("paddlewheel_op_queue_seconds_count") == 2


def test_no_call_outlives_the_deadline_of_its_request(remote: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    patient = {"timeout": 600_000, "retry": 9}
    with asking(remote.rpc_port, dag={"request_timeout": 1.5}, **patient) as service:
        assert service.ask({"wait": str(gate)})["err_no"] == 6000
        gate.touch()
        assert service.ask({"x": "1"})["err_no"] == 0, "the worker is not kept by the call before"
        assert service.metric("paddlewheel_op_restarts_total") == 0


def test_the_calls_of_a_dispatch_are_under_way_together(
    service: ServiceProcess, remote: ServiceProcess, tmp_path: Path
) -> None:
    held, gate = tmp_path / "held", tmp_path / "gate"

    def queued() -> float:
        return service.metric("paddlewheel_op_queue_length", op="together")

    def pending() -> float:
        return remote.metric("paddlewheel_pending_requests")

    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(service.ask, {"op": "together", "x": "held", "gate": str(held)})
        wait_until(Path(f"{held}.waiting").exists, "the worker is busy")
        asked = [
            pool.submit(service.ask, {"op": "together", "x": str(n), "wait": str(gate)}) for n in range(4)
        ]
        wait_until(lambda: queued() == 4, "all have passed the Ops before and wait for the worker")
        held.touch()
        wait_until(lambda: pending() == 4, "all are at the remote service")
        gate.touch()
        answers = [future.result() for future in [first, *asked]]
        assert [answer["err_no"] for answer in answers] == [0] * 5
        assert [json.loads(answer["value"][0]) for answer in answers[1:]] == [[str(n)] for n in range(4)]


def test_many_requests_through_several_instances_get_their_own_answers(service: ServiceProcess) -> None:
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda n: service.predict({"x": str(n)}), range(200)))
        assert [json.loads(answer["x"]) for answer in answers] == [[str(n)] for n in range(200)]
