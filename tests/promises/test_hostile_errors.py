"""Whatever an app puts into its errors, a client can read the refusal, and what it asks next is answered."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import grpc
import pytest

from client.protos import kserve_v2_pb2 as messages
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value

MODEL_INFER = "/inference.GRPCInferenceService/ModelInfer"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = {"dag": {"http_errors": "status"}}
    with ServiceProcess(APPS / "mishaps.py", config, arguments=["single"]) as running:
        yield running


@pytest.mark.parametrize("status", [-1, 0, 100, 101, 204, 304, 600, 2**70])
def test_a_status_that_is_none_of_an_error_s_is_500_and_the_next_request_is_answered(
    service: ServiceProcess, status: int
) -> None:
    workers = service.worker_pids()
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S) as client:
        client.sendall(post({"http_status": str(status)}) + post({"rows": "1"}, b"Connection: close\r\n"))
        data = b"".join(iter(lambda: client.recv(65536), b""))
    refused, answered = data.split(b"HTTP/1.1 ")[1:]
    assert refused.startswith(b"500 ")
    assert b"of this status" in refused
    assert answered.startswith(b"200 ")
    assert service.worker_pids() == workers


@pytest.mark.parametrize("status", [418, 499, 599])
def test_a_status_that_has_no_words_is_answered_all_the_same(service: ServiceProcess, status: int) -> None:
    assert service.http("/test/prediction", key_value({"http_status": str(status)})).status == status


@pytest.mark.parametrize("char", ["x", "中", "%"])
def test_a_long_message_is_cut_and_arrives_over_grpc(service: ServiceProcess, char: str) -> None:
    asked = messages.ModelInferRequest(model_name="test")
    for name, text in {"char": char, "chars": "1000000"}.items():
        tensor = asked.inputs.add(name=name, datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(text.encode())
    with pytest.raises(grpc.RpcError) as refused:
        service.raw_rpc(asked.SerializeToString(), method=MODEL_INFER)
    assert refused.value.code() == grpc.StatusCode.INTERNAL
    details = refused.value.details() or ""
    assert set(details.removesuffix("...")) == {char}
    assert len(service.ask({"char": char, "chars": "1000000"})["err_msg"]) < 20_000


def post(inputs: dict[str, str], headers: bytes = b"") -> bytes:
    body = key_value(inputs)
    head = b"POST /test/prediction HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%b\r\n"
    return head % (len(body), headers) + body
