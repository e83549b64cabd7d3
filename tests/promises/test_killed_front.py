"""SIGKILL of the front process: whatever its workers are doing, nothing of the service is left."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess, is_running, wait_until

WORKERS = 3


@pytest.fixture
def service() -> Iterator[ServiceProcess]:
    config = {"dag": {"is_thread_op": False}, "op": {"moody": {"concurrency": WORKERS}}}
    with ServiceProcess(APPS / "moody.py", config) as running:
        wait_until(lambda: running.metric("paddlewheel_op_ready_instances") == WORKERS, "all are ready")
        yield running


def test_workers_end_with_the_front_in_a_native_call_and_after_a_hook_forked(
    service: ServiceProcess, tmp_path: Path
) -> None:
    workers = service.worker_pids()
    child = int(service.predict({"do": "fork"})["done"])
    daemon = int(service.predict({"do": "fork", "argument": "session"})["done"])
    assert not shares_memory(child)
    try:
        with ThreadPoolExecutor(1) as pool:
            native = {"do": "native", "argument": str(tmp_path / "inside")}
            asked = pool.submit(service.ask, native)
            wait_until((tmp_path / "inside").exists, "a worker is inside the call")
            service.process.kill()
            service.process.wait(PATIENCE_S)  # its last thread closes the ports
            wait_until(lambda: not any(map(is_running, workers)), "the workers are gone")
            assert isinstance(asked.exception(), OSError)
        wait_until(lambda: not is_running(child), "what a hook has forked is gone, too")
        assert is_running(daemon), "a child with a session of its own was meant to go on"
        for port in (service.http_port, service.rpc_port):
            assert is_free(port)
    finally:
        os.kill(daemon, signal.SIGKILL)


def test_what_a_hook_has_forked_ends_with_its_worker(service: ServiceProcess) -> None:
    forked = service.predict({"do": "fork"})
    os.kill(int(forked["pid"]), signal.SIGKILL)
    wait_until(lambda: not is_running(int(forked["done"])), "its child is gone, too")


def test_a_forked_child_that_returns_from_the_hook_does_not_answer(service: ServiceProcess) -> None:
    answer = service.predict({"do": "fork_and_return"})
    child = int(answer["done"])
    assert child, "the parent has answered"
    wait_until(lambda: not is_running(child), "the child has ended")
    assert service.predict({})["done"] == "None"
    assert service.metric("paddlewheel_op_restarts_total") == 0


def shares_memory(pid: int) -> bool:
    """Whether the process has a part of the service's shared memory, mapped or open."""
    opened = [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    return "memfd:paddlewheel" in Path(f"/proc/{pid}/maps").read_text() + " ".join(opened)


def is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("::", port))
        probe.listen()
        return True
