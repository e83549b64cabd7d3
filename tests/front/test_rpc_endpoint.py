"""What the gRPC port makes of good and bad messages, and of too many of them."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request, Response, Tensor
from tests.support.going_on import going_on
from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    ROOT,
    RPC_METHOD,
    ServiceProcess,
    key_value,
    wait_until,
)

PLAIN_GRPC = ROOT / "tests" / "support" / "plain_grpc"  # hides private names of grpcio
LIMITS = {"body_bytes": 100_000, "text_chars": 1000, "tensor_rank": 4}


@pytest.fixture(scope="module", params=["fast-server", "plain-grpc-aio"])
def service(request: pytest.FixtureRequest) -> Iterator[ServiceProcess]:
    config = {"dag": {"max_pending_requests": 3, "http_errors": "status"}, "limits": LIMITS}
    env = {"PYTHONPATH": os.pathsep.join((str(PLAIN_GRPC), str(ROOT)))} if "plain" in request.param else None
    with ServiceProcess(APPS / "echo.py", config, env=env) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    with going_on(service):
        yield


def refusal(service: ServiceProcess, data: bytes) -> Response:
    answer = Response.FromString(service.raw_rpc(data))
    assert answer.err_no != 0
    assert not answer.key and not answer.value and not answer.tensors
    return answer


def test_a_good_message_is_answered_with_err_no_0_and_strings(service: ServiceProcess) -> None:
    answer = service.rpc({"number": "21", "text": "国足"})
    assert (answer.err_no, answer.err_msg) == (0, "")
    assert dict(zip(answer.key, answer.value, strict=True))["text"] == "国足"


@pytest.mark.parametrize(
    ("message", "err_no", "told"),
    [
        (b"", 8000, "key"),
        (b"\xff\xff\xff", 8000, "no Request of baidu.paddle_serving.pipeline_serving"),
        (b"hello", 8000, "no Request"),
        (Request(key=["a", "b"], value=["1"]), 8000, "'value' 1"),
        (Request(key=["number"], value=["1" * 1001]), 5000, "'number'"),
        (Request(name="other", key=["a"], value=["1"]), 3002, "'test'"),
        (Request(tensors=[Tensor(name="t", elem_type=99)]), 8000, "'t'"),
        (Request(tensors=[Tensor(name="t", shape=[1] * 5, int64_data=[1])]), 5000, "tensor_rank"),
        (Request(tensors=[Tensor(name="t", shape=[3], int64_data=[1])]), 8000, "'t'"),
        (Request(tensors=[Tensor(name="t", elem_type=13, byte_data=b"no npy")]), 8000, "'t'"),
        (Request(key=["action"], value=["refuse"]), 5000, "refuse"),
        (Request(key=["action"], value=["refuse_51"]), 51, "refuse_51"),
        (Request(key=["action"], value=["raise"]), 10000, "raise"),
    ],
    ids=[
        "empty", "cut off", "words", "more keys than values", "text over the limit", "unknown service",
        "elem_type", "rank", "shape", "npy", "the Op's refusal", "the Op's own number", "the Op raises",
    ],
)  # fmt: skip
def test_a_bad_message_is_answered_with_err_no_and_what_is_wrong(
    service: ServiceProcess, message: Request | bytes, err_no: int, told: str
) -> None:
    if isinstance(message, Request) and message.key[:1] == ["action"]:
        message = Request(key=["action", "argument"], value=[message.value[0], told])
    data = message if isinstance(message, bytes) else message.SerializeToString()
    answer = refusal(service, data)
    assert answer.err_no == err_no
    assert told in answer.err_msg
    if err_no in (8000, 3002):
        assert '{"key": ["0"], "value": ["..."]}' in answer.err_msg or 'key: ["0"]' in answer.err_msg


def test_a_pickle_in_a_tensor_is_refused(service: ServiceProcess) -> None:
    buffer = io.BytesIO()
    np.save(buffer, np.array([{"a": 1}], object), allow_pickle=True)
    tensor = Tensor(name="t", elem_type=13, shape=[1], byte_data=buffer.getvalue())
    answer = refusal(service, Request(tensors=[tensor]).SerializeToString())
    assert (answer.err_no, "object" in answer.err_msg) == (8000, True)


def test_the_name_of_the_service_may_be_left_out(service: ServiceProcess) -> None:
    message = Request(key=["number"], value=["2"])
    assert Response.FromString(service.raw_rpc(message.SerializeToString())).value[1] == "4"


def test_a_message_over_the_limit_is_refused_by_the_transport(service: ServiceProcess) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.raw_rpc(b"x" * 100_001)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("method", ["/other.Service/inference", RPC_METHOD + "s"])
def test_an_unknown_method_is_unimplemented(service: ServiceProcess, method: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        service.raw_rpc(b"", method=method)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_a_call_without_a_message_is_refused_by_the_transport(service: ServiceProcess) -> None:
    with service.channel() as channel, pytest.raises(grpc.RpcError) as caught:
        channel.stream_unary(RPC_METHOD)(iter(()), timeout=PATIENCE_S)
    assert caught.value.code() == grpc.StatusCode.INTERNAL
    assert caught.value.details() == "the call has no message"


def test_more_than_max_pending_requests_are_told_when_to_come_again_on_both_endpoints(
    service: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = {"number": "3", "action": "wait", "argument": str(gate)}
    with ThreadPoolExecutor(3) as pool, service.channel() as channel:
        admitted = [pool.submit(service.rpc, held) for _ in range(3)]
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 3, "three are admitted")
        try:
            over_http = service.http("/test/prediction", key_value({"number": "1"}))
            message = Request(key=["number"], value=["1"]).SerializeToString()
            call = channel.unary_unary(RPC_METHOD).future(message, timeout=PATIENCE_S)
            refused = call.exception()
        finally:
            gate.touch()
        assert [one.result().value[1] for one in admitted] == ["6"] * 3
    assert (over_http.status, over_http.json["err_no"]) == (429, 3001)
    assert int(over_http.headers["retry-after"]) >= 1
    assert "dag.max_pending_requests" in over_http.json["err_msg"]
    assert refused.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) > 0


def test_health_answers_while_the_service_is_full(service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(3) as pool:
        held = {"action": "wait", "argument": str(gate)}
        admitted = [pool.submit(service.rpc, held) for _ in range(3)]
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 3, "three are admitted")
        try:
            assert service.http("/health/live").status == 200
            assert service.http("/health/ready").status == 200
        finally:
            gate.touch()
        assert all(one.result().err_no == 0 for one in admitted)


def test_metrics_count_grpc_requests_by_outcome(service: ServiceProcess) -> None:
    def counted(err_no: str) -> float:
        return service.metric("paddlewheel_requests_total", door="grpc", err_no=err_no)

    before = counted("ok"), counted("8000")
    service.rpc({"number": "1"})
    refusal(service, b"")
    assert (counted("ok"), counted("8000")) == (before[0] + 1, before[1] + 1)
