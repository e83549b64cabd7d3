"""Hostile bytes over real connections to one service, which goes on answering good requests."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from client.protos.pipeline_service_pb2 import Request
from tests.fuzz import http2
from tests.fuzz.messages import kept
from tests.fuzz.sockets import PIPELINE, grpc_endpoint, http_endpoint
from tests.fuzz.watched import CONFIG, SCRIPT, Watched
from tests.support.raw_answers import received_until
from tests.support.service_process import ServiceProcess


@pytest.fixture(scope="module")
def target() -> Iterator[ServiceProcess]:
    with ServiceProcess(SCRIPT, CONFIG, arguments=["--config", "{config}"]) as service:
        yield service


@pytest.mark.parametrize("endpoint", [http_endpoint, grpc_endpoint], ids=["http", "grpc"])
def test_mutated_requests_leave_the_service_whole(target: ServiceProcess, endpoint: type) -> None:
    watched = Watched(target)
    before = watched.resident_mb
    sent = watched.fire(endpoint(seed=7), 250)
    assert not watched.broken, (watched.broken, target.log)
    assert not sent.hangs
    assert sent.answered and sent.refused
    assert watched.resident_mb - before < 64


def exchange(target: ServiceProcess, data: bytes) -> bytes:
    """What the gRPC port says to these bytes until it has no more to say."""
    with socket.create_connection(("127.0.0.1", target.rpc_port), timeout=10) as client:
        client.sendall(data)
        client.shutdown(socket.SHUT_WR)
        said = b""
        while received := client.recv(65536):
            said += received
        return said


@pytest.mark.parametrize("data", kept("grpc-endpoint"))
def test_a_call_by_a_name_that_is_no_text_ends_alone(target: ServiceProcess, data: bytes) -> None:
    """One such path ends the server of grpc.aio."""
    watched = Watched(target)
    for _ in range(3):
        exchange(target, data)
    watched.fire(grpc_endpoint(seed=1), 1)
    assert not watched.broken, target.log


def test_a_call_written_by_hand_is_answered(target: ServiceProcess) -> None:
    """What the mutations begin with is a good call, to begin with."""
    message = Request(key=["a"], value=["b"]).SerializeToString()
    with socket.create_connection(("127.0.0.1", target.rpc_port), timeout=10) as client:
        client.sendall(http2.opening() + http2.call(PIPELINE, message))
        said = received_until(client, b"grpc-status")
    assert b"count" in said
