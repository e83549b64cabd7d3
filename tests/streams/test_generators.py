"""Ops with a generator as a hook: answers over gRPC, as server-sent events, and as lines of chunked HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from client.errors import RequestRefused, ServiceUnreachable
from client.exchange import Client
from client.http_client import HttpClient
from client.protos.pipeline_service_pb2 import Request, Response
from client.rpc_client import RpcClient
from tests.support.answer_streams import get_text, infer, request
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, key_value, wait_until

KINDS = ("postprocess", "async", "process", "step")
EVENTS, LINES = "text/event-stream", "application/x-ndjson"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, ServiceProcess]]:
    config = {"op": {"gen": {"batch_size": 8, "auto_batching_timeout": 100}}}
    started = {
        kind: ServiceProcess(APPS / "generators.py", config, env={"KIND": kind}, wait=False) for kind in KINDS
    }
    try:
        for service in started.values():
            service.wait_until_ready()
        yield started
    finally:
        for service in started.values():
            service.close()


def call(service: ServiceProcess, inputs: dict[str, str]) -> list[Response]:
    message = Request(key=list(inputs), value=list(inputs.values()))
    with service.channel() as channel:
        stream = channel.unary_stream(f"{RPC_METHOD}_stream", Request.SerializeToString, Response.FromString)
        return list(stream(message, timeout=PATIENCE_S))


def get_texts(responses: list[Response]) -> list[str]:
    return [dict(zip(r.key, r.value, strict=True))["text"] if not r.err_no else r.err_msg for r in responses]


def post(service: ServiceProcess, inputs: dict[str, str], accept: str) -> list[Any]:
    answer = service.http("/test/prediction", key_value(inputs), headers={"Accept": accept})
    assert answer.headers["content-type"].startswith(accept)
    lines = answer.body.decode().split("\n\n" if accept == EVENTS else "\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", [0, 1, 5])
def test_each_value_is_an_answer(services: dict[str, ServiceProcess], kind: str, number: int) -> None:
    expected = [f"<{n}>" if kind == "step" else str(n) for n in range(number)]
    inputs = {"number": str(number)}
    assert get_texts(call(services[kind], inputs)) == expected
    for accept in (EVENTS, LINES):
        answers = post(services[kind], inputs, accept)
        assert [answer["value"][answer["key"].index("text")] for answer in answers] == expected


@pytest.fixture(params=[HttpClient, RpcClient])
def client(request: pytest.FixtureRequest, services: dict[str, ServiceProcess]) -> Iterator[Client]:
    ports = {HttpClient: services["async"].http_port, RpcClient: services["async"].rpc_port}
    with connect(request.param, ports[request.param]) as client:
        yield client


def connect(kind: type[HttpClient | RpcClient], port: int) -> Client:
    scheme = "http://" if kind is HttpClient else ""
    return kind(f"{scheme}127.0.0.1:{port}", "test", timeout_s=PATIENCE_S, retries=1)


@pytest.mark.parametrize("number", [0, 1, 5])
def test_our_clients_yield_each_answer(client: Client, number: int) -> None:
    answers = [answer.texts["text"] for answer in client.stream({"number": str(number)})]
    assert answers == [str(n) for n in range(number)]


def test_our_clients_raise_an_error_behind_its_answers(client: Client) -> None:
    answers = client.stream({"number": "9", "how": "raise"})
    assert [next(answers).texts["text"] for _ in range(3)] == ["0", "1", "2"]
    with pytest.raises(RequestRefused, match="no more of them") as refused:
        next(answers)
    assert refused.value.err_no == 10000


@pytest.mark.parametrize("kind", [HttpClient, RpcClient])
def test_a_closed_iterator_cancels_its_request(
    services: dict[str, ServiceProcess], kind: type[HttpClient | RpcClient], tmp_path: Path
) -> None:
    service = services["postprocess"]
    paths = {name: str(tmp_path / name) for name in ("gate", "closed")}
    with connect(kind, service.http_port if kind is HttpClient else service.rpc_port) as client:
        answers = client.stream({"number": "2", **paths})
        assert next(answers).texts["text"] == "0"
        answers.close()
        wait_until((tmp_path / "closed").exists, "the generator is closed")
        assert [answer.texts["text"] for answer in client.stream({"number": "2"})] == ["0", "1"]
    with connect(kind, free_port()) as client, pytest.raises(ServiceUnreachable):
        next(client.stream("a"))


def test_clients_of_kserve_get_each_value(services: dict[str, ServiceProcess]) -> None:
    message = request("test", "")
    message.inputs[0].name = "number"
    message.inputs[0].contents.bytes_contents[0] = b"3"
    with services["postprocess"].channel() as channel:
        texts = [get_text(answer)[:1] for answer in infer(channel, message)]
    assert texts == ["0", "1", "2"]


def test_an_error_behind_three_answers_is_the_last(services: dict[str, ServiceProcess]) -> None:
    for kind in ("postprocess", "async"):
        responses = call(services[kind], {"number": "9", "how": "raise"})
        assert get_texts(responses[:3]) == ["0", "1", "2"]
        assert (len(responses), responses[3].err_no) == (4, 10000)
        assert "no more of them" in responses[3].err_msg
        *answers, error = post(services[kind], {"number": "9", "how": "raise"}, EVENTS)
        assert (len(answers), error["err_no"]) == (3, 10000)


@pytest.mark.parametrize("kind", ["postprocess", "process"])
def test_the_app_may_refuse_after_an_answer(services: dict[str, ServiceProcess], kind: str) -> None:
    first, error = call(services[kind], {"number": "3", "how": "refuse"})
    assert (first.err_no, error.err_no, error.err_msg) == (0, 51, "refused by the app")


def test_a_value_that_is_no_output_is_an_error(services: dict[str, ServiceProcess]) -> None:
    (error,) = call(services["postprocess"], {"number": "3", "how": "wrong"})
    assert "postprocess returned list of 1; expected a dict" in error.err_msg


def test_requests_of_a_batch_have_their_answers_side_by_side(
    services: dict[str, ServiceProcess], tmp_path: Path
) -> None:
    service, held = services["process"], tmp_path / "held"
    with ThreadPoolExecutor(9) as clients:
        holding = clients.submit(call, service, {"number": "1", "held": str(held)})
        try:
            wait_until(Path(f"{held}.waiting").exists, "the worker is busy")
            asked = [clients.submit(call, service, {"number": "6"}) for _ in range(8)]
            wait_until(lambda: service.metric("paddlewheel_pending_requests") == 9, "all are admitted")
        finally:
            held.touch()
        batches = [each.result() for each in asked]
    assert get_texts(holding.result()) == ["0"]
    assert all(get_texts(responses) == list("012345") for responses in batches)
    rows = {dict(zip(r.key, r.value, strict=True))["rows"] for responses in batches for r in responses}
    assert rows != {"1"}


def test_one_answer_is_required_of_a_client_that_takes_one(services: dict[str, ServiceProcess]) -> None:
    assert services["postprocess"].predict({"number": "1"})["text"] == "0"
    for number in ("0", "2"):
        answer = services["postprocess"].ask({"number": number})
        assert "exactly 1 response" in answer["err_msg"]


def test_a_client_that_leaves_closes_the_generator(
    services: dict[str, ServiceProcess], tmp_path: Path
) -> None:
    inputs = {"number": "2", "gate": str(tmp_path / "gate"), "closed": str(tmp_path / "closed")}
    message = Request(key=list(inputs), value=list(inputs.values())).SerializeToString()
    with services["postprocess"].channel() as channel:
        stream: Any = channel.unary_stream(f"{RPC_METHOD}_stream")(message, timeout=PATIENCE_S)
        next(stream)
        stream.cancel()
    wait_until((tmp_path / "closed").exists, "the generator is closed")
    assert get_texts(call(services["postprocess"], {"number": "2"})) == ["0", "1"]


def test_a_wrong_message_is_refused(services: dict[str, ServiceProcess]) -> None:
    (error,) = call(services["postprocess"], {})
    assert error.err_no == 8000
    with services["postprocess"].channel() as channel, pytest.raises(grpc.RpcError) as refused:
        list(channel.stream_stream(f"{RPC_METHOD}_stream")(iter([]), timeout=PATIENCE_S))
    assert refused.value.code() is grpc.StatusCode.INTERNAL
