"""SIGTERM under load: what was sent is answered, then the service leaves with 0."""

from __future__ import annotations

import contextlib
import http.client
import queue
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from client.protos.pipeline_service_pb2 import Request, Response
from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    RPC_METHOD,
    ServiceProcess,
    is_running,
    key_value,
    read_answer,
    wait_until,
)
from tests.support.stop_under_load import assert_no_request_is_lost

CLIENTS = 8
CONFIG = {"op": {"echo": {"concurrency": 2, "batch_size": 8}}}


@pytest.fixture(params=[True, False], ids=["threads", "processes"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {**CONFIG, "dag": {"is_thread_op": request.param}}) as process:
        yield process


def held_request(service: ServiceProcess, pool: ThreadPoolExecutor, gate: Path) -> Callable[[], object]:
    """A request that is in its worker until the gate is there; its answer."""
    inputs = {"number": "1", "action": "wait", "argument": str(gate)}
    held = pool.submit(service.predict, inputs)
    wait_until(Path(f"{gate}.waiting").exists, "a request is under way")
    return held.result


def refuses_connections(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except ConnectionRefusedError:
        return True
    return False


def test_no_http_request_under_load_is_reset_or_answered_empty(service: ServiceProcess) -> None:
    assert_no_request_is_lost(service, CLIENTS, before=20)


def test_every_grpc_call_is_answered_or_told_to_come_again(service: ServiceProcess) -> None:
    begun = threading.Barrier(CLIENTS + 1)

    def ask(number: int) -> tuple[int, list[object], grpc.StatusCode]:
        answered, wrong = 0, []
        message = Request(key=["number"], value=[str(number)]).SerializeToString()
        with service.channel() as channel:
            infer = channel.unary_unary(RPC_METHOD)
            while True:
                try:
                    reply = Response.FromString(infer(message, timeout=PATIENCE_S))
                except grpc.RpcError as exc:
                    return answered, wrong, exc.code()
                if reply.err_no or reply.value[1] != str(2 * number):
                    wrong.append(reply)
                answered += 1
                if answered == 20:
                    begun.wait(PATIENCE_S)

    with ThreadPoolExecutor(CLIENTS) as pool:
        clients = [pool.submit(ask, number) for number in range(CLIENTS)]
        begun.wait(PATIENCE_S)
        service.terminate()
        results = [client.result() for client in clients]
    assert [wrong for _, some, _ in results for wrong in some] == []
    assert {code for _, _, code in results} <= {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
    assert service.exit_code() == 0


def test_what_was_admitted_is_answered_over_both_endpoints_while_new_clients_are_turned_away(
    service: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    workers = service.worker_pids()
    queued = {"number": "4", "action": "wait", "argument": str(gate)}
    with ThreadPoolExecutor(8) as pool:
        over_http = held_request(service, pool, gate)
        over_grpc = [pool.submit(service.rpc, queued) for _ in range(4)]
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 5, "all are admitted")
        service.terminate()
        for port in (service.http_port, service.rpc_port):
            wait_until(lambda port=port: refuses_connections(port), "new clients are turned away")
        assert service.process.poll() is None
        gate.touch()
        assert over_http()["doubled"] == "2"
        assert [call.result().value[1] for call in over_grpc] == ["8"] * 4
    assert service.exit_code() == 0
    assert not any(map(is_running, workers))


def test_a_kept_connection_is_served_while_others_are_waited_for(
    service: ServiceProcess, tmp_path: Path
) -> None:
    """What arrives on a connection that was open is answered, with `Connection: close`."""
    gate = tmp_path / "gate"
    kept = http.client.HTTPConnection("127.0.0.1", service.http_port, timeout=PATIENCE_S)
    with contextlib.closing(kept), ThreadPoolExecutor(1) as pool:
        held = held_request(service, pool, gate)
        kept.request("GET", "/health/ready")
        assert read_answer(kept).status == 200
        service.terminate()
        service.wait_for_log("Stopping")
        kept.request("GET", "/health/ready")
        answer = read_answer(kept)
        assert (answer.status, answer.headers["connection"]) == (503, "close")
        gate.touch()
        assert held()["doubled"] == "2"
    assert service.exit_code() == 0


def test_for_drain_delay_it_serves_as_usual_but_is_not_ready(tmp_path: Path) -> None:
    with ServiceProcess(APPS / "echo.py", {"dag": {"drain_delay": 10}}) as service:
        service.terminate()
        wait_until(lambda: service.http("/health/ready").status == 503, "it is not ready any more")
        answer = service.http("/test/prediction", key_value({"number": "3"}))
        assert answer.json["value"][1] == "6"
        assert answer.headers.get("connection") != "close"
        assert service.rpc({"number": "3"}).value[1] == "6"
        assert service.exit_code() == 0


def test_a_request_that_never_ends_is_given_up_after_drain_timeout(tmp_path: Path) -> None:
    config = {"dag": {"drain_timeout": 0.5}}
    with ServiceProcess(APPS / "echo.py", config) as service, ThreadPoolExecutor(2) as pool:
        workers = service.worker_pids()
        asked = [pool.submit(service.ask, {"action": "hang"}), pool.submit(service.rpc, {"action": "hang"})]
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 2, "both are admitted")
        service.terminate()
        assert service.exit_code() == 0
        assert all(call.exception() is not None for call in asked)
        assert not any(map(is_running, workers))


def v2_request(**inputs: str) -> bytes:
    request = ModelInferRequest(model_name="test")
    for name, text in inputs.items():
        tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(text.encode())
    return request.SerializeToString()


class Streaming:
    """A ModelStreamInfer call that stays open: what it sends, and the answers."""

    def __init__(self, channel: grpc.Channel, *requests: bytes) -> None:
        self._sent: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        for request in requests:
            self._sent.put(request)
        infer = channel.stream_stream("/inference.GRPCInferenceService/ModelStreamInfer")
        self._answers = infer(iter(self._sent.get, None), timeout=PATIENCE_S)

    def answer(self) -> ModelStreamInferResponse:
        return ModelStreamInferResponse.FromString(next(self._answers))

    def end(self) -> grpc.StatusCode:
        """The status that the stream ends with."""
        with pytest.raises(grpc.RpcError) as ended:
            next(self._answers)
        code: grpc.StatusCode = ended.value.code()
        return code


def test_an_idle_stream_ends_at_once_at_a_stop_and_another_after_its_answers(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {"dag": {"drain_timeout": 10 * PATIENCE_S}}
    with ServiceProcess(APPS / "echo.py", config) as service, service.channel() as channel:
        idle = Streaming(channel, v2_request(number="3"))
        assert not idle.answer().error_message
        busy = Streaming(channel, v2_request(number="4", action="wait", argument=str(gate)))
        wait_until(Path(f"{gate}.waiting").exists, "its request is under way")
        service.terminate()
        assert idle.end() is grpc.StatusCode.UNAVAILABLE
        gate.touch()
        assert not busy.answer().error_message
        assert busy.end() is grpc.StatusCode.UNAVAILABLE
        assert service.exit_code() == 0


def test_without_standard_files_it_serves_and_stops_in_order(tmp_path: Path) -> None:
    # A shell in between: it closes what a service started by cron or a supervisor may lack.
    script = tmp_path / "web_service.py"
    closed = "exec {python} {app} <&- >&- 2>&-".format(python=sys.executable, app=APPS / "echo.py")
    script.write_text(f"import os\nos.execl('/bin/sh', 'sh', '-c', {closed!r})\n")
    with ServiceProcess(script) as service:
        assert service.http("/health/live").status == 200
        service.terminate()
        assert service.exit_code() == 0


def test_sigterm_before_it_is_ready_ends_it_at_once(tmp_path: Path) -> None:
    script, config = APPS / "broken.py", {"op": {"broken": {}}}
    with ServiceProcess(script, config, arguments=["start_timeout"], wait=False) as service:
        wait_until(lambda: len(service.worker_pids()) == 1, "a worker is starting")
        wait_until(lambda: not refuses_connections(service.http_port), "the port is open")
        service.terminate()
        assert service.exit_code() == 0
