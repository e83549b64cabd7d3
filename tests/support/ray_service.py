"""RayService: `paddlewheel ray up` on a Ray cluster of several nodes on this machine."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import ray
from ray._private import services
from ray.cluster_utils import Cluster

from pipeline.process.processes import module_arguments, pids
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ServiceProcess

NODE: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": 80 << 20,
    "include_dashboard": False,
    "wait": False,  # Ray would wait 30 s at most
}
START_S = 240  # for a node or an actor; several processes of Ray may share a core
_ENV = {
    "SERVICE_CONFIG": "of the front alone",  # the script reads it in each worker
    "RAY_health_check_failure_threshold": "20",  # a busy machine is no lost node
    "RAY_USAGE_STATS_ENABLED": "0",
}


_get_node = services.get_node


def _wait_for_node(gcs_address: str, node_id: str) -> Any:
    """Wait until a started node is known. Ray itself gives up after 30 s, which can't be configured."""
    give_up = time.monotonic() + START_S
    while True:
        try:
            return _get_node(gcs_address, node_id)
        except RuntimeError:
            if time.monotonic() > give_up:
                raise
            time.sleep(0.1)


@contextmanager
def run_cluster(port: int = 0) -> Iterator[Cluster]:
    """Run a head node without CPUs. `add_node(**NODE)` adds nodes. port: of the head node; 0: a free one."""
    with patch.dict(os.environ, _ENV), patch.object(services, "get_node", _wait_for_node):
        head = {**NODE, "num_cpus": 0, "gcs_server_port": port or free_port()}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


class RayService(ServiceProcess):
    """A service that `paddlewheel ray up` starts on a cluster."""

    def __init__(
        self, cluster: Cluster, config: dict[str, Any], *options: str, path: Path = APPS / "echo.py"
    ) -> None:
        """path: the script, or a model repository."""
        command = ["-m", "pipeline", "ray", "up", str(path), "--address", cluster.address]
        self._ray_up = [sys.executable, *command, *options]
        super().__init__(APPS / "echo.py", config, wait=False)

    def start(self) -> None:
        self._command = self._ray_up
        super().start()

    def find_placer(self) -> int:
        """Return the PID of the running placer."""
        placers = [pid for pid in pids() if self._is_placer(module_arguments(pid, "pipeline.nodes.on_ray"))]
        assert len(placers) == 1, placers
        return placers[0]

    def _is_placer(self, arguments: list[str]) -> bool:
        return arguments[1:] == ["once"] and json.loads(arguments[0])["front_pid"] == self.process.pid
