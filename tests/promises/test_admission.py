"""Admission: the expected wait against each request's deadline, as every endpoint words the refusal."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import grpc
import numpy as np
import pytest
import tritonclient.grpc as v2_grpc
import tritonclient.http as v2_http
from tritonclient.utils import InferenceServerException

from client.protos.pipeline_service_pb2 import Request
from pipeline.front.scheduler.batcher import Pace
from tests.support.service_process import APPS, RPC_METHOD, HttpAnswer, ServiceProcess, key_value, wait_until

NAP_S = 0.05
QUEUED = 12  # at NAP_S each: half a second and more
SHORT, LONG = "300m", "30S"  # values of the header Grpc-Timeout
PENDING = "paddlewheel_pending_requests"


@pytest.fixture
def service() -> Iterator[ServiceProcess]:
    """Without history; one request at a time."""
    with ServiceProcess(
        APPS / "queue_of_one.py", {"dag": {"http_errors": "status"}, "op": {"queue": {}}}
    ) as one:
        yield one


def ask(service: ServiceProcess, text: str, timeout: str = LONG) -> HttpAnswer:
    return service.http("/test/prediction", key_value({"text": text}), headers={"grpc-timeout": timeout})


def learn(service: ServiceProcess) -> None:
    """Have the service know how long a request takes."""
    for _ in range(5):
        assert ask(service, f"sleep {NAP_S}").status == 200


@contextlib.contextmanager
def full_queue(service: ServiceProcess, gate: Path) -> Iterator[list[Future[HttpAnswer]]]:
    """QUEUED requests behind one that waits for the gate, which opens at last."""
    with ThreadPoolExecutor(QUEUED + 1) as pool:
        asked = [pool.submit(ask, service, f"wait {gate}")]
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        asked += [pool.submit(ask, service, f"sleep {NAP_S}") for _ in range(QUEUED)]
        try:
            wait_until(lambda: service.metric(PENDING) == QUEUED + 1, "all are admitted")
            yield asked
        finally:
            gate.touch()


def test_a_request_that_would_only_wait_beyond_its_deadline_is_refused_at_every_endpoint(
    service: ServiceProcess, tmp_path: Path
) -> None:
    learn(service)
    with full_queue(service, tmp_path / "gate") as asked, service.channel() as channel:
        over_http = ask(service, f"sleep {NAP_S}", SHORT)
        message = Request(key=["text"], value=[f"sleep {NAP_S}"]).SerializeToString()
        call = channel.unary_unary(RPC_METHOD).future(message, timeout=0.3)
        over_grpc = call.exception()
        over_v2_http = v2_refusal(v2_http, service.http_port)
        over_v2_grpc = v2_refusal(v2_grpc, service.rpc_port)
        assert service.metric(PENDING) == len(asked), "none of them is pending"
    assert (over_http.status, over_http.json["err_no"]) == (429, 3001)
    assert "until its deadline" in over_http.json["err_msg"]
    assert int(over_http.headers["retry-after"]) >= 1
    assert over_grpc.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert int(dict(call.trailing_metadata())["grpc-retry-pushback-ms"]) >= 100
    assert over_v2_http.status() == "503"
    assert over_v2_grpc.status() == "StatusCode.UNAVAILABLE"
    for refusal in (over_v2_http, over_v2_grpc):
        assert "Exceeds maximum queue size" in refusal.message()
    assert [one.result().status for one in asked] == [200] * (QUEUED + 1)


def v2_refusal(module: object, port: int, timeout_us: int = 300_000) -> InferenceServerException:
    """What a client of Triton is told; its request has `timeout_us`."""
    client = module.InferenceServerClient(f"127.0.0.1:{port}")  # type: ignore[attr-defined]
    given = module.InferInput("text", [1], "BYTES")  # type: ignore[attr-defined]
    given.set_data_from_numpy(np.array([f"sleep {NAP_S}".encode()], object))
    with contextlib.closing(client), pytest.raises(InferenceServerException) as caught:
        client.infer("test", [given], timeout=timeout_us)
    return caught.value


def test_one_with_time_enough_is_admitted_to_the_same_queue(service: ServiceProcess, tmp_path: Path) -> None:
    learn(service)
    with ThreadPoolExecutor(1) as pool, full_queue(service, tmp_path / "gate"):
        patient = pool.submit(ask, service, f"sleep {NAP_S}", LONG)
        wait_until(lambda: service.metric(PENDING) == QUEUED + 2, "it is admitted")
    assert patient.result().status == 200


def test_without_history_nobody_is_refused(service: ServiceProcess, tmp_path: Path) -> None:
    with full_queue(service, tmp_path / "gate"):
        late = ask(service, f"sleep {NAP_S}", "50m")
        assert (late.status, late.json["err_no"]) == (504, 6000), "it was admitted, and waited in vain"


def test_who_finds_an_idle_instance_is_admitted_whatever_was_measured_before(service: ServiceProcess) -> None:
    for _ in range(2):
        assert ask(service, "sleep 2").status == 200
    for _ in range(5):
        assert ask(service, "sleep 0", "1900m").status == 200, "less than a usual run is left"


def test_a_higher_priority_does_not_wait_for_the_lower_ones(service: ServiceProcess, tmp_path: Path) -> None:
    learn(service)
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(QUEUED + 2) as pool:
        pool.submit(ask, service, f"wait {gate}")
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        low = [pool.submit(with_priority, service, 2, "sleep 0", 30_000_000) for _ in range(QUEUED)]
        wait_until(lambda: service.metric(PENDING) == QUEUED + 1, "all are admitted")
        with pytest.raises(InferenceServerException, match="Exceeds maximum queue size"):
            with_priority(service, 2, f"sleep {NAP_S}", 300_000)
        high = pool.submit(with_priority, service, 1, "sleep 0", 300_000)
        wait_until(lambda: service.metric(PENDING) == QUEUED + 2 or high.done(), "it is admitted")
        gate.touch()
        for one in low:
            one.result()


def with_priority(service: ServiceProcess, priority: int, text: str, timeout_us: int) -> None:
    with contextlib.closing(v2_grpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}")) as client:
        given = v2_grpc.InferInput("text", [1], "BYTES")
        given.set_data_from_numpy(np.array([text.encode()], object))
        client.infer("test", [given], priority=priority, timeout=timeout_us)


def test_long_and_short_runs_in_turn_are_paced_by_their_mean() -> None:
    pace = Pace()
    estimates = []
    for number in range(400):
        pace.record(0.5 if number % 10 == 0 else 0.005, 1)
        estimates.append(pace.per_task_s)
    assert all(0.5 * 0.0545 < estimate < 2 * 0.0545 for estimate in estimates[100:])


def test_a_full_batch_counts_for_each_of_its_tasks() -> None:
    pace = Pace()
    for _ in range(100):
        pace.record(0.001, 1)
        pace.record(0.032, 32)
    assert pace.per_task_s == pytest.approx(0.001)


def test_runs_of_many_tasks_that_become_slow_are_noticed_within_a_few() -> None:
    pace = Pace()
    for _ in range(100):
        pace.record(0.032, 32)
    for _ in range(4):
        pace.record(0.096, 32)
    assert pace.per_task_s > 0.0025, "0.003 by now, 0.001 before"
