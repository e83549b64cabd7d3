"""RpcClient against servers that answer, refuse and hang."""

from __future__ import annotations

import grpc
import pytest

from client.errors import RequestRefused, RequestTimedOut, ServiceUnavailable, TooManyRequests
from client.protos.pipeline_service_pb2 import Request
from client.rpc_client import RpcClient
from tests.support.scripted_servers import OUTPUTS, refuse, reply, rpc_server


def test_rpc_answer_has_the_outputs_by_key() -> None:
    with rpc_server(reply()) as server, RpcClient(server.address) as client:
        found = client.predict("国足客场两球取胜")
    assert (found.err_no, found.err_msg, found.texts) == (0, "", OUTPUTS)
    sent = Request.FromString(server.seen[0])
    assert (sent.key, sent.value, sent.name, sent.method) == (
        ["0"],
        ["国足客场两球取胜"],
        "bert",
        "prediction",
    )


@pytest.mark.parametrize(
    "code",
    [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED, grpc.StatusCode.RESOURCE_EXHAUSTED],
    ids=["unavailable", "cancelled", "exhausted"],
)
def test_rpc_call_that_a_stopping_or_busy_server_ends_is_tried_again(code: grpc.StatusCode) -> None:
    with rpc_server(refuse(code, "0"), reply()) as server, RpcClient(server.address) as client:
        assert client.predict("text").texts == OUTPUTS
    assert len(server.seen) == 2
    assert server.seen[0] == server.seen[1]


def test_rpc_pushback_beyond_the_timeout_is_reported_at_once() -> None:
    busy = refuse(grpc.StatusCode.RESOURCE_EXHAUSTED, "60000")
    with (
        rpc_server(busy) as server,
        RpcClient(server.address, timeout_s=20) as client,
        pytest.raises(TooManyRequests) as caught,
    ):
        client.predict("text")
    assert (caught.value.retry_after_s, caught.value.http_status, len(server.seen)) == (60, None, 1)


def test_negative_rpc_pushback_forbids_the_retry() -> None:
    with (
        rpc_server(refuse(grpc.StatusCode.UNAVAILABLE, "-1")) as server,
        RpcClient(server.address) as client,
        pytest.raises(ServiceUnavailable),
    ):
        client.predict("text")
    assert len(server.seen) == 1


def test_rpc_timeout_and_refusal_are_typed() -> None:
    def silent(context: grpc.ServicerContext) -> bytes:
        server.over.wait()
        return b""

    with (
        rpc_server(silent) as server,
        RpcClient(server.address, timeout_s=1.0) as client,
        pytest.raises(RequestTimedOut),
    ):
        client.predict("text")
    assert len(server.seen) == 1
    with (
        rpc_server(reply(3002, "no service x")) as server,
        RpcClient(server.address, "x") as client,
        pytest.raises(RequestRefused, match="no service x") as caught,
    ):
        client.predict("text")
    assert (caught.value.err_no, caught.value.http_status, len(server.seen)) == (3002, None, 1)
