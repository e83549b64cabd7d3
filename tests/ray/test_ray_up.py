"""`paddlewheel ray up` on a Ray cluster of this machine: a node is killed, another is added."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from pipeline.nodes.on_ray.node_agent import NodeAgent
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

START_S = 240  # for an actor; several processes of Ray may share a core
pytestmark = pytest.mark.timeout(900)
ENOUGH = 30  # answers in a row that show that a service goes on
NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "wait": False,  # Ray would wait 30 s at most
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head node without CPUs. The tests add nodes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVICE_CONFIG", "of the front alone")  # the script reads it in each worker
        patch.setenv("RAY_health_check_failure_threshold", "20")  # a busy machine is no lost node
        started = Cluster(
            initialize_head=True, head_node_args={**NODE, "num_cpus": 0, "gcs_server_port": free_port()}
        )
        try:
            yield started
        finally:
            ray.shutdown()
            started.shutdown()


class RayService(ServiceProcess):
    """A service that `paddlewheel ray up` starts on a cluster."""

    def __init__(self, cluster: Cluster, config: dict[str, Any], *options: str, wait: bool = True) -> None:
        command = ["-m", "pipeline", "ray", "up", str(APPS / "echo.py"), "--address", cluster.address]
        self._ray_up = [sys.executable, *command, *options]
        super().__init__(APPS / "echo.py", config, wait=wait)

    def start(self) -> None:
        self._command = self._ray_up
        super().start()


class Load:
    """Sends requests from several threads until the end of the `with` block, and counts their outcomes."""

    def __init__(self, service: ServiceProcess, clients: int = 3) -> None:
        self.failures: list[object] = []
        self.workers: Counter[str] = Counter()  # answers by the worker's PID
        self._service = service
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._send, args=(number,)) for number in range(clients)]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _send(self, number: int) -> None:
        while not self._stopped.wait(0.01):
            try:
                answer = self._service.predict({"number": str(number)})
            except (AssertionError, OSError) as exc:
                self.failures.append(exc)
                continue
            if answer["doubled"] != str(2 * number):
                self.failures.append(answer)
            self.workers[answer["pid"]] += 1

    def wait_for_answers(self, workers: int, described: str, known: frozenset[str] = frozenset()) -> None:
        """Wait until so many workers, without the known ones, have answered `ENOUGH` requests each."""

        def are_there() -> bool:
            counts = [count for pid, count in dict(self.workers).items() if pid not in known]
            return sum(count >= ENOUGH for count in counts) >= workers

        wait_until(are_there, described, START_S, lambda: f"{self.workers}\n{self._service.log}")


def test_a_killed_node_fails_no_request_and_an_added_node_takes_its_share(cluster: Cluster) -> None:
    lost, kept = (cluster.add_node(**NODE) for _ in range(2))
    config = {
        "dag": {"is_thread_op": False, "request_timeout": START_S},
        "op": {"echo": {"concurrency": 2, "start_timeout": START_S}},
    }
    with RayService(cluster, config, wait=False) as service:
        service.wait_until_ready(START_S, every_instance=True)
        with Load(service) as load:
            load.wait_for_answers(2, "both nodes answer")
            cluster.remove_node(lost, allow_graceful=False)
            service.wait_for_log("Op echo needs 1 CPU; free in the cluster: none")
            known = frozenset(load.workers)
            answered = load.workers.total()
            wait_until(lambda: load.workers.total() > answered + ENOUGH, "the other node goes on")
            added = cluster.add_node(**NODE)
            load.wait_for_answers(1, "the added node answers", known)
        assert load.failures == []
        service.terminate()
        assert service.exit_code() == 0
    for node in (kept, added):
        cluster.remove_node(node)


def test_a_folder_that_a_node_lacks_is_named(tmp_path: Path) -> None:
    started = NodeAgent().start("0123456789abcdef", str(tmp_path / "service"))
    assert started.address == ""
    assert started.error.endswith(f"has no folder {tmp_path}/service; copy the service there")


def test_a_resource_that_no_node_has_is_named_until_the_deadline(cluster: Cluster) -> None:
    config = {"op": {"echo": {"start_timeout": 10}}}
    with RayService(cluster, config, "--resources", "echo=CPU:1,fast:2", wait=False) as service:
        reason = "Op echo needs 1 CPU, 2 fast; no node of the cluster has as much"
        service.wait_for_log(f"waits for a node, for 10 s at most (start_timeout): {reason}")
        assert service.exit_code() == 1
        assert "it did not start within 10 s" in service.log


def test_an_address_without_a_cluster_ends_the_command() -> None:
    command = [sys.executable, "-m", "pipeline", "ray", "up", str(APPS / "echo.py")]
    done = subprocess.run(
        [*command, "--address", f"127.0.0.1:{free_port()}"],
        cwd=ROOT,
        env={**os.environ, "SERVICE_CONFIG": "absent.yml", "RAY_gcs_rpc_server_connect_timeout_s": "1"},
        capture_output=True,
        text=True,
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 2
    assert "the Ray cluster at 127.0.0.1:" in done.stderr
