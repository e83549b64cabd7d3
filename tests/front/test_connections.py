"""Connections that are slow, silent or too many: what is done about them, and that it harms no others."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from client.protos.pipeline_service_pb2 import Request
from tests.fuzz import http2
from tests.support.front_memory import front_bytes
from tests.support.going_on import going_on
from tests.support.kernel_connections import is_connected
from tests.support.raw_answers import received_until
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, key_value, wait_until

LIMITS = {
    "header_timeout_s": 0.3,
    "body_timeout_s": 0.3,
    "idle_timeout_s": 1.0,
    "max_connections": 24,
    "connection_calls": 4,
}
RST_STREAM = bytes([http2.RST_STREAM, 0, 0, 0, 0])  # as a frame has it, behind its length


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"limits": LIMITS}) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    with going_on(service):
        yield


def connected(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S)


def all_of(client: socket.socket) -> bytes:
    """What the service says until it closes the connection."""
    said = b""
    while received := client.recv(65536):
        said += received
    return said


@pytest.mark.parametrize(
    "start", [b"", http2.PREFACE[:9], http2.PREFACE], ids=["none", "half", "no settings"]
)
def test_a_connection_that_never_begins_http_2_is_closed(service: ServiceProcess, start: bytes) -> None:
    with connected(service) as client:
        client.sendall(start)
        all_of(client)


def test_a_call_whose_message_does_not_come_is_cancelled(service: ServiceProcess) -> None:
    head = http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 1)
    begun = http2.frame(http2.DATA, b"\x00\x00\x00\x01\x00only a few bytes", 0, 1)
    for slow in (head, head + begun):
        with connected(service) as client:
            client.sendall(http2.opening() + slow)
            said = received_until(client, b"grpc-message")
            assert b"did not arrive within limits.body_timeout_s" in said


def test_a_call_whose_message_came_slowly_has_all_its_time_to_be_answered(
    service: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    asked = Request(key=["number", "action", "argument"], value=["3", "wait", str(gate)])
    call = http2.call(RPC_METHOD.encode(), asked.SerializeToString())
    with connected(service) as client:
        client.sendall(http2.opening() + call[:-1])
        time.sleep(LIMITS["body_timeout_s"] / 3)  # it is seen to be slow
        client.sendall(call[-1:])
        wait_until(Path(f"{gate}.waiting").exists, "it is under way")
        time.sleep(2 * LIMITS["body_timeout_s"])
        gate.touch()
        assert b"did not arrive" not in received_until(client, b"doubled")


def test_a_slow_call_harms_no_other_of_its_connection(service: ServiceProcess) -> None:
    message = Request(key=["number"], value=["3"]).SerializeToString()
    head = http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 1)
    with connected(service) as client:
        client.sendall(http2.opening() + head + http2.call(RPC_METHOD.encode(), message, stream=3))
        received_until(client, b"doubled")


def test_a_connection_has_no_more_calls_than_allowed(service: ServiceProcess) -> None:
    calls = b"".join(
        http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 2 * i + 1)
        for i in range(12)
    )
    with connected(service) as client:
        client.sendall(http2.opening() + calls)
        said = received_until(client, RST_STREAM)
        assert b"\x00\x03\x00\x00\x00\x04" in said  # SETTINGS_MAX_CONCURRENT_STREAMS


def test_an_idle_connection_is_closed_on_both_ports(service: ServiceProcess) -> None:
    good = key_value({"number": "1"})
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S) as client:
        client.sendall(
            b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(good) + good
        )
        assert all_of(client).startswith(b"HTTP/1.1 200")
    with connected(service) as client:
        client.sendall(http2.opening() + http2.frame(http2.SETTINGS, flags=1))
        all_of(client)


def test_a_client_that_does_not_read_its_answers_is_let_go(service: ServiceProcess) -> None:
    asked = 5000
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", service.http_port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: test\r\n\r\n" * asked)
        wait_until(lambda: not is_connected(client), "the connection to be given up")
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while data := client.recv(65536):
                received += data
    assert received.count(b"HTTP/1.1 200 OK") < asked


def test_no_more_connections_are_open_than_allowed(service: ServiceProcess) -> None:
    idle = [connected(service) for _ in range(40)]
    try:
        for client in idle:
            client.sendall(http2.opening())
        closed = 0
        give_up = time.monotonic() + PATIENCE_S
        for client in idle[24:]:
            client.settimeout(max(0.1, give_up - time.monotonic()))
            try:
                closed += all_of(client) is not None
            except ConnectionResetError:
                closed += 1
        assert closed == 16
    finally:
        for client in idle:
            client.close()
    wait_until(lambda: is_answered(service), "there is room again")


def is_answered(service: ServiceProcess) -> bool:
    try:
        return service.rpc({"number": "1"}).err_no == 0
    except grpc.RpcError:  # refused: the service has not noticed yet that the others are closed
        return False


@pytest.fixture(scope="module")
def narrow() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"limits": {"max_connections": 2}}) as process:
        yield process


def test_connections_over_the_limit_are_told_to_come_back(narrow: ServiceProcess) -> None:
    address = ("127.0.0.1", narrow.http_port)
    with contextlib.ExitStack() as open_connections:
        for _ in range(2):
            busy = open_connections.enter_context(socket.create_connection(address, timeout=10))
            busy.sendall(b"POST /test/prediction HTTP/1.1\r\nHost: test\r\n")
        with socket.create_connection(address, timeout=10) as refused:
            head, _, body = all_of(refused).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503") and b"connection: close" in head
        assert json.loads(body)["err_no"] == 3001
    wait_until(lambda: narrow.http("/health/live").status == 200, "they are gone")


def test_a_new_connection_takes_the_place_of_one_that_says_nothing(narrow: ServiceProcess) -> None:
    address = ("127.0.0.1", narrow.http_port)
    with socket.create_connection(address, timeout=10) as first, socket.create_connection(address) as second:
        wait_until(lambda: narrow.http("/health/live").status == 200, "there is room")
        assert first.recv(1) == b""
        assert is_connected(second)


def test_what_connections_needed_is_given_back_when_they_are_closed() -> None:
    with ServiceProcess(APPS / "echo.py", {}) as service:
        before = front_bytes(service)
        with contextlib.ExitStack() as opened:
            for _ in range(900):
                client = opened.enter_context(connected(service))
                client.sendall(http2.opening())
                assert client.recv(65536), "it is the service's, not the kernel's alone"
            grown = front_bytes(service) - before
            assert grown > 10e6, "there is something to give back"
        wait_until(lambda: front_bytes(service) < before + 0.75 * grown, "a part of it is given back")
