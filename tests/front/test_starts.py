"""Starts of workers: as many at a time as there are cores, and what that must not hold up."""

from __future__ import annotations

import itertools
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from pipeline.front.pool.worker_pool import HOLD_S
from pipeline.process import environment
from tests.support.service_process import APPS, ServiceProcess, wait_until

READY = "paddlewheel_op_ready_instances"


def starting(folder: Path, *ops: str, cores: int = 1, concurrency: int = 3) -> ServiceProcess:
    section: dict[str, Any] = {"concurrency": concurrency}
    config = {"dag": {"is_thread_op": False}, "op": dict.fromkeys(ops or ["echo"], section)}
    env = {"STARTS": str(folder), "CORES": str(cores)}
    return ServiceProcess(APPS / "held_start.py", config, arguments=ops, env=env, wait=False)


def started(folder: Path) -> list[list[str]]:
    """The Op of each worker that has come to its `init_op`, with the begin of its start and its end."""
    return [mark.read_text().split() for mark in folder.iterdir() if mark.name.isdigit()]


def in_turn(marks: list[list[str]]) -> None:
    """Each was spawned when the one before was ready, or had taken so long that it made room for it."""
    spans = sorted((float(begin), float(end)) for _, begin, end in marks)
    for (first, end), (begin, _) in itertools.pairwise(spans):
        assert begin >= min(end, first + HOLD_S) - 0.05, "told in hundredths of a second"


def wait_until_ready(service: ServiceProcess, instances: int) -> None:
    service.wait_until_ready()
    wait_until(lambda: service.metric(READY) == instances, "all are ready", on_timeout=lambda: service.log)


def test_workers_start_one_after_the_other_where_there_is_one_core(tmp_path: Path) -> None:
    with starting(tmp_path) as service:
        wait_until_ready(service, 3)
        marks = started(tmp_path)
        assert len(marks) == 3
        in_turn(marks)
        assert re.search(r"Workers: \d ready, \d starting, \d waiting for one of 1 cores", service.log)
        assert service.predict({"number": "2"})["doubled"] == "4"


def test_the_ports_are_open_while_workers_wait_for_their_start(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with starting(tmp_path) as service:
        wait_until(lambda: started(tmp_path), "the first is in its init_op", on_timeout=lambda: service.log)
        assert service.http("/health/live").status == 200
        answer = service.http("/health/ready")
        assert (answer.status, answer.json["ops"]) == (503, {"echo": {"ready": 0, "instances": 3}})
        (tmp_path / "hold").unlink()
        wait_until_ready(service, 3)


def test_each_op_has_its_first_worker_before_one_has_its_second(tmp_path: Path) -> None:
    with starting(tmp_path, "a", "b", concurrency=2) as service:
        wait_until_ready(service, 4)
        spawned = sorted(started(tmp_path), key=lambda mark: float(mark[1]))
        assert [op for op, *_ in spawned] == ["a", "b", "a", "b"]


def test_a_worker_that_hangs_in_its_init_op_does_not_hold_up_the_others(tmp_path: Path) -> None:
    (tmp_path / "hold.0").touch()
    with starting(tmp_path, concurrency=2) as service:
        service.wait_until_ready()
        service.wait_for_log("Worker echo.1 is ready")  # a thread writes the log
        assert re.findall(r"Worker (\S+) is ready", service.log) == ["echo.1"]
        (tmp_path / "hold.0").unlink()
        wait_until_ready(service, 2)


def test_workers_that_died_start_again_one_after_the_other(tmp_path: Path) -> None:
    with starting(tmp_path, concurrency=2) as service:
        wait_until_ready(service, 2)
        first = service.worker_pids()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(started(tmp_path)) == 4, "both have successors")
        wait_until_ready(service, 2)
        marks = [(tmp_path / str(pid)).read_text().split() for pid in service.worker_pids()]
        in_turn(marks)


def test_a_service_that_is_stopped_while_workers_wait_for_their_start_ends(tmp_path: Path) -> None:
    (tmp_path / "hold").touch()
    with starting(tmp_path) as service:
        wait_until(lambda: started(tmp_path), "the first is in its init_op", on_timeout=lambda: service.log)
        service.terminate()
        assert service.exit_code() == 0
        assert len(started(tmp_path)) == 1


@pytest.mark.parametrize(
    ("limit", "cores", "usable"), [("max 100000", 8, 8), ("250000 100000", 8, 3), ("50000 100000", 8, 1)]
)
def test_usable_cores_are_those_of_the_affinity_and_the_control_group(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, cores: int, usable: int
) -> None:
    (tmp_path / "cpu.max").write_text(limit + "\n")
    monkeypatch.setattr(environment, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    assert environment.usable_cores() == usable
