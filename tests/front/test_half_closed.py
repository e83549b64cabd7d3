"""HTTP clients that send no more, and read on: `nc -N`, say. Their whole requests are answered."""

from __future__ import annotations

import gzip
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value, wait_until

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"op": {"echo": {"concurrency": 2}}}) as process:
        process.wait_until_ready(every_instance=True)
        yield process


def post(inputs: dict[str, str], version: str = "1.1") -> bytes:
    body = key_value(inputs)
    head = f"POST /test/prediction HTTP/{version}\r\nHost: test\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def half_closed(service: ServiceProcess, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S)
    client.sendall(sent)
    client.shutdown(socket.SHUT_WR)
    return client


def read_all(client: socket.socket) -> bytes:
    return b"".join(iter(lambda: client.recv(65536), b""))


def held(gate: Path) -> dict[str, str]:
    return {"number": "21", "action": "wait", "argument": str(gate)}


def test_one_request_is_answered(service: ServiceProcess) -> None:
    with half_closed(service, post({"number": "21"})) as client:
        raw = read_all(client)
    assert raw.count(b"HTTP/1.1 200") == 1 and b'"42"' in raw


def test_several_are_answered_and_what_is_no_whole_request_is_not(service: ServiceProcess) -> None:
    sent = b"".join(post({"number": str(number)}) for number in range(20))
    with half_closed(service, sent + post({"number": "21"})[:-1]) as client:
        raw = read_all(client)
    assert raw.count(b"HTTP/1.1 200") == 20 == raw.count(b"HTTP/1.1 ") - raw.count(CONTINUE)
    assert b'"38"' in raw and b'"42"' not in raw


def test_one_that_waits_long_is_told_to_and_answered(service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with half_closed(service, post(held(gate))) as client:
        assert client.recv(len(CONTINUE), socket.MSG_WAITALL) == CONTINUE
        gate.touch()
        raw = read_all(client)
    assert raw.startswith(b"HTTP/1.1 200") and b'"42"' in raw and b"connection: close" in raw


def test_a_long_answer_that_is_read_slowly_has_nothing_behind_it(
    service: ServiceProcess, tmp_path: Path
) -> None:
    text, gate = "x" * 8_000_000, tmp_path / "gate"
    with half_closed(service, post({"number": "21", "text": text})) as slow:
        while slow.recv(len(CONTINUE), socket.MSG_PEEK | socket.MSG_WAITALL) == CONTINUE:
            slow.recv(len(CONTINUE))  # a slow machine was told to wait
        # It is answered by now, and does not fit into the kernel's buffers.
        with half_closed(service, post(held(gate))) as other:
            other.recv(len(CONTINUE), socket.MSG_WAITALL)  # by now the first would have been told, too
            gate.touch()
            read_all(other)
        raw = read_all(slow)
    head, _, body = raw.partition(b"\r\n\r\n")
    assert f"content-length: {len(body)}".encode() in head


def test_a_client_of_http_1_0_has_left(service: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with half_closed(service, post(held(gate), "1.0")) as client:
        assert read_all(client) == b""
    gate.touch()


def test_one_that_leaves_after_all_is_let_go(service: ServiceProcess, tmp_path: Path) -> None:
    gates = [tmp_path / str(number) for number in range(2)]
    clients = [half_closed(service, post(held(gate))) for gate in gates]
    for gate in gates:
        wait_until(Path(f"{gate}.waiting").exists, "it is under way")
    for client in clients:
        client.close()
    wait_until(lambda: service.metric("paddlewheel_pending_requests") == 0, "they have left")
    for gate in gates:
        gate.touch()


def test_one_that_is_gone_before_its_body_is_read_is_refused_in_peace(service: ServiceProcess) -> None:
    """The body is decompressed aside, and refused when the connection is no more."""
    body = gzip.compress(gzip.compress(b" " * (1 << 20)))
    lines = (
        "POST /v2/models/test/infer HTTP/1.1",
        "Host: test",
        "Content-Encoding: gzip",
        f"Content-Length: {len(body)}",
    )
    head = "\r\n".join([*lines, "", ""])
    for _ in range(200):
        client = socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S)
        client.sendall(head.encode() + body)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()  # a reset
    wait_until(lambda: service.metric("paddlewheel_pending_requests") == 0, "all are refused")
    assert service.predict({"number": "21"})
    assert "Traceback" not in service.log
