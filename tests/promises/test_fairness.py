"""One client floods, another asks little: the modest one is served."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from client.protos.pipeline_service_pb2 import Request, Response
from pipeline.front.dag_run import Client, FairQueue
from pipeline.front.scheduler.admission import MAX_PEERS, Peers
from tests.support.service_process import (
    APPS,
    PATIENCE_S,
    RPC_METHOD,
    HttpAnswer,
    ServiceProcess,
    key_value,
    wait_until,
)

MOST = 20
KEYS = {"flood": "flood-0123456789abcdef", "modest": "modest-0123456789abcdef"}
PENDING = "paddlewheel_pending_requests"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One request at a time, `MOST` pending."""
    config = {"dag": {"max_pending_requests": MOST}, "op": {"echo": {"batch_size": 1}}}
    with ServiceProcess(APPS / "echo.py", config) as process:
        yield process


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    path = tmp_path_factory.mktemp("keys") / "keys"
    path.write_text("".join(f"{name}:{key}\n" for name, key in KEYS.items()))
    config = {
        "dag": {"max_pending_requests": MOST},
        "op": {"echo": {"batch_size": 1}},
        "security": {"api_keys": str(path), "open_metrics": True},
    }
    with ServiceProcess(APPS / "echo.py", config) as process:
        yield process


def message(**inputs: str) -> bytes:
    return Request(key=list(inputs), value=list(inputs.values())).SerializeToString()


@contextlib.contextmanager
def flooded(service: ServiceProcess, gate: Path, calls: int) -> Iterator[list[grpc.Future[bytes]]]:
    """`calls` requests of one gRPC connection are pending, the first of them at work until the gate opens."""
    with service.channel() as channel:
        call = channel.unary_unary(RPC_METHOD)
        sent = [call.future(message(action="wait", argument=str(gate)), timeout=PATIENCE_S)]
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        sent += [call.future(message(number="1"), timeout=PATIENCE_S) for _ in range(calls - 1)]
        wait_until(lambda: service.metric(PENDING) == calls, "all are pending")
        try:
            yield sent
        finally:
            gate.touch()
            grpc_outcomes(sent)


def grpc_outcomes(calls: list[grpc.Future[bytes]]) -> list[grpc.StatusCode]:
    return [call.code() for call in calls]  # type: ignore[attr-defined]


def seen(answer: HttpAnswer | bytes) -> int:
    """How many requests the Op had seen when it answered this one."""
    if isinstance(answer, bytes):
        response = Response.FromString(answer)
        return int(dict(zip(response.key, response.value, strict=True))["seen"])
    document = answer.json
    assert answer.status == 200, document
    return int(dict(zip(document["key"], document["value"], strict=True))["seen"])


def test_a_modest_client_goes_ahead_of_what_a_flood_has_queued(
    service: ServiceProcess, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(3) as pool, flooded(service, tmp_path / "gate", 12) as flood:
        modest = [pool.submit(service.http, "/test/prediction", key_value({"number": "2"})) for _ in range(3)]
        wait_until(lambda: service.metric(PENDING) == 15, "the modest ones are pending")
        (tmp_path / "gate").touch()
        first = seen(flood[0].result())
        last = max(seen(call.result()) for call in flood)
        assert last - first >= 12
        # Ahead of them: one that was handed over already, and one of the flood in the same turn.
        assert all(seen(each.result()) - first <= 6 for each in modest)


def test_requests_of_one_client_keep_their_order(service: ServiceProcess, tmp_path: Path) -> None:
    with flooded(service, tmp_path / "gate", 12) as flood:
        (tmp_path / "gate").touch()
        order = [seen(call.result()) for call in flood]
        assert order == sorted(order)


def test_a_client_alone_may_fill_the_queue_and_gives_way_when_another_comes(
    service: ServiceProcess, tmp_path: Path
) -> None:
    def modest(pool: ThreadPoolExecutor) -> Future[HttpAnswer]:
        return pool.submit(service.http, "/test/prediction", key_value({"number": "2"}))

    with ThreadPoolExecutor(2) as pool, flooded(service, tmp_path / "gate", MOST) as flood:
        over = service.metric("paddlewheel_requests_total", door="grpc", err_no="3001")
        answers = [modest(pool), modest(pool)]
        wait_until(
            lambda: service.metric("paddlewheel_requests_total", door="grpc", err_no="3001") == over + 2,
            "two of the flood gave way",
        )
        assert service.metric(PENDING) == MOST
        (tmp_path / "gate").touch()
        assert [answer.result().status for answer in answers] == [200, 200]
        outcomes = grpc_outcomes(flood)
        assert outcomes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 2
        assert outcomes[-2:] == [grpc.StatusCode.RESOURCE_EXHAUSTED] * 2
        assert outcomes.count(grpc.StatusCode.OK) == MOST - 2
        assert "more than its share" in flood[-1].details()  # type: ignore[attr-defined]


def test_a_flood_gains_nothing_by_asking_on(service: ServiceProcess, tmp_path: Path) -> None:
    with flooded(service, tmp_path / "gate", 1) as flood, service.channel() as channel:
        call = channel.unary_unary(RPC_METHOD)
        more = [call.future(message(number="1"), timeout=PATIENCE_S) for _ in range(MOST + 9)]
        wait_until(lambda: sum(each.done() for each in more) == 10, "what is too much is refused")
        assert service.metric(PENDING) == MOST
        (tmp_path / "gate").touch()
        outcomes = grpc_outcomes(more)
        assert grpc_outcomes(flood) == [grpc.StatusCode.OK]
    assert outcomes.count(grpc.StatusCode.OK) == MOST - 1
    assert outcomes.count(grpc.StatusCode.RESOURCE_EXHAUSTED) == 10


def test_connections_that_show_one_key_share_one_share(keyed: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    def ask(name: str, **inputs: str) -> HttpAnswer:
        return keyed.http("/test/prediction", key_value(inputs), headers={"X-API-Key": KEYS[name]})

    with ThreadPoolExecutor(MOST + 2) as pool:
        try:
            flood = [pool.submit(ask, "flood", action="wait", argument=str(gate))]
            wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
            flood += [pool.submit(ask, "flood", number="1") for _ in range(MOST - 1)]
            wait_until(lambda: keyed.metric(PENDING) == MOST, "all are pending")
            assert ask("flood", number="1").status == 429
            modest = pool.submit(ask, "modest", number="2")
            wait_until(lambda: keyed.metric("paddlewheel_key_pending", key="modest") == 1, "it is pending")
        finally:
            gate.touch()
        assert modest.result().status == 200
        statuses = [each.result().status for each in flood]
    assert (statuses.count(429), statuses.count(200)) == (1, MOST - 1)
    assert seen(modest.result()) - seen(flood[0].result()) <= 4


def test_turns_go_round() -> None:
    fair_queue, flood, modest = FairQueue(), Client(), Client()
    queue = []
    for sequence in range(4):
        queue.append((fair_queue.admit(flood), sequence, "flood"))
    assert fair_queue.latest == 4
    for sequence in range(4, 6):
        queue.append((fair_queue.admit(modest), sequence, "modest"))
    assert [name for *_, name in sorted(queue)] == ["flood", "modest", "flood", "modest", "flood", "flood"]
    assert fair_queue.clients == 2
    fair_queue.now = 9
    assert fair_queue.next(modest) == fair_queue.next(Client()) == 10, (
        "nobody saves turns up, and nobody is late"
    )
    for client in (modest, modest, flood, flood, flood, flood):
        fair_queue.end(client)
    assert fair_queue.clients == 0


def test_requests_that_were_cancelled_in_the_queue_do_not_delay_the_next_one() -> None:
    fair_queue, leaving, waiting = FairQueue(), Client(), Client()
    for _ in range(5):
        fair_queue.admit(leaving)
    for _ in range(5):
        fair_queue.end(leaving)
    fair_queue.admit(waiting)
    second = fair_queue.admit(waiting)
    assert fair_queue.next(leaving) == fair_queue.admit(leaving) < second


def test_addresses_that_wait_for_nothing_are_forgotten() -> None:
    peers = Peers()
    busy = peers.find_client("busy")
    busy.pending = 1
    idle = peers.find_client("idle")
    for number in range(MAX_PEERS):
        peers.find_client(str(number))
    assert peers.find_client("busy") is busy
    assert peers.find_client("idle") is not idle
