"""Workers that die, hang or never start: what becomes of their requests and of the service."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from tests.support.service_process import (
    APPS,
    HttpAnswer,
    ServiceProcess,
    is_running,
    key_value,
    wait_until,
)

POISON = {"number": "13", "action": "die"}


@pytest.fixture(scope="module")
def one_worker() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "echo.py", {"op": {"echo": {"batch_size": 8}}}) as service:
        yield service


def test_a_poisonous_request_is_refused_and_its_neighbours_are_answered(
    one_worker: ServiceProcess, tmp_path: Path
) -> None:
    before = one_worker.metric("paddlewheel_op_restarts_total")
    requests = [{"number": str(i)} for i in range(7)]
    requests.insert(3, POISON)
    held = {"action": "wait", "argument": str(tmp_path / "gate")}
    answers = one_worker.ask_together(requests, held, tmp_path / "gate")
    refusal = answers.pop(3)
    assert refusal["err_no"] == 9000
    assert "killed by SIGKILL" in refusal["err_msg"]
    assert [answer["value"][:2] for answer in answers] == [[str(i), str(2 * i)] for i in range(7)]
    assert one_worker.metric("paddlewheel_op_restarts_total") == before + 3, "with the batch, and twice alone"


def test_a_request_that_loses_the_gpu_is_refused_and_its_neighbours_are_answered(
    one_worker: ServiceProcess, tmp_path: Path
) -> None:
    requests = [{"number": str(i)} for i in range(7)]
    requests.insert(3, {"number": "13", "action_in_process": "lose_gpu"})
    held = {"action": "wait", "argument": str(tmp_path / "gate")}
    answers = one_worker.ask_together(requests, held, tmp_path / "gate")
    refusal = answers.pop(3)
    assert refusal["err_no"] == 9000
    assert [answer["value"][:2] for answer in answers] == [[str(i), str(2 * i)] for i in range(7)]
    one_worker.wait_for_log("the GPU is lost to this worker, which ends: CUDA error: device-side assert")


def test_the_text_of_a_client_does_not_pass_for_an_error_of_cuda(one_worker: ServiceProcess) -> None:
    worker = one_worker.predict({"number": "1"})["pid"]
    text = "CUDA error: device-side assert triggered"
    for action, argument in (("raise", text), ("raise_text", f"invalid: {text}")):
        answer = one_worker.ask({"action": action, "argument": argument})
        assert answer["err_no"] and text in answer["err_msg"]
    assert one_worker.predict({"number": "1"})["pid"] == worker


def test_a_kill_of_a_batch_and_then_of_the_worker_that_runs_it_again_cost_no_request(
    one_worker: ServiceProcess, tmp_path: Path
) -> None:
    gates = {number: tmp_path / number for number in ("5", "6")}
    requests = [{"number": number, "action": "wait", "argument": str(gate)} for number, gate in gates.items()]
    held = {"action": "wait", "argument": str(tmp_path / "gate")}

    def find_waiting() -> list[Path]:
        return [gate for gate in gates.values() if Path(f"{gate}.waiting").exists()]

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(one_worker.ask_together, requests, held, tmp_path / "gate")
        wait_until(lambda: len(find_waiting()) == 1, "the first is in its hook")
        (first,) = find_waiting()
        first.touch()
        wait_until(lambda: len(find_waiting()) == 2, "the second is in its hook")
        (second,) = set(gates.values()) - {first}
        for _ in range(2):
            Path(f"{second}.waiting").unlink()
            one_worker.kill_worker()
            wait_until(Path(f"{second}.waiting").exists, "the second runs again")
        second.touch()
        assert [answer["value"][:2] for answer in asked.result()] == [["5", "10"], ["6", "12"]]


def test_a_request_whose_worker_died_once_is_answered_by_the_next(
    one_worker: ServiceProcess, tmp_path: Path
) -> None:
    worker = one_worker.predict({"number": "1"})["pid"]
    retried = one_worker.metric("paddlewheel_op_retried_total")
    answer = one_worker.predict({"number": "5", "action": "die_once", "argument": str(tmp_path / "died")})
    assert answer["doubled"] == "10"
    assert answer["pid"] != worker
    assert answer["pid"] in map(str, one_worker.worker_pids())
    assert one_worker.metric("paddlewheel_op_retried_total") == retried + 1


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "processes"])
def test_all_workers_killed_at_once_make_no_request_a_poison(threads: bool, tmp_path: Path) -> None:
    """What was under way is handed to workers that are dead, too, but whose end nobody has noticed yet."""
    gates = [tmp_path / str(number) for number in range(3)]
    config = {"dag": {"is_thread_op": threads}, "op": {"echo": {"concurrency": 6}}}
    with (
        ServiceProcess(APPS / "echo.py", config) as service,
        ThreadPoolExecutor(3) as pool,
    ):
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 6, "all are ready")
        held = [
            pool.submit(service.ask, {"number": "2", "action": "wait", "argument": str(gate)})
            for gate in gates
        ]
        for gate in gates:
            wait_until(Path(f"{gate}.waiting").exists, "a request is under way")
        workers = service.worker_pids()
        os.kill(service.process.pid, signal.SIGSTOP)  # else the first one's request could begin in the last
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
        os.kill(service.process.pid, signal.SIGCONT)
        for gate in gates:
            gate.touch()
        assert [one.result()["err_msg"] for one in held] == [""] * 3


@pytest.mark.parametrize(("action", "told"), [("exit", "SystemExit: no"), ("interrupt", "KeyboardInterrupt")])
def test_a_hook_that_wants_to_leave_fails_its_request_alone(
    one_worker: ServiceProcess, action: str, told: str
) -> None:
    worker = one_worker.predict({"number": "1"})["pid"]
    answer = one_worker.ask({"action": action, "argument": "no"})
    assert answer["err_no"] == 10000
    assert f"Raise_msg: {told}  ClassName: EchoOp  FunctionName: preprocess" in answer["err_msg"]
    assert one_worker.predict({"number": "2"})["pid"] == worker


def test_a_hook_that_ends_its_process_is_poison(one_worker: ServiceProcess) -> None:
    answer = one_worker.ask({"action": "leave"})
    assert answer["err_no"] == 9000
    assert "exited with 3" in answer["err_msg"]
    assert one_worker.predict({"number": "2"})["doubled"] == "4"


def test_without_crash_retry_the_requests_of_a_dead_worker_are_told_so() -> None:
    config = {"dag": {"http_errors": "status"}, "op": {"echo": {"crash_retry": False}}}
    with ServiceProcess(APPS / "echo.py", config) as service:
        answer = service.http("/test/prediction", key_value(POISON))
        assert (answer.status, answer.json["err_no"]) == (503, 9000)
        assert "crash_retry" in answer.json["err_msg"]
        assert service.predict({"number": "2"})["doubled"] == "4"
        assert service.metric("paddlewheel_op_restarts_total") == 1


@pytest.fixture(scope="module")
def impatient() -> Iterator[ServiceProcess]:
    """Requests may take half a second, and a run one second."""
    config = {
        "dag": {"request_timeout": 0.5, "http_errors": "status"},
        "op": {"echo": {"run_timeout": 1.0, "batch_size": 8}},
    }
    with ServiceProcess(APPS / "echo.py", config) as service:
        yield service


def test_a_hanging_request_is_answered_at_its_deadline_and_its_worker_replaced(
    impatient: ServiceProcess,
) -> None:
    (worker,) = impatient.worker_pids()
    restarts = impatient.metric("paddlewheel_op_restarts_total")
    answer = impatient.http("/test/prediction", key_value({"action": "hang"}))
    assert (answer.status, answer.json["err_no"]) == (504, 6000)
    assert "deadline" in answer.json["err_msg"]
    wait_until(
        lambda: impatient.metric("paddlewheel_op_restarts_total") > restarts,
        "the stuck worker is killed",
        on_timeout=lambda: impatient.log,
    )
    assert not is_running(worker)
    impatient.wait_until_ready()
    assert impatient.predict({"number": "2"})["doubled"] == "4"
    impatient.wait_for_log("time limit")


def test_readiness_fails_while_no_worker_is_there(impatient: ServiceProcess) -> None:
    impatient.wait_until_ready()
    impatient.kill_worker()
    answers: list[HttpAnswer] = []

    def is_unready() -> bool:
        answers.append(impatient.http("/health/ready"))
        return answers[-1].status == 503

    wait_until(is_unready, "the death shows")
    assert answers[-1].json == {"ready": False, "ops": {"echo": {"ready": 0, "instances": 1}}}
    assert impatient.http("/health/live").status == 200
    impatient.wait_until_ready()


def test_a_callers_own_deadline_holds_over_grpc(impatient: ServiceProcess) -> None:
    impatient.wait_until_ready()
    with pytest.raises(grpc.RpcError) as caught:
        impatient.rpc({"action": "hang"}, timeout_s=0.2)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED


def test_a_script_whose_init_op_raises_ends_with_its_traceback(tmp_path: Path) -> None:
    config = {"dag": {"is_thread_op": False}, "op": {"broken": {"concurrency": 2}}}
    with ServiceProcess(APPS / "broken.py", config, arguments=["init_op"], wait=False) as service:
        assert service.exit_code() == 1
        told = "init_op of Op broken raised RuntimeError: there is no vocabulary\n"
        assert f"did not start: {told}" in service.log
        assert service.log.endswith(f"Op broken can't be started: {told}")
        assert "pipeline/worker/main.py" not in service.log, "only the app's own lines"
        assert 'broken.py", line' in service.log


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("no run_service", "ended without calling run_service"),
        ("another op", "has no Op broken"),
        ("import", "No module named 'no_such_module'"),
        ("start_timeout", "did not start within 0.5 s"),
        ("async", "[broken] init_op returned coroutine; expected nothing"),
    ],
)
def test_a_script_that_does_otherwise_in_its_worker_ends_the_service(how: str, told: str) -> None:
    config = {"op": {"broken": {"start_timeout": 0.5 if how == "start_timeout" else 600}}}
    with ServiceProcess(APPS / "broken.py", config, arguments=[how], wait=False) as service:
        assert service.exit_code() == 1
        assert told in service.log


def test_a_worker_that_can_never_start_again_ends_the_service(tmp_path: Path) -> None:
    marker = tmp_path / "started"
    with ServiceProcess(
        APPS / "broken.py", {"op": {"broken": {}}}, arguments=["later", str(marker)]
    ) as service:
        service.kill_worker()
        assert service.exit_code() == 1
        assert "RuntimeError: only once" in service.log


def test_a_service_that_ends_for_want_of_a_worker_answers_what_it_had_admitted(tmp_path: Path) -> None:
    """`last` is in the middle of a request when `short` can't be started again, for which another waits."""
    script, gate = tmp_path / "race.py", tmp_path / "gate"
    shutil.copy(APPS / "race.py", script)
    with ServiceProcess(script, arguments=["two"]) as service, ThreadPoolExecutor(2) as pool:
        under_way = pool.submit(service.predict, {"x": "mine", "wait_last": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "it is in `last`")
        script.unlink()
        found = re.search(r"Worker short\.0 is ready \(pid (\d+)\)", service.log)
        assert found is not None, service.log
        os.kill(int(found[1]), signal.SIGKILL)
        waiting = pool.submit(service.ask, {"x": "another"})
        refusal = waiting.result()
        assert refusal["err_no"] == 3001
        assert "Op short has no worker left" in refusal["err_msg"]
        gate.touch()
        assert under_way.result()["x"] == "mine"
        assert service.exit_code() == 1
        assert "Op short can't be started" in service.log


def test_starts_that_failed_while_others_served_do_not_count_when_those_are_gone(tmp_path: Path) -> None:
    deaths = tmp_path / "deaths"
    deaths.touch()
    config = {"dag": {"is_thread_op": False}, "op": {"broken": {"concurrency": 2}}}
    with ServiceProcess(APPS / "broken.py", config, arguments=["dies", str(deaths)]) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        first, second = service.worker_pids()
        deaths.write_text("xxx")
        os.kill(first, signal.SIGKILL)
        service.wait_for_log("did not start: killed by SIGKILL", times=3)
        deaths.write_text("x")
        os.kill(second, signal.SIGKILL)
        service.wait_for_log("did not start: killed by SIGKILL", times=4)
        service.wait_until_ready()


def test_a_killed_front_takes_its_workers_along_even_those_in_a_hook() -> None:
    config = {"dag": {"is_thread_op": False}, "op": {"echo": {"concurrency": 2}}}
    with ServiceProcess(APPS / "echo.py", config) as service, ThreadPoolExecutor(1) as pool:
        workers = service.worker_pids()
        asked = pool.submit(service.ask, {"action": "hang"})
        wait_until(lambda: service.metric("paddlewheel_op_queue_seconds_count") == 1, "it is handed over")
        os.kill(service.process.pid, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, workers)), "the workers are gone")
        assert isinstance(asked.exception(), OSError)


def test_workers_are_left_alone_by_a_ctrl_c_in_the_terminal(one_worker: ServiceProcess) -> None:
    one_worker.wait_until_ready()
    for pid in one_worker.worker_pids():
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert os.getpgid(pid) != os.getpgid(one_worker.process.pid)
    before = one_worker.metric("paddlewheel_op_restarts_total")
    assert one_worker.predict({"number": "2"})["doubled"] == "4"
    assert one_worker.metric("paddlewheel_op_restarts_total") == before


def test_a_run_timeout_of_zero_is_none() -> None:
    with ServiceProcess(APPS / "echo.py", {"op": {"echo": {"run_timeout": 0}}}) as service:
        (worker,) = service.worker_pids()
        assert service.predict({"number": "21"})["doubled"] == "42"
        assert service.worker_pids() == [worker]


@pytest.mark.parametrize(("build", "instances"), [(True, 4), (False, 2)])
def test_worker_num_multiplies_the_instances_where_every_worker_builds_the_dag(
    build: bool, instances: int
) -> None:
    config = {
        "worker_num": 2,
        "build_dag_each_worker": build,
        "dag": {"is_thread_op": False},
        "op": {"echo": {"concurrency": 2}},
    }
    with ServiceProcess(APPS / "echo.py", config) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == instances, "all are ready")
        assert service.http("/health/ready").json["ops"]["echo"]["instances"] == instances
        assert len(service.worker_pids()) == instances
