"""Several addresses of a service: turns, failover within the deadline, and errors that name each address."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from client.addresses import call_in_turn, split_addresses
from client.audio_client import AudioClient
from client.endpoints import V2_METHOD_PATH
from client.errors import (
    BadAnswer,
    ClientError,
    RequestRefused,
    RequestTimedOut,
    ServiceUnavailable,
    ServiceUnreachable,
)
from client.http_client import HttpClient
from client.pipeline_client import PipelineClient
from client.protos.kserve_v2_pb2 import ModelInferRequest
from client.rows_client import RowsClient
from client.rpc_channel import RpcChannel
from client.rpc_client import RpcClient
from pipeline.errors import ConfigError
from pipeline.offline.server import Server
from tests.support.scripted_servers import answer, http_server, reply, reset, respond, rpc_server
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, wait_until

PENDING = "paddlewheel_pending_requests"


def failing(error: ClientError) -> Callable[[float], str]:
    def send(remaining_s: float) -> str:
        raise error

    return send


def test_addresses_are_separated_by_commas() -> None:
    assert split_addresses("a:1") == ("a:1",)
    assert split_addresses("a:1, b:2") == ("a:1", "b:2")
    with pytest.raises(ValueError, match="empty part"):
        split_addresses("a:1,")
    with pytest.raises(ValueError, match="twice"):
        split_addresses("a:1,a:1")


@pytest.mark.parametrize("error", [ServiceUnreachable("no one at a"), ServiceUnavailable(3001, "a stops")])
def test_the_next_address_gets_the_request_of_one_that_is_away(error: ClientError) -> None:
    assert call_in_turn([failing(error), lambda remaining_s: "answer"], 60) == "answer"


@pytest.mark.parametrize("error", [BadAnswer("a"), RequestRefused(5000, "a"), RequestTimedOut("a")])
def test_an_answer_ends_the_turn_even_if_it_is_an_error(error: ClientError) -> None:
    with pytest.raises(type(error)) as raised:
        call_in_turn([failing(error), lambda remaining_s: "answer"], 60)
    assert raised.value is error


def test_the_error_names_each_address_and_the_deadline_holds_for_all() -> None:
    sends = [failing(ServiceUnreachable(f"nothing listens at {name}")) for name in "ab"]
    with pytest.raises(ServiceUnreachable, match=r"^nothing listens at a; nothing listens at b$"):
        call_in_turn(sends, 60)
    with pytest.raises(RequestTimedOut, match=r"passed$"):
        call_in_turn([lambda remaining_s: "late"], 0)


def test_an_address_that_breaks_off_or_refuses_passes_its_request_on(
    closed_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("client.http_connection.AVOIDED_S", PATIENCE_S)
    with http_server(reset) as broken, http_server(respond()) as server:
        urls = f"{broken.url},http://127.0.0.1:{closed_port},{server.url}"
        with HttpClient(urls, retries=0) as client:
            for _ in range(6):
                assert client.predict("text").err_no == 0
    assert len(broken.seen) == 1  # and is the last choice from then on
    assert len(server.seen) == 6


def test_a_service_that_stops_passes_its_request_on() -> None:
    stopping = respond(503, answer(3001, "it stops"))
    with (
        http_server(stopping) as first,
        http_server(respond()) as second,
        HttpClient(f"{first.url},{second.url}", retries=0) as client,
    ):
        assert [client.predict("text").err_no for _ in range(4)] == [0] * 4
    assert len(second.seen) == 4


def test_the_addresses_of_grpc_pass_requests_on(closed_port: int) -> None:
    closed = f"127.0.0.1:{closed_port}"
    with rpc_server(reply()) as first, rpc_server(reply()) as second:
        addresses = (first.address, closed, second.address)
        with (
            RpcClient(",".join(addresses), retries=0) as client,
            PipelineClient(retries=0) as pipeline_client,
        ):
            pipeline_client.connect(addresses)
            first.stop()
            for _ in range(4):
                assert client.predict("text").err_no == 0
                assert pipeline_client.predict({"text": "text"}).err_no == 0
    assert len(second.seen) == 8


def test_an_error_of_all_addresses_names_them(closed_port: int) -> None:
    addresses = [f"127.0.0.1:{closed_port}", f"localhost:{closed_port}"]
    urls = [f"http://{address}" for address in addresses]
    clients = HttpClient(",".join(urls), retries=0), RpcClient(",".join(addresses), retries=0)
    for client in clients:
        with client, pytest.raises(ServiceUnreachable) as raised:
            client.predict("text")
        assert all(address in str(raised.value) for address in addresses)
    with RowsClient(",".join(urls), retries=0) as rows, pytest.raises(ServiceUnreachable, match="localhost"):
        rows.services()


def test_offline_commands_take_several_addresses_of_one_model(closed_port: int) -> None:
    for address, message in {
        "localhost:1/a,localhost:2/b": "names? the models a, b",
        f"127.0.0.1:{closed_port},localhost:{closed_port}": f"localhost:{closed_port}",
    }.items():
        with pytest.raises(ConfigError, match=message):
            Server(address, connections=1, timeout_s=PATIENCE_S)


def test_only_the_start_of_a_stream_changes_the_address(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, bool]] = []
    away: set[int] = set()

    def call_bytes(self: RpcChannel, method: str, message: bytes, timeout_s: float) -> bytes:
        assert method == V2_METHOD_PATH
        number = client._channels.index(self)
        parameters = ModelInferRequest.FromString(message).parameters
        if number in away:
            raise ServiceUnreachable(f"address {number} is away")
        seen.append((number, parameters["sequence_start"].bool_param))
        return b""

    def send(*, starts: bool) -> None:
        request = ModelInferRequest()
        request.parameters["sequence_id"].string_param = "a"
        request.parameters["sequence_start"].bool_param = starts
        client.infer(request, "output", "FP32")

    monkeypatch.setattr(RpcChannel, "call_bytes", call_bytes)
    with AudioClient("127.0.0.1:1,127.0.0.1:2", 60, None, None, None) as client:
        away = {0}
        send(starts=True)
        away = set()
        send(starts=False)
        away = {1}
        with pytest.raises(ServiceUnreachable, match=r"address 1 is away$"):
            send(starts=False)
    assert seen == [(1, True), (1, False)]


def test_no_request_fails_when_one_of_two_fronts_is_killed(tmp_path: Path) -> None:
    """A front dies while a request runs in it and others wait, over HTTP and gRPC."""
    mark = tmp_path / "held"
    hold = {"number": "7", "action": "wait_once", "argument": str(mark)}
    with ServiceProcess(APPS / "echo.py") as one, ServiceProcess(APPS / "echo.py") as other:
        addresses = f"{one.rpc_address},{other.rpc_address}"
        with RpcClient(addresses, "test", timeout_s=PATIENCE_S) as rpc, ThreadPoolExecutor(17) as pool:
            held = pool.submit(rpc.predict, hold)
            wait_until(Path(f"{mark}.gate.waiting").exists, "the request runs")
            killed, left = (one, other) if one.metric(PENDING) else (other, one)
            with HttpClient(f"{killed.url},{left.url}", "test", timeout_s=PATIENCE_S) as http:
                results = {
                    number: pool.submit((http, rpc)[number % 2].predict, {"number": str(number)})
                    for number in range(16)
                }
                wait_until(lambda: killed.metric(PENDING) > 2, "requests wait behind it")
                killed.process.kill()
                assert held.result().texts["doubled"] == "14"
                for number, result in results.items():
                    assert result.result().texts["doubled"] == str(2 * number)
