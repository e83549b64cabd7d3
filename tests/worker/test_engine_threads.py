"""Instances that share a process: `dag.is_thread_op`, and what becomes of siblings when one fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support import models
from tests.support.service_process import APPS, ServiceProcess, is_running, wait_until

POISON = {"number": "13", "action": "die"}


def started(concurrency: int = 4, *, dag: Mapping[str, Any] | None = None, **section: Any) -> ServiceProcess:
    config = {"dag": dag or {}, "op": {"echo": {"concurrency": concurrency, **section}}}
    return ServiceProcess(APPS / "instances.py", config)


@pytest.fixture(scope="module")
def four() -> Iterator[ServiceProcess]:
    """Four instances, as threads."""
    with started() as service:
        yield service


class Held:
    """Requests that are in a hook, each until its gate is opened."""

    def __init__(self, service: ServiceProcess, pool: ThreadPoolExecutor, gates: list[Path]) -> None:
        self.answers: list[Future[dict[str, Any]]] = []
        self.gates = gates
        for number, gate in enumerate(gates):
            inputs = {"number": str(number), "action": "wait", "argument": str(gate)}
            self.answers.append(pool.submit(service.ask, inputs))
            self.wait_for(gate)

    def wait_for(self, gate: Path) -> None:
        """Until the request of this gate is in the hook; notes nothing of it for the next time."""
        mark = Path(f"{gate}.waiting")
        wait_until(mark.exists, "a request is in its hook")
        mark.unlink()

    def release(self) -> list[dict[str, Any]]:
        for gate in self.gates:
            gate.touch()
        return [answer.result() for answer in self.answers]


def restarted(service: ServiceProcess, times: int) -> None:
    wait_until(
        lambda: service.metric("paddlewheel_op_restarts_total") >= times,
        f"there were {times} restarts",
        on_timeout=lambda: service.log,
    )


def test_instances_of_an_op_without_a_model_run_at_the_same_time_in_one_process(four: ServiceProcess) -> None:
    (worker,) = four.worker_pids()
    requests = [{"number": str(n), "action": "meet", "argument": "4"} for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(four.predict, requests))
    assert {answer["pid"] for answer in answers} == {str(worker)}
    assert len({answer["thread"] for answer in answers}) == 4
    assert "Op echo in 1 process of 4 threads" in four.log
    assert four.http("/health/ready").json["ops"]["echo"] == {"ready": 4, "instances": 4}
    assert four.metric("paddlewheel_resident_bytes", process="echo.0-3") > 10e6


def test_what_hooks_keep_on_self_and_how_numpy_prints_is_right_in_each_thread(four: ServiceProcess) -> None:
    """All four have set `self.own_text` before one of them goes on."""
    requests = [{"text": f"of {n}", "action": "meet", "argument": "4"} for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(four.predict, requests))
    assert [answer["text"] for answer in answers] == [f"of {n}" for n in range(4)]
    assert {answer["printed"] for answer in answers} == {"[3.142 0.5  ]"}


def test_threads_are_initialised_once_and_have_no_index_of_their_own(four: ServiceProcess) -> None:
    requests = [{"action": "meet", "argument": "4"}] * 4
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(four.predict, requests))
    assert {(answer["inits"], answer["index"]) for answer in answers} == {("1", "None")}


def test_without_is_thread_op_each_instance_is_a_process_with_its_index(tmp_path: Path) -> None:
    with started(dag={"is_thread_op": False}) as service, ThreadPoolExecutor(4) as pool:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 4, "all are ready")
        held = Held(service, pool, [tmp_path / str(number) for number in range(4)])
        answers = [dict(zip(a["key"], a["value"], strict=True)) for a in held.release()]
        assert sorted(answer["pid"] for answer in answers) == sorted(map(str, service.worker_pids()))
        assert sorted(answer["index"] for answer in answers) == ["0", "1", "2", "3"]
        assert {answer["inits"] for answer in answers} == {"1"}
        assert "Op echo in 4 processes" in service.log


def test_each_worker_of_build_dag_each_worker_is_a_process_of_its_own(tmp_path: Path) -> None:
    config = {"worker_num": 2, "build_dag_each_worker": True, "op": {"echo": {"concurrency": 2}}}
    with ServiceProcess(APPS / "instances.py", config) as service, ThreadPoolExecutor(4) as pool:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 4, "all are ready")
        held = Held(service, pool, [tmp_path / str(number) for number in range(4)])
        pids = [dict(zip(a["key"], a["value"], strict=True))["pid"] for a in held.release()]
        assert sorted(set(pids)) == sorted(map(str, service.worker_pids()))
        assert pids[0] != pids[1], "the second request goes where no other thread wants the interpreter"


def test_a_request_that_kills_its_process_is_refused_and_its_siblings_are_answered(tmp_path: Path) -> None:
    """Each of those under way is tried again while none of the others is, so that no other is blamed."""
    gates = [tmp_path / str(number) for number in range(3)]
    with started() as service, ThreadPoolExecutor(8) as pool:
        held = Held(service, pool, gates)
        poisons = [pool.submit(service.ask, POISON)]
        restarted(service, 1)
        held.wait_for(gates[0])
        poisons.append(pool.submit(service.ask, POISON))
        innocent = pool.submit(service.ask, {"number": "7"})
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 6, "all are admitted")
        assert service.metric("paddlewheel_op_queue_length") == 5, "only one is run, the others wait"
        assert [answer["err_msg"] for answer in held.release()] == [""] * 3
        for poison in poisons:
            assert poison.result()["err_no"] == 9000
            assert "killed by SIGKILL" in poison.result()["err_msg"]
        assert innocent.result()["value"][:2] == ["7", "14"]
        assert service.predict({"number": "2"})["doubled"] == "4"


def test_what_is_tried_again_alone_shares_its_process_with_nothing_that_comes_later(tmp_path: Path) -> None:
    with started() as service, ThreadPoolExecutor(2) as pool:
        held = Held(service, pool, [tmp_path / "gate"])
        service.kill_worker()
        held.wait_for(tmp_path / "gate")
        poison = pool.submit(service.ask, POISON)
        wait_until(lambda: service.metric("paddlewheel_pending_requests") == 2, "both are admitted")
        assert service.metric("paddlewheel_op_queue_length") == 1
        assert [answer["err_msg"] for answer in held.release()] == [""]
        assert poison.result()["err_no"] == 9000


def test_what_is_tried_again_alone_waits_for_a_process_where_nothing_else_runs(tmp_path: Path) -> None:
    config = {"worker_num": 2, "build_dag_each_worker": True, "op": {"echo": {"concurrency": 2}}}
    gate, fuse = tmp_path / "gate", tmp_path / "fuse"
    with ServiceProcess(APPS / "instances.py", config) as service, ThreadPoolExecutor(2) as pool:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 4, "all are ready")
        held = Held(service, pool, [gate])
        poison = pool.submit(service.ask, {"action": "wait_and_die", "argument": str(fuse)})
        held.wait_for(fuse)
        service.kill_worker(0)
        held.wait_for(gate)
        fuse.touch()
        assert poison.result()["err_no"] == 9000
        assert [answer["err_msg"] for answer in held.release()] == [""]


def test_a_hook_that_wants_to_leave_its_thread_costs_its_siblings_nothing(tmp_path: Path) -> None:
    with started(2) as service, ThreadPoolExecutor(2) as pool:
        workers = service.worker_pids()
        held = Held(service, pool, [tmp_path / "gate"])
        for _ in range(2):  # as many as there are instances: each of them is left
            assert "SystemExit" in service.ask({"action": "exit"})["err_msg"]
        assert [answer["err_msg"] for answer in held.release()] == [""]
        assert service.worker_pids() == workers


def test_a_stuck_hook_costs_its_siblings_no_answer(tmp_path: Path) -> None:
    dag = {"request_timeout": 0, "http_errors": "status"}
    # The siblings have to be in their hooks before the limit, and what is tried again is held for a moment.
    with started(dag=dag, run_timeout=8.0) as service, ThreadPoolExecutor(4) as pool:
        stuck = pool.submit(service.ask, {"action": "hang"})
        wait_until(lambda: service.metric("paddlewheel_op_queue_seconds_count") == 1, "it is handed over")
        held = Held(service, pool, [tmp_path / str(number) for number in range(3)])
        restarted(service, 1)
        assert [answer["err_msg"] for answer in held.release()] == [""] * 3
        assert stuck.result()["err_no"] == 9000
        assert "over its time limit" in stuck.result()["err_msg"]


def test_without_crash_retry_all_that_ran_in_the_dead_process_are_told_so(tmp_path: Path) -> None:
    """They may have had their effect: whoever turned the second try off must hear of each."""
    with started(2, crash_retry=False) as service, ThreadPoolExecutor(2) as pool:
        held = Held(service, pool, [tmp_path / "gate"])
        poison = pool.submit(service.ask, POISON)
        answers = [poison.result(), *held.release()]
        assert [answer["err_no"] for answer in answers] == [9000, 9000]
        assert all("crash_retry is off" in answer["err_msg"] for answer in answers)


def test_sigterm_finishes_what_each_thread_has(tmp_path: Path) -> None:
    with started() as service, ThreadPoolExecutor(4) as pool:
        (worker,) = service.worker_pids()
        held = Held(service, pool, [tmp_path / str(number) for number in range(4)])
        service.terminate()
        service.wait_for_log("Stopping")
        assert [answer["err_msg"] for answer in held.release()] == [""] * 4
        assert service.exit_code() == 0
        assert not is_running(worker)
        assert "did not leave" not in service.log


def test_instances_of_a_paddle_model_are_processes_and_the_log_says_so(model_folder: Path) -> None:
    model = models.images(model_folder)
    section = {"concurrency": 2, "local_service_conf": {"model_config": str(model)}}
    with ServiceProcess(
        APPS / "model.py", {"dag": {"is_thread_op": True}, "op": {"model": section}}
    ) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        assert len(service.worker_pids()) == 2
        told = "Op model in 2 processes (not threads: its engine runs one batch at a time"
        assert service.log.count(told) == 1
