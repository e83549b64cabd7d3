"""SIGHUP exchanges workers whose files have changed for new ones, while requests are served."""

from __future__ import annotations

import contextlib
import itertools
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.service_process import APPS, ServiceProcess, is_running, key_value, read_answer, wait_until

RELOADED = "Op op runs what is on disk now"
PROCESSES = 3


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the workers read when they start; the script is beside it."""
    folder = tmp_path_factory.mktemp("app")
    shutil.copy(APPS / "reloaded.py", folder)
    path = folder / "state.py"
    path.write_text("1")
    return path


@pytest.fixture(scope="module")
def service(state: Path) -> Iterator[ServiceProcess]:
    config = {"dag": {"is_thread_op": False}, "op": {"op": {"concurrency": PROCESSES, "batch_size": 4}}}
    with ServiceProcess(state.with_name("reloaded.py"), config) as running:
        wait_until_all_serve(running)
        yield running


def wait_until_all_serve(service: ServiceProcess) -> None:
    wait_until(
        lambda: service.metric("paddlewheel_op_ready_instances") == PROCESSES, "all instances are ready"
    )


def reload(service: ServiceProcess, becomes: str = RELOADED) -> None:
    told = service.log.count(becomes)
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_log(becomes, told + 1)


class Load:
    """Callers that ask without a pause, each on a connection of its own, and keep every answer."""

    def __init__(self, service: ServiceProcess, callers: int = 6) -> None:
        self._service = service
        self._asked: list[tuple[float, float, int, dict[str, Any]]] = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(callers)
        self._callers = [self._pool.submit(self._ask, number) for number in range(callers)]

    def _ask(self, caller: int) -> None:
        with contextlib.closing(self._service.connection()) as connection:
            number = caller
            while not self._stop.is_set():
                sent = time.monotonic()
                connection.request("POST", "/test/prediction", key_value({"number": str(number)}))
                answer = read_answer(connection).json
                self._asked.append((sent, time.monotonic(), number, answer))
                number += 1000

    def wait_for_state(self, state: str) -> None:
        """Until a caller has an answer of a worker that has read this state."""
        wait_until(
            lambda: any(state in answer["value"][1:2] for *_, answer in list(self._asked)), f"state {state}"
        )

    def end(self) -> list[tuple[float, float, int, dict[str, Any]]]:
        """When each request was sent and answered, its number, and its answer."""
        self._stop.set()
        for caller in self._callers:
            caller.result()
        self._pool.shutdown()
        return self._asked


def test_no_request_is_lost_and_none_gets_the_old_after_the_new(service: ServiceProcess, state: Path) -> None:
    before = service.worker_pids()
    load = Load(service)
    load.wait_for_state("1")
    state.write_text("2")
    reload(service)
    wait_until_all_serve(service)
    load.wait_for_state("2")
    asked = load.end()
    assert [answer["err_msg"] for *_, answer in asked if answer["err_no"]] == []
    first_new = min(answered for _, answered, _, answer in asked if answer["value"][1] == "2")
    for sent, _, number, answer in asked:
        doubled, seen, _ = answer["value"]
        assert doubled == str(2 * number)
        assert seen == "2" or sent < first_new
    assert {answer["value"][1] for *_, answer in asked} == {"1", "2"}
    wait_until(lambda: not set(before) & set(service.worker_pids()), "the old workers are gone")
    wait_until(lambda: len(service.worker_pids()) == PROCESSES, "each has a successor")
    assert service.metric("paddlewheel_op_restarts_total") == 0


def test_what_does_not_start_changes_nothing(service: ServiceProcess, state: Path) -> None:
    wait_until_all_serve(service)
    good, before = state.read_text(), service.worker_pids()
    load = Load(service)
    state.write_text("broken")
    reload(service, becomes="Op op goes on with the workers it had")
    asked = load.end()
    state.write_text(good)
    assert asked and {answer["value"][1] for *_, answer in asked} == {good}
    assert service.worker_pids() == before
    assert "the state is broken" in service.log


def test_a_request_under_way_is_answered_by_the_worker_that_has_it(
    service: ServiceProcess, state: Path, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(service.predict, {"number": "4", "wait": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "a worker has the request")
        state.write_text("3")
        service.process.send_signal(signal.SIGHUP)
        wait_until(lambda: service.predict({"number": "1"})["state"] == "3", "new workers serve")
        gate.touch()
        answer = held.result()
    assert (answer["doubled"], answer["state"]) == ("8", "2")
    wait_until(lambda: not is_running(int(answer["pid"])), "its worker is gone")


def test_without_a_change_the_workers_stay(service: ServiceProcess) -> None:
    wait_until_all_serve(service)
    before = service.worker_pids()
    reload(service, becomes="Nothing to load anew")
    assert service.worker_pids() == before


def test_workers_that_do_not_start_again_leave_the_others_serving(
    service: ServiceProcess, state: Path
) -> None:
    wait_until_all_serve(service)
    good, failures = state.read_text(), service.log.count("did not start")
    state.write_text("broken")
    service.kill_worker()
    service.wait_for_log("did not start", failures + 4)
    assert service.predict({"number": "2"})["state"] == good
    state.write_text(good)
    wait_until_all_serve(service)


def test_new_workers_that_all_die_before_they_serve_leave_the_old_ones(
    service: ServiceProcess, state: Path, tmp_path: Path
) -> None:
    wait_until_all_serve(service)
    good = state.read_text()
    load = Load(service)
    state.write_text(f"doomed {tmp_path}")
    reload(service, becomes="died before they were given any work")
    asked = load.end()
    assert [answer["err_msg"] for *_, answer in asked if answer["err_no"]] == []
    assert asked and {answer["value"][1] for *_, answer in asked} == {good}
    assert "died before it served: exited with 9" in service.log
    assert "the first is gone" in service.log
    state.write_text("after the doomed")
    reload(service)
    wait_until_all_serve(service)
    assert service.predict({"number": "2"})["state"] == "after the doomed"


def test_each_worker_that_fails_is_replaced_after_a_longer_pause(
    service: ServiceProcess, state: Path
) -> None:
    wait_until_all_serve(service)
    good, before = state.read_text(), len(pauses_s(service))
    state.write_text("broken")
    service.kill_worker()
    wait_until(lambda: len(pauses_s(service)) >= before + 5, "four more did not start")
    state.write_text(good)
    _, first, *others = pauses_s(service)[before:]
    assert first > 0
    assert all(later == 2 * earlier for earlier, later in itertools.pairwise([first, *others]))
    wait_until_all_serve(service)


def pauses_s(service: ServiceProcess) -> list[float]:
    """How long the service waited, or will wait, before each replacement, by its log."""
    return [float(number) for number in re.findall(r"is started again in ([\d.]+) s", service.log)]


def test_stopping_while_workers_start_leaves_none_behind(state: Path) -> None:
    with ServiceProcess(state.with_name("reloaded.py")) as own:
        state.write_text("another")
        own.process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(own.worker_pids()) == 2, "a successor starts")
        pids = own.worker_pids()
        own.terminate()
        assert own.exit_code() == 0
        assert not any(map(is_running, pids))
