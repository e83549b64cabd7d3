"""Time limits of single Ops: `op.<name>.timeout` and the tries that follow."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, key_value, wait_until


def _config(timeout_ms: int, *, dag: dict[str, Any] | None = None, **section: Any) -> dict[str, Any]:
    return {
        "dag": {"http_errors": "status", **(dag or {})},
        "op": {"echo": {"timeout": timeout_ms, **section}},
    }


def test_an_op_over_its_timeout_is_answered_so_and_its_late_reply_is_nobodys(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ServiceProcess(APPS / "echo.py", _config(2000)) as service, ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            service.http, "/test/prediction", key_value({"action": "wait", "argument": str(gate)})
        )
        wait_until(Path(f"{gate}.waiting").exists, "the worker is busy")
        answer = held.result()
        assert (answer.status, answer.json["err_no"]) == (504, 6000)
        assert "[echo] took more than op.echo.timeout (2000 ms)" in answer.json["err_msg"]
        assert "the call is abandoned, and its instance is replaced" in answer.json["err_msg"]
        gate.touch()
        answers = [service.predict({"number": str(number)}) for number in range(5)]
        assert [answer["doubled"] for answer in answers] == ["0", "2", "4", "6", "8"]
        assert service.metric("paddlewheel_op_abandoned_total", op="echo") == 1


def test_over_grpc_an_ops_timeout_is_a_message_though_the_caller_has_a_deadline_too() -> None:
    with ServiceProcess(APPS / "echo.py", _config(100)) as service:
        answer = service.rpc({"action": "hang"}, timeout_s=60)
        assert answer.err_no == 6000
        assert "op.echo.timeout" in answer.err_msg


def test_the_next_try_of_an_op_is_answered(tmp_path: Path) -> None:
    request = {"number": "3", "action": "wait_once", "argument": str(tmp_path / "first")}
    with ServiceProcess(APPS / "echo.py", _config(1000, retry=9, concurrency=2)) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 2, "both are ready")
        assert service.predict(request)["doubled"] == "6"
        assert (tmp_path / "first.gate.waiting").exists()


def test_the_tries_of_an_op_are_counted(tmp_path: Path) -> None:
    request = {"action": "wait", "argument": str(tmp_path / "gate")}
    with ServiceProcess(APPS / "echo.py", _config(100, retry=3, concurrency=3)) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 3, "all are ready")
        answer = service.ask(request)
        assert answer["err_no"] == 6000
        assert "in each of 3 tries" in answer["err_msg"]
        assert service.metric("paddlewheel_op_queue_seconds_count", op="echo") == 3


def test_a_request_whose_op_timed_out_begins_anew_as_a_whole(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    config = {"dag": {"retry": 9}, "op": {"b": {"timeout": 1000}}}
    with (
        ServiceProcess(APPS / "shapes.py", config, arguments=["mixed"]) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(service.predict, {"wait_b": str(gate)})
        handed_over = "paddlewheel_op_queue_seconds_count"
        wait_until(lambda: service.metric(handed_over, op="a") >= 2, "the whole request is tried again")
        gate.touch()
        assert held.result()["trail"] == "e(a,d(b(a),c(a)))"


@pytest.mark.parametrize("retry", [1, 2])
def test_the_tries_of_a_whole_request_are_counted(tmp_path: Path, retry: int) -> None:
    request = {"action": "wait", "argument": str(tmp_path / "gate")}
    config = _config(100, dag={"retry": retry}, concurrency=4, retry=2)
    with ServiceProcess(APPS / "echo.py", config) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 4, "all are ready")
        assert service.ask(request)["err_no"] == 6000
        assert service.metric("paddlewheel_op_queue_seconds_count", op="echo") == 2 * retry


def test_a_worker_stuck_over_its_ops_timeout_is_replaced_though_requests_have_no_deadline() -> None:
    with ServiceProcess(APPS / "echo.py", _config(100, dag={"request_timeout": 0})) as service:
        assert service.ask({"action": "hang"})["err_no"] == 6000
        wait_until(lambda: service.metric("paddlewheel_op_restarts_total") == 1, "the worker is replaced")
        wait_until(lambda: service.ask({"number": "2"})["err_no"] == 0, "its successor answers")
