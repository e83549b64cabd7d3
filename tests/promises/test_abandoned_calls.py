"""Calls over `op.<name>.timeout`: whom they cost nothing, and what becomes of the workers busy with them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, is_running, wait_until

READY = "paddlewheel_op_ready_instances"
RESTARTS = "paddlewheel_op_restarts_total"
TIMEOUT_MS = 1500  # far more than an answer takes, also on a busy machine


def service_of(folder: Path, *, threads: bool = False, **section: Any) -> ServiceProcess:
    """With a file `hold` in the folder no further worker gets ready."""
    config = {"dag": {"is_thread_op": threads}, "op": {"echo": {"timeout": TIMEOUT_MS, **section}}}
    return ServiceProcess(APPS / "held_start.py", config, env={"STARTS": str(folder)})


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as made:
        yield made


def waits_for(gate: Path, number: int = 1) -> dict[str, str]:
    return {"number": str(number), "action": "wait", "argument": str(gate)}


def held(service: ServiceProcess, pool: ThreadPoolExecutor, gate: Path) -> Future[dict[str, Any]]:
    """A request that is in its hook until the gate is there."""
    asked = pool.submit(service.ask, waits_for(gate))
    wait_until(Path(f"{gate}.waiting").exists, "it is in its hook", on_timeout=lambda: service.log)
    return asked


def until_workers(service: ServiceProcess, number: int) -> None:
    wait_until(
        lambda: len(service.worker_pids()) == number, f"{number} workers", on_timeout=lambda: service.log
    )


def test_the_next_request_is_answered_by_a_new_worker_while_the_call_goes_on(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    with service_of(tmp_path, run_timeout=60) as service:
        (old,) = service.worker_pids()
        asked = held(service, pool, gate)
        queued = pool.submit(service.ask, {"number": "7"})
        assert asked.result()["err_no"] == 6000
        assert queued.result()["err_no"] == 0, "its clock begins when an instance begins with it"
        assert service.predict({"number": "2"})["pid"] != str(old)
        assert service.metric(RESTARTS) == 1
        assert is_running(old), "its call is not over"
        assert len(service.worker_pids()) == 2
        gate.touch()
        until_workers(service, 1)
        assert service.predict({"number": "4"})["doubled"] == "8"


def test_a_call_that_ends_before_the_new_worker_is_ready_leaves_the_old_one_in_its_place(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate, hold = tmp_path / "gate", tmp_path / "hold"
    with service_of(tmp_path, run_timeout=60) as service:
        (old,) = service.worker_pids()
        hold.touch()
        assert held(service, pool, gate).result()["err_no"] == 6000
        until_workers(service, 2)
        queued = pool.submit(service.predict, {"number": "7"})
        gate.touch()
        assert queued.result()["pid"] == str(old)
        until_workers(service, 1)
        assert service.worker_pids() == [old]
        service.wait_for_log("Worker echo.0 goes on: its call has ended")
        assert service.metric(RESTARTS) == 0
        assert "ERROR" not in service.log, service.log


def test_another_try_of_a_request_goes_to_the_new_worker(tmp_path: Path) -> None:
    request = {"number": "3", "action": "wait_once", "argument": str(tmp_path / "first")}
    with service_of(tmp_path, retry=2, run_timeout=60) as service:
        (old,) = service.worker_pids()
        answer = service.predict(request)
        assert (answer["doubled"], answer["pid"] != str(old)) == ("6", True)


def test_neighbours_in_the_process_of_an_abandoned_call_go_on(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate, hold = tmp_path / "gate", tmp_path / "hold"
    with service_of(tmp_path, threads=True, concurrency=3, run_timeout=60) as service:
        (old,) = service.worker_pids()
        hold.touch()
        assert held(service, pool, gate).result()["err_no"] == 6000
        until_workers(service, 2)
        for number in range(5):
            answer = service.predict({"number": str(number)})
            assert (answer["pid"], answer["doubled"]) == (str(old), str(2 * number))
        hold.unlink()
        wait_until(lambda: service.metric(RESTARTS) == 1, "it is replaced", on_timeout=lambda: service.log)
        assert service.metric(READY) == 3
        assert service.predict({"number": "1"})["pid"] != str(old)
        assert is_running(old)
        gate.touch()
        wait_until(lambda: not is_running(old), "the old one leaves", on_timeout=lambda: service.log)


def test_there_is_one_process_more_than_usual_however_many_calls_are_abandoned(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gates = [tmp_path / f"gate{number}" for number in range(3)]
    with service_of(tmp_path, concurrency=3, run_timeout=60) as service:
        wait_until(lambda: service.metric(READY) == 3, "all are ready", on_timeout=lambda: service.log)
        first = service.worker_pids()
        asked = [held(service, pool, gate) for gate in gates]
        assert [answer.result()["err_no"] for answer in asked] == [6000] * 3
        assert service.predict({"number": "7"})["pid"] not in map(str, first)
        assert len(service.worker_pids()) == 4
        for gate in gates:
            gate.touch()
        until_workers(service, 3)
        wait_until(lambda: service.metric(READY) == 3, "all are ready", on_timeout=lambda: service.log)


def test_what_waits_behind_an_abandoned_call_is_answered_by_others(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    gate = tmp_path / "gate"
    with service_of(tmp_path, run_timeout=60) as service:
        (old,) = service.worker_pids()
        fast = [service.predict({"number": str(number)}) for number in range(30)]
        assert {answer["pid"] for answer in fast} == {str(old)}
        numbers = range(24)
        asked = [
            pool.submit(service.ask, waits_for(gate) if number == 6 else {"number": str(number)})
            for number in numbers
        ]
        answers = [one.result() for one in asked]
        refused = answers.pop(6)
        assert refused["err_no"] == 6000
        expected = [str(2 * number) for number in numbers if number != 6]
        assert [answer["value"][1] for answer in answers] == expected
        gate.touch()
        until_workers(service, 1)


def test_an_op_that_times_out_on_every_request_makes_no_storm_of_processes(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    with service_of(tmp_path, run_timeout=60, timeout=50) as service:
        (old,) = service.worker_pids()
        (tmp_path / "hold").touch()
        began = time.monotonic()
        for number in range(20):
            gate = tmp_path / f"gate{number}"
            assert held(service, pool, gate).result()["err_no"] == 6000
            assert len(service.worker_pids()) <= 2
            gate.touch()
        took_s = time.monotonic() - began
        replaced = service.log.count("Worker echo.0 is replaced")
        assert 1 <= replaced <= 2 + math.log2(1 + took_s), "each pause is twice the one before"
        until_workers(service, 1)
        assert service.worker_pids() == [old]
        assert service.metric("paddlewheel_op_abandoned_total") == 20


def test_a_worker_that_is_killed_in_an_abandoned_call_has_its_successor_already(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    hold = tmp_path / "hold"
    with service_of(tmp_path, run_timeout=6) as service:
        (old,) = service.worker_pids()
        hold.touch()
        assert held(service, pool, tmp_path / "gate").result()["err_no"] == 6000
        until_workers(service, 2)
        (new,) = set(service.worker_pids()) - {old}
        wait_until(lambda: not is_running(old), "it is killed", on_timeout=lambda: service.log)
        hold.unlink()
        assert service.predict({"number": "7"})["pid"] == str(new)
        assert service.worker_pids() == [new]


def test_a_service_with_an_abandoned_call_stops_in_order(tmp_path: Path, pool: ThreadPoolExecutor) -> None:
    with service_of(tmp_path, run_timeout=60) as service:
        (tmp_path / "hold").touch()
        assert held(service, pool, tmp_path / "gate").result()["err_no"] == 6000
        until_workers(service, 2)
        service.terminate()
        assert service.exit_code() == 0
        assert "can't be replaced" not in service.log
