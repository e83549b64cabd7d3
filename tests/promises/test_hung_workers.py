"""Workers that hang while others are idle: no request waits for them, with nothing set in config.yml."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, is_running, key_value, read_answer, wait_until

CALLERS = 6
READY = "paddlewheel_op_ready_instances"
MOVED = "paddlewheel_op_moved_total"
LATEST_S = 15  # no request is answered later than this, whatever hangs


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    with start_service() as running:
        yield running


@contextlib.contextmanager
def start_service(
    *, threads: bool = False, timeout_s: float = LATEST_S, **section: Any
) -> Iterator[ServiceProcess]:
    config = {
        "dag": {"is_thread_op": threads, "request_timeout": timeout_s, "http_errors": "status"},
        "op": {"echo": {"concurrency": 2, **section}},
    }
    with ServiceProcess(APPS / "echo.py", config) as running:
        running.wait_until_ready(every_instance=True)
        yield running


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as executor:
        yield executor


def hold(
    service: ServiceProcess, pool: ThreadPoolExecutor, path: Path, action: str = "wait"
) -> tuple[Future[dict[str, Any]], int]:
    """A request that is in its hook until the gate is there; the process that runs it."""
    before = set(service.worker_pids())
    pending = pool.submit(service.ask, {"number": "5", "action": action, "argument": str(path)})
    wait_until(Path(f"{path}.waiting").exists, "it is in its hook", on_timeout=lambda: service.log)
    idle = {int(service.predict({"number": "1"})["pid"]) for _ in range(3)}
    (holder,) = before - idle
    return pending, holder


def test_requests_behind_a_long_run_go_to_an_instance_that_is_idle(
    service: ServiceProcess, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    """Requests that come within milliseconds of the long one wait behind it: the other instance is busy."""
    for number in range(30):
        service.predict({"number": str(number)})
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(contextlib.closing(service.connection())) for _ in range(CALLERS)]
        for connection in connections:
            connection.connect()
        for attempt in range(4):
            first, second = tmp_path / f"first{attempt}", tmp_path / f"second{attempt}"
            first_request, _ = hold(service, pool, first)
            bodies = [key_value({"number": "6", "action": "wait", "argument": str(second)})]
            bodies += [key_value({"number": str(number)}) for number in range(1, CALLERS)]
            for connection, body in zip(connections, bodies, strict=True):
                connection.request("POST", "/test/prediction", body)
            wait_until(Path(f"{second}.waiting").exists, "the other is in its hook")
            first.touch()
            assert first_request.result()["err_no"] == 0
            for connection in connections[1:]:
                answer = read_answer(connection)
                assert answer.status == 200, answer
            second.touch()
            assert read_answer(connections[0]).status == 200
    assert service.metric("paddlewheel_op_restarts_total") == 0


def test_a_run_that_makes_no_progress_and_uses_no_cpu_is_run_by_another_instance(
    service: ServiceProcess, pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    for number in range(100):  # so that the average run is a quick one
        service.predict({"number": str(number)})
    moved, gate = service.metric(MOVED), tmp_path / "first.gate"
    os.mkfifo(gate)
    pending, holder = hold(service, pool, tmp_path / "first", "read_once")
    answer = pending.result()
    assert (answer["err_no"], answer["value"][1]) == (0, "10"), answer
    assert service.metric(MOVED) == moved + 1
    service.wait_for_log(f"(pid {holder}) seems to hang")
    service.wait_until_ready(every_instance=True)
    assert holder in service.worker_pids(), "its run may be slow for once"
    os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))  # what it answers now is dropped
    wait_until(
        lambda: not is_running(holder), "it leaves, for a new one serves", on_timeout=lambda: service.log
    )
    assert service.answered().keys() == {"ok"}


def test_a_thread_that_hangs_beside_one_that_works_loses_its_request_to_a_new_worker(
    pool: ThreadPoolExecutor, tmp_path: Path
) -> None:
    over = threading.Event()

    def ask_on() -> None:
        while not over.is_set():
            assert service.ask({"number": "3"})["err_no"] == 0

    with start_service(threads=True, timeout_s=60) as service:
        for number in range(100):  # so that the average run is a quick one
            service.predict({"number": str(number)})
        os.mkfifo(tmp_path / "first.gate")
        working = pool.submit(ask_on)
        try:
            answer = service.ask({"number": "5", "action": "read_once", "argument": str(tmp_path / "first")})
        finally:
            over.set()
        assert (answer["err_no"], answer["value"][1]) == (0, "10"), answer
        working.result()
        service.wait_for_log("seems to hang")


def test_no_request_fails_when_a_worker_is_stopped_under_load(
    service: ServiceProcess, pool: ThreadPoolExecutor
) -> None:
    service.wait_until_ready(every_instance=True)
    moved, over = service.metric(MOVED), threading.Event()

    def ask_on(caller: int) -> int:
        count = 0
        while not over.is_set():
            answer = service.ask({"number": str(caller + count)})
            assert answer["err_no"] == 0, answer
            assert answer["value"][1] == str(2 * (caller + count))
            count += 1
        return count

    callers = [pool.submit(ask_on, 1000 * number) for number in range(CALLERS)]
    victim = service.worker_pids()[0]
    try:
        os.kill(victim, signal.SIGSTOP)
        wait_until(
            lambda: service.metric(MOVED) > moved, "its requests are moved", on_timeout=lambda: service.log
        )
        wait_until(lambda: not is_running(victim), "it is killed", on_timeout=lambda: service.log)
        service.wait_until_ready(every_instance=True)
    finally:
        over.set()
    assert sum(caller.result() for caller in callers) > CALLERS
    service.wait_for_log("it was stopped (SIGSTOP) in a run, for 5 s")


def test_a_request_that_must_not_run_twice_is_not_moved(pool: ThreadPoolExecutor, tmp_path: Path) -> None:
    with start_service(crash_retry=False) as service:
        pending, holder = hold(service, pool, tmp_path / "gate")
        os.kill(holder, signal.SIGSTOP)
        wait_until(lambda: service.http("/health/ready").json["ops"]["echo"]["ready"] < 2, "readiness tells")
        answer = pending.result()
        assert answer["err_no"] == 9000
        assert "crash_retry is off" in answer["err_msg"]
        assert service.metric(MOVED) == 0
        assert service.predict({"number": "2"})["doubled"] == "4"
