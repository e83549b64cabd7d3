"""Requests on their way through DAGs of every shape, and what Ops pass each other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.service_process import APPS, ServiceProcess, wait_until

VALUES = re.findall(r'^    "(.+?)": ', (APPS / "values.py").read_text("utf-8"), re.MULTILINE)
NOT_PASSED = {
    "unloadable": "invalid literal for int",
    "leaving": "can't be rebuilt: it leaves",
    "unpicklable": "a PicklesBadly can't be passed between Ops",
    "lambda": "a function can't be passed between Ops",
}


@pytest.fixture(scope="module")
def mixed() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "shapes.py", arguments=["mixed"]) as service:
        yield service


@pytest.fixture(scope="module")
def loop() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "shapes.py", {"dag": {"max_hops": 5}}, arguments=["loop"]) as service:
        yield service


@pytest.fixture(scope="module")
def values() -> Iterator[ServiceProcess]:
    with ServiceProcess(APPS / "values.py") as service:
        yield service


def test_a_diamond_a_skipping_edge_and_the_request_itself_are_joined(mixed: ServiceProcess) -> None:
    answer = mixed.predict({"x": "1"})
    assert answer["trail"] == "e(a,d(b(a),c(a)))"
    assert answer["inputs"] == "@DAGExecutor a d"


def test_the_branches_of_a_diamond_run_beside_each_other(mixed: ServiceProcess, tmp_path: Path) -> None:
    gates = {name: str(tmp_path / name) for name in "bc"}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(mixed.predict, {f"wait_{name}": gate for name, gate in gates.items()})
        for gate in gates.values():
            wait_until(Path(f"{gate}.waiting").exists, "both branches are under way")
        for gate in gates.values():
            Path(gate).touch()
        assert held.result()["trail"] == "e(a,d(b(a),c(a)))"


def test_a_request_waits_for_its_own_branch_alone(mixed: ServiceProcess, tmp_path: Path) -> None:
    """While one request is held in `b`, another's `a` and `c` run."""
    gate = tmp_path / "gate"
    handed_over = "paddlewheel_op_queue_seconds_count"
    before = mixed.metric(handed_over, op="c")
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(mixed.predict, {"wait_b": str(gate), "x": "1"})
        wait_until(Path(f"{gate}.waiting").exists, "a request is under way")
        other = pool.submit(mixed.predict, {"x": "2"})
        wait_until(lambda: mixed.metric(handed_over, op="c") == before + 2, "both are past c")
        gate.touch()
        assert (held.result()["x"], other.result()["x"]) == ("1", "2")


def test_every_worker_of_a_dag_may_be_killed_and_the_next_request_is_answered(mixed: ServiceProcess) -> None:
    before = mixed.metric("paddlewheel_op_restarts_total")
    for number in range(2):
        mixed.kill_worker(number)
    assert mixed.predict({"x": "1"})["trail"] == "e(a,d(b(a),c(a)))"
    wait_until(lambda: mixed.metric("paddlewheel_op_restarts_total") == before + 2, "both were replaced")


@pytest.mark.parametrize("jumps", [0, 1, 3, 5])
def test_a_jump_goes_to_the_consumers_of_its_target(loop: ServiceProcess, jumps: int) -> None:
    trail = "a"
    for _ in range(jumps + 1):
        trail = f"c(b({trail}))"
    answer = loop.predict({"jumps": str(jumps)})
    assert (answer["trail"], answer["inputs"]) == (f"d({trail})", "c")


def test_after_a_jump_the_consumer_sees_who_jumped(loop: ServiceProcess) -> None:
    """Paddle Serving, too, names the Op that made the value, not the target of the jump."""
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(loop.predict, [{"jumps": str(n % 3), "x": str(n)} for n in range(24)]))
    assert [answer["trail"].count("b") for answer in answers] == [n % 3 + 1 for n in range(24)]
    assert [answer["x"] for answer in answers] == [str(n) for n in range(24)]


def test_a_request_that_jumps_too_often_is_refused(loop: ServiceProcess) -> None:
    answer = loop.ask({"jumps": "6"})
    assert answer["err_no"] == 10000
    assert "dag.max_hops" in answer["err_msg"]
    assert loop.predict({"jumps": "5"})["jumped"] == "6"


def test_a_jump_back_over_a_fork_leaves_no_result_of_the_first_round_behind(tmp_path: Path) -> None:
    """The other branch is still in its first round when the jump starts it anew."""
    gate = tmp_path / "gate"
    config = {"op": {"c": {"concurrency": 1}}}
    with (
        ServiceProcess(APPS / "shapes.py", config, arguments=["loop_of_a_branch"]) as service,
        ThreadPoolExecutor(1) as pool,
    ):
        held = pool.submit(service.predict, {"jumps": "1", "wait_c": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "c is in its first round")
        wait_until(lambda: service.metric("paddlewheel_op_queue_seconds_count", op="b") == 2, "b has jumped")
        wait_until(lambda: service.metric("paddlewheel_op_queue_length", op="c") == 1, "c is to run again")
        gate.touch()
        assert held.result()["trail"] == "d(b(b(a)),c(b(a)))"


@pytest.mark.parametrize("name", [name for name in VALUES if name not in NOT_PASSED])
def test_a_value_arrives_at_the_next_op_as_it_left(values: ServiceProcess, name: str) -> None:
    assert values.predict({"name": name}) == {"seen": "the same"}


@pytest.mark.parametrize("name", NOT_PASSED)
def test_a_value_that_cannot_be_passed_on_fails_its_request_with_the_reason(
    values: ServiceProcess, name: str
) -> None:
    workers = values.worker_pids()
    answer = values.ask({"name": name})
    assert answer["err_no"] == 10000
    assert NOT_PASSED[name] in answer["err_msg"]
    assert values.worker_pids() == workers
