"""What is done for workers nobody complains about: probes of idle ones, and exchange before they wear out."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pipeline.process.environment import oom_kills
from tests.support import onnx_models
from tests.support.service_process import APPS, ROOT, ServiceProcess, is_running, wait_until

READY = "paddlewheel_op_ready_instances"
STARTED_AGAIN = "is started again in"
MAX_REQUESTS = 40


def service_of(tmp_path: Path, model: Path | None = None, **section: Any) -> ServiceProcess:
    if model is not None:
        section["local_service_conf"] = {"model_config": str(model), "thread_num": 1}
    config = {"dag": {"is_thread_op": False}, "op": {"moody": section}}
    return ServiceProcess(APPS / "moody.py", config, env={"MOOD": str(tmp_path / "mood")})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_models.serving(tmp_path_factory.mktemp("onnx"))


def until_replaced(service: ServiceProcess, worker: int) -> None:
    wait_until(lambda: not is_running(worker), "it is found out", on_timeout=lambda: service.log)
    service.wait_until_ready()


@pytest.fixture
def probed(tmp_path: Path, model: Path) -> Iterator[ServiceProcess]:
    with service_of(tmp_path, model, probe_interval=0.2, run_timeout=1) as service:
        yield service


@pytest.mark.parametrize(
    ("mood", "told"),
    [("fail", "failed a probe: the card has fallen off the bus"), ("hang", "did not answer a probe in 1 s")],
)
def test_an_idle_worker_whose_model_fails_or_hangs_is_replaced(
    probed: ServiceProcess, tmp_path: Path, mood: str, told: str
) -> None:
    (worker,) = probed.worker_pids()
    (tmp_path / "mood").write_text(mood)
    wait_until(
        lambda: probed.http("/health/ready").status == 503, "readiness tells", on_timeout=lambda: probed.log
    )
    (tmp_path / "mood").unlink()
    until_replaced(probed, worker)
    probed.wait_for_log(told)
    assert probed.predict({})["done"] == "None"


def test_an_idle_worker_that_stands_still_is_replaced_though_its_op_has_no_model(tmp_path: Path) -> None:
    with service_of(tmp_path, probe_interval=0.2, run_timeout=1) as service:
        (worker,) = service.worker_pids()
        os.kill(worker, signal.SIGSTOP)
        until_replaced(service, worker)
        service.wait_for_log("did not answer a probe")


def test_workers_are_exchanged_after_so_many_requests_and_no_request_is_lost(tmp_path: Path) -> None:
    with service_of(tmp_path, concurrency=2, max_requests_per_worker=MAX_REQUESTS) as service:
        wait_until(lambda: service.metric(READY) == 2, "both are ready")
        first = set(service.worker_pids())

        def ask(_: int) -> set[int]:
            seen: set[int] = set()
            while first & set(service.worker_pids()):
                seen.add(int(service.predict({})["pid"]))
            return seen

        with ThreadPoolExecutor(3) as pool:
            seen = set().union(*pool.map(ask, range(3)))
        assert first <= seen, "both had served"
        assert service.metric("paddlewheel_op_restarts_total") == 0
        service.wait_for_log(f"max_requests_per_worker {MAX_REQUESTS}")


def test_a_worker_that_grew_too_large_is_exchanged(tmp_path: Path) -> None:
    with service_of(tmp_path, max_worker_rss=300) as service:
        (worker,) = service.worker_pids()
        assert service.predict({"do": "grow", "argument": "400"})["pid"] == str(worker)
        until_replaced(service, worker)
        assert service.metric("paddlewheel_resident_bytes", process="moody.0") < 300e6
        service.wait_for_log("max_worker_rss 300")


def test_a_limit_below_what_a_worker_has_at_its_start_is_told_and_not_applied(tmp_path: Path) -> None:
    with service_of(tmp_path, max_worker_rss=1) as service:
        workers = service.worker_pids()
        service.wait_for_log("more than max_worker_rss 1")
        assert service.predict({})["pid"] == str(workers[0])
        assert service.worker_pids() == workers


def test_workers_that_become_ready_and_die_in_turn_make_a_service_that_is_not_ready(tmp_path: Path) -> None:
    with service_of(tmp_path, probe_interval=0) as service:
        for deaths in range(3):
            wait_until(lambda: service.metric(READY) == 1, "a worker is ready")
            assert service.http("/health/ready").status == 200, f"after {deaths} deaths"
            let_it_die(service, deaths)
        wait_until(lambda: service.metric(READY) == 1, "the next is ready")
        answer = service.http("/health/ready")
        assert (answer.status, answer.json["ops"]["moody"]["ready"]) == (503, 0)
        assert service.http("/health/live").status == 200
        service.predict({})
        assert service.http("/health/ready").status == 200, "it has answered"


def test_a_worker_that_dies_again_and_again_unasked_is_started_at_growing_intervals(tmp_path: Path) -> None:
    with service_of(tmp_path, probe_interval=0) as service:
        for deaths in range(5):
            let_it_die(service, deaths)
        assert pauses_s(service) == [0.1, 0.2, 0.4, 0.8, 1.6]
        wait_until(lambda: service.metric(READY) == 1, "the next is ready")
        assert service.process.poll() is None, "it started each time: no reason to give up"
        service.predict({})
        let_it_die(service, 5)
        assert pauses_s(service)[-1] == 0.1, "it had answered: callers wait for its successor"
        assert service.metric("paddlewheel_op_restarts_total") == 6


def let_it_die(service: ServiceProcess, deaths: int) -> None:
    """Once it is ready. deaths: those before."""
    wait_until(lambda: service.metric(READY) == 1, "a worker is ready", on_timeout=lambda: service.log)
    service.kill_worker()
    service.wait_for_log(STARTED_AGAIN, deaths + 1)


def pauses_s(service: ServiceProcess) -> list[float]:
    """Before each new start of a worker that had died."""
    return [float(pause) for pause in re.findall(rf"{STARTED_AGAIN} (\S+) s", service.log)]


def test_readiness_tells_of_a_run_that_hangs_before_its_time_limit(tmp_path: Path) -> None:
    with service_of(tmp_path, run_timeout=6, probe_interval=0) as service, ThreadPoolExecutor(1) as pool:
        workers = service.worker_pids()
        service.predict({})
        hanging = pool.submit(service.ask, {"do": "native", "argument": str(tmp_path / "inside")})
        wait_until(lambda: service.http("/health/ready").status == 503, "readiness tells")
        assert service.worker_pids() == workers, "its time limit is yet to come"
        assert hanging.result()["err_no"] == 9000, "it hung twice, the second time alone"
        service.wait_until_ready()


def test_memory_is_told_of_each_process_and_on_cards_where_the_driver_tells(tmp_path: Path) -> None:
    section = {"local_service_conf": {"device_type": 1, "devices": "0"}}
    search_path = os.pathsep.join((str(ROOT), str(APPS / "nvml")))
    config = {"op": {"moody": section}}
    with ServiceProcess(APPS / "moody.py", config, env={"PYTHONPATH": search_path}) as service:
        assert service.metric("paddlewheel_gpu_memory_bytes", process="moody.0") == 10_000_000
        assert service.metric("paddlewheel_gpu_memory_bytes") == 10_000_000, "others' are not told"
        assert service.metric("paddlewheel_resident_bytes", process="moody.0") > 10_000_000
        assert service.metric("paddlewheel_resident_bytes", process="front") > 10_000_000


def test_the_kernel_is_told_to_take_workers_before_the_front_where_memory_runs_out(tmp_path: Path) -> None:
    """A stand-in for running out of memory, which takes a memory cgroup: bench/out_of_memory.py does it."""
    with service_of(tmp_path, concurrency=2) as service:
        wait_until(lambda: service.metric(READY, op="moody") == 2, "both instances are ready")
        front, *workers = (
            int(Path(f"/proc/{pid}/oom_score_adj").read_text())
            for pid in (service.process.pid, *service.worker_pids())
        )
    assert len(workers) == 2
    assert min(workers) >= min(1000, front + 500) > front


def test_kills_of_the_kernel_for_want_of_memory_are_counted(tmp_path: Path) -> None:
    two, one, none = tmp_path / "events", tmp_path / "oom_control", tmp_path / "not there"
    two.write_text("low 0\nhigh 9\nmax 7\noom 5\noom_kill 3\noom_group_kill 0\n")
    one.write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 4\n")
    assert oom_kills((two, one, none)) == 7
    assert oom_kills((none,)) == 0


COUNTED_IN_A_FILE = """
from pathlib import Path
from pipeline.front.pool import worker_process

worker_process.oom_kills = lambda: int(Path({counter!r}).read_text())
"""


def test_a_death_for_want_of_memory_is_named_in_the_log(tmp_path: Path) -> None:
    """The kernel's counter is a file here: only a worker that died while it grew ran out of memory."""
    counter = tmp_path / "oom_kills"
    counter.write_text("3")
    (tmp_path / "sitecustomize.py").write_text(COUNTED_IN_A_FILE.format(counter=str(counter)), "utf-8")
    config = {"dag": {"is_thread_op": False}}
    search_path = os.pathsep.join((str(tmp_path), str(ROOT)))
    with ServiceProcess(APPS / "moody.py", config, env={"PYTHONPATH": search_path}) as service:
        for kills, reason in (
            ("3", "killed by SIGKILL\n"),
            (
                "4",
                "killed by SIGKILL when memory ran out: give the service more, fewer instances",
            ),
        ):
            (worker,) = service.worker_pids()
            counter.write_text(kills)
            os.kill(worker, signal.SIGKILL)
            service.wait_for_log(f"(pid {worker}) died: {reason}")
            service.wait_until_ready()
