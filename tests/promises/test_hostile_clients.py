"""Clients over HTTP that pipeline without end, or do not read: what they cost, and whom."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.front_memory import front_bytes
from tests.support.kernel_connections import is_connected
from tests.support.raw_answers import received_until
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, key_value, wait_until

LIMITS = {"body_timeout_s": 2, "idle_timeout_s": 1}
UPGRADE = b"GET /health/live HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n"
LAST = b"GET /health/live HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"limits": LIMITS}) as process:
        yield process


def connect(service: ServiceProcess, stack: contextlib.ExitStack, window: int = 0) -> socket.socket:
    client = stack.enter_context(socket.socket())
    if window:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
    client.settimeout(PATIENCE_S)
    client.connect(("127.0.0.1", service.http_port))
    return client


def post(inputs: dict[str, str]) -> bytes:
    body = key_value(inputs)
    return b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def test_any_number_of_pipelined_wishes_to_upgrade_is_answered(service: ServiceProcess) -> None:
    with contextlib.ExitStack() as stack:
        client = connect(service, stack)
        client.sendall(UPGRADE * 1500 + LAST)
        received = b"".join(iter(lambda: client.recv(65536), b""))
    assert received.count(b"HTTP/1.1 200 OK") == 1501
    assert "Traceback" not in service.log


def test_requests_that_wait_behind_another_cost_little_more_than_their_bytes(
    service: ServiceProcess, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    held = post({"action": "wait", "argument": str(gate)})
    short = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n" * 3500
    before = front_bytes(service)
    with contextlib.ExitStack() as stack:
        stack.callback(gate.touch)
        clients = [connect(service, stack) for _ in range(60)]
        for client in clients:
            client.sendall(held + short)
        wait_until(
            lambda: service.metric("paddlewheel_pending_requests") == len(clients), "all wait for the first"
        )
        assert front_bytes(service) - before < 30e6  # all parsed they take 90
        gate.touch()
        received = received_until(clients[-1], b"\r\n\r\n", times=3501)
        assert received.startswith(b"HTTP/1.1 200 OK")


def test_an_answer_of_which_little_is_left_unread_is_given_up_too(service: ServiceProcess) -> None:
    """The kernel takes some megabytes; a rest too small to stop us from writing on is no exception."""
    with contextlib.ExitStack() as stack:
        clients = []
        for kilobytes in range(1500, 2800, 40):
            clients.append(connect(service, stack, window=2048))
            clients[-1].sendall(post({"text": "x" * kilobytes * 1000}))
        wait_until(lambda: not any(map(is_connected, clients)), "all connections are given up")


def test_a_connection_that_has_ended_leaves_nothing_behind(service: ServiceProcess) -> None:
    def connections(count: int) -> None:
        for _ in range(count):
            assert service.predict({"number": "21"})["doubled"] == "42"  # over a connection of its own

    connections(100)
    before = front_bytes(service)
    connections(1500)
    assert front_bytes(service) - before < 2e6  # as garbage in rings they take 4


def test_answers_that_nobody_reads_are_bounded_together_and_good_clients_are_answered() -> None:
    limits = {"bodies_bytes": 30_000_000, "response_bytes": 20_000_000, "body_timeout_s": 600}
    with (
        ServiceProcess(APPS / "long_answers.py", {"limits": limits}) as service,
        contextlib.ExitStack() as stack,
    ):
        before = front_bytes(service)
        clients = [connect(service, stack, window=2048) for _ in range(12)]
        for client in clients:
            client.sendall(post({"number": "10000000"}))
        wait_until(lambda: sum(map(is_connected, clients)) <= 4, "those that read least are sent away")
        assert len(service.predict({"number": "10000000"})["text"]) == 10_000_000
        assert front_bytes(service) - before < 80e6  # all together they have 120
        assert any(map(is_connected, clients))
        service.wait_for_log("together more than 30000000 bytes wait; limits.bodies_bytes allows no more")


class Flood:
    """A connection that sends one request over and over, as much as is taken, and reads nothing."""

    def __init__(self, service: ServiceProcess, stack: contextlib.ExitStack, request: bytes) -> None:
        self.socket = connect(service, stack, window=2048)
        self.socket.setblocking(False)
        self._requests = request * (65536 // len(request) + 1)
        self._sent = 0  # of these
        self.broken = False  # nothing more can be sent

    def go_on(self) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._sent += self.socket.send(self._requests[self._sent :])
            except ConnectionError:
                self.broken = True
            self._sent %= len(self._requests)


def modest(service: ServiceProcess, before: float) -> bool:
    """Whether the front holds little, however much is sent."""
    return front_bytes(service) - before < 20e6


def connected_after_more(floods: list[Flood]) -> int:
    """How many of them still are once each has sent more."""
    for flood in floods:
        flood.go_on()
    return sum(is_connected(flood.socket) for flood in floods)


NO_JSON = b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: 1\r\n\r\n{"
NOWHERE = b"GET / HTTP/1.1\r\nHost: test\r\n\r\n"


@pytest.mark.parametrize("refused", [NO_JSON, NOWHERE], ids=["no JSON", "no such page"])
def test_a_client_that_reads_none_of_its_refusals_is_sent_away(
    service: ServiceProcess, refused: bytes
) -> None:
    before = front_bytes(service)
    with contextlib.ExitStack() as stack:
        floods = [Flood(service, stack, refused) for _ in range(12)]
        wait_until(
            lambda: not connected_after_more(floods) or not modest(service, before), "all are sent away"
        )
        assert modest(service, before)
    service.wait_for_log("it has not read on for limits.body_timeout_s")


def test_refusals_that_nobody_reads_are_bounded_together_and_good_clients_are_answered(
    tmp_path: Path,
) -> None:
    gate = tmp_path / "gate"
    bounds = {"bodies_bytes": 300_000, "response_bytes": 300_000, "body_timeout_s": 600}
    config = {
        "limits": bounds,
        "dag": {"max_pending_requests": 1, "http_errors": "status", "request_timeout": 0},
    }
    with ServiceProcess(APPS / "echo.py", config) as service, contextlib.ExitStack() as stack:
        stack.callback(gate.touch)
        held = connect(service, stack)
        held.sendall(post({"action": "wait", "argument": str(gate)}))
        wait_until(Path(f"{gate}.waiting").exists, "all places are taken")
        assert service.http("/test/prediction", key_value({"number": "1"})).status == 429
        floods = [Flood(service, stack, NOWHERE) for _ in range(9)]
        wait_until(lambda: connected_after_more(floods) <= 4, "the others are sent away")
        service.wait_for_log("together more than 300000 bytes wait; limits.bodies_bytes allows no more")
        assert service.http("/health/live").status == 200
        gate.touch()
        assert held.recv(65536).startswith(b"HTTP/1.1 200 OK")


def test_a_stranger_that_goes_on_sending_is_refused_once_and_closed(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:" + "k" * 32 + "\n")
    config = {"security": {"api_keys": str(keys), "open_metrics": True}}
    with ServiceProcess(APPS / "echo.py", config) as service, contextlib.ExitStack() as stack:
        before = front_bytes(service)
        strangers = [Flood(service, stack, post({"number": "1"})) for _ in range(4)]

        def all_broken() -> bool:
            for stranger in strangers:
                stranger.go_on()
            return all(stranger.broken for stranger in strangers)

        wait_until(lambda: all_broken() or not modest(service, before), "all are closed")
        assert modest(service, before)
        for stranger in strangers:
            assert stranger.socket.recv(65536).count(b"HTTP/1.1 401") == 1


def test_bodies_that_never_end_are_refused_before_they_fill_the_memory_and_small_ones_are_answered() -> None:
    limits = {"bodies_bytes": 20_000_000}
    with ServiceProcess(APPS / "echo.py", {"limits": limits}) as service, contextlib.ExitStack() as stack:
        before = front_bytes(service)
        clients = [connect(service, stack) for _ in range(16)]
        for client in clients:
            client.sendall(b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: 9000000\r\n\r\n")
            client.sendall(b"x" * 8_000_000)
            assert service.predict({"number": "21"})["doubled"] == "42"
        assert front_bytes(service) - before < 80e6  # all together they have 128
        wait_until(lambda: len(select.select(clients, [], [], 0)[0]) >= 13, "most of them are refused")
        answers = [client.recv(65536) for client in clients if select.select([client], [], [], 0)[0]]
        assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers)
        assert b"limits.bodies_bytes" in answers[0]


def test_bodies_that_were_answered_make_room_for_others() -> None:
    limits = {"bodies_bytes": 2_000_000}
    with ServiceProcess(APPS / "echo.py", {"limits": limits}) as service, contextlib.ExitStack() as stack:
        client = connect(service, stack)
        for _ in range(5):
            for cut in (0, 1):  # a whole one that is answered, and one that its client leaves
                sent = post({"number": "21", "text": "x" * 900_000})
                client.sendall(sent[: len(sent) - cut])
                if cut:
                    client.close()
                    client = connect(service, stack)
                    continue
                assert client.recv(65536, socket.MSG_PEEK).startswith(b"HTTP/1.1 200 OK")
                received = 0
                while received < 900_000:
                    data = client.recv(65536)
                    assert data, "the answer is cut off"
                    received += len(data)


def test_bodies_whose_clients_have_left_take_no_memory(service: ServiceProcess) -> None:
    before = front_bytes(service)
    for _ in range(20):
        with contextlib.ExitStack() as stack:
            client = connect(service, stack)
            client.sendall(b"POST /test/prediction HTTP/1.1\r\nHost: test\r\nContent-Length: 9000000\r\n\r\n")
            client.sendall(b"x" * 8_000_000)
    wait_until(lambda: front_bytes(service) - before < 40e6, "most of the 160 MB are given back")
