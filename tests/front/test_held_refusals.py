"""Who asks again at once after a refusal gets the next a moment later; nobody else waits for that."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.front.http.listener import MAX_REJECTIONS_PER_TURN, HeldRejections
from tests.support.raw_answers import received_until
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value, wait_until

MOST = 3
PENDING = "paddlewheel_pending_requests"
REFUSED = b"HTTP/1.1 429 "
TOLD = b"dag.max_pending_requests allows"
ATTEMPTS = 50


@pytest.fixture
def full(tmp_path: Path) -> Iterator[ServiceProcess]:
    """A service with as many pending as may be, until its gate opens."""
    gate = tmp_path / "gate"
    config = {"dag": {"max_pending_requests": MOST}, "op": {"echo": {"batch_size": 1}}}
    waits = key_value({"action": "wait", "argument": str(gate)})
    with ServiceProcess(APPS / "echo.py", config) as service, ThreadPoolExecutor(MOST) as pool:
        asked = [pool.submit(service.http, "/test/prediction", waits) for _ in range(MOST)]
        try:
            wait_until(lambda: service.metric(PENDING) == MOST, "all are pending")
            yield service
        finally:
            gate.touch()
        assert [one.result().status for one in asked] == [200] * MOST


def post(*headers: str) -> bytes:
    body = key_value({"number": "1"})
    lines = ["POST /test/prediction HTTP/1.1", "Host: test", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


@contextlib.contextmanager
def connected(service: ServiceProcess) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S) as client:
        yield client


def something_is_there(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return bool(client.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        client.settimeout(PATIENCE_S)


def overtaken(service: ServiceProcess, *headers: str) -> bool:
    """Whether a caller who comes later is refused before one who asks twice without a pause is again."""
    with connected(service) as eager, connected(service) as other:
        eager.sendall(post(*headers) * 2)
        both = received_until(eager, TOLD).count(TOLD) == 2
        other.sendall(post())
        assert received_until(other, TOLD).startswith(REFUSED)
        overtaken = not both and not something_is_there(eager)
        if overtaken:
            assert received_until(eager, TOLD).startswith(REFUSED), "it comes all the same"
    return overtaken


def test_the_second_refusal_of_an_eager_caller_is_held_back_and_others_are_not(full: ServiceProcess) -> None:
    assert any(overtaken(full) for _ in range(ATTEMPTS))


def test_a_refusal_is_not_held_back_beyond_the_deadline(full: ServiceProcess) -> None:
    assert not any(overtaken(full, "Grpc-Timeout: 40m") for _ in range(3))


def test_at_the_maximum_no_body_is_parsed(full: ServiceProcess) -> None:
    with connected(full) as client:
        client.sendall(b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n[")
        assert received_until(client, TOLD).startswith(REFUSED)
    assert full.http("/other/prediction", b"{").json["err_msg"].startswith("Service name error")


def test_who_leaves_while_refusals_are_held_back_harms_nobody(full: ServiceProcess) -> None:
    for _ in range(20):
        with connected(full) as eager:
            eager.sendall(post() * 4)
            received_until(eager, TOLD)
    with connected(full) as other:
        other.sendall(post())
        received_until(other, TOLD)
    assert full.metric(PENDING) == MOST
    assert "Traceback" not in full.log


def test_a_stop_gives_what_is_held_back(full: ServiceProcess) -> None:
    with connected(full) as eager:
        eager.sendall(post() * 2)
        said = received_until(eager, TOLD)
        full.process.terminate()
        said += b"".join(iter(lambda: eager.recv(65536), b""))
        assert said.count(REFUSED) == said.count(TOLD) == 2


async def test_all_are_given_without_delay_when_asked_for() -> None:
    held, given = HeldRejections(), list[int]()
    now = asyncio.get_running_loop().time()
    for number in range(3):
        held.hold(lambda number=number: given.append(number), now)  # type: ignore[misc]
    held.send_all()
    assert given == [0, 1, 2]


async def test_no_more_are_given_in_a_turn_of_the_loop_than_leave_others_their_time() -> None:
    loop, held, given, seen = asyncio.get_running_loop(), HeldRejections(), list[int](), list[int]()
    many = 3 * MAX_REJECTIONS_PER_TURN
    done = loop.create_future()

    def refuse() -> None:
        given.append(1)
        loop.call_soon(lambda: seen.append(len(given)))
        if len(given) == many:
            done.set_result(None)

    for _ in range(many):
        held.hold(refuse, loop.time() - 1)
    await asyncio.wait_for(done, PATIENCE_S)
    assert MAX_REJECTIONS_PER_TURN in seen and 2 * MAX_REJECTIONS_PER_TURN in seen
