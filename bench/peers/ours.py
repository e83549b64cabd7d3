"""Our service for a comparison: the default service with the given model, and no other manual settings."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from bench.load import CannotMeasure
from bench.peers.dialects import PAIRS, V2, Dialect
from bench.peers.figures import Choice
from bench.peers.scenarios import Model
from bench.peers.server import Endpoint, Server, running
from bench.peers.subjects import Ours
from bench.running import ROOT, default_config, free_ports

SCRIPT = ROOT / "web_service.py"


class OurService(NamedTuple):
    server: Server
    port: int
    choice: Choice

    def endpoint(self, dialect: Dialect) -> Endpoint:
        """Return the endpoint for a comparison: KServe v2 for a peer that speaks it, else key/value JSON."""
        if dialect is V2:
            return Endpoint(self.port, "/v2/models/bert/infer", V2)
        return Endpoint(self.port, "/bert/prediction", PAIRS)


def instances() -> int:
    """Return the number of instances in config.yml, which the peers get, too."""
    count: int = default_config()["op"]["bert"]["concurrency"]
    return count


@contextlib.contextmanager
def our_service(
    ours: Ours,
    model: Model,
    text: str,
    *,
    script: Path = SCRIPT,
    env: Mapping[str, str] = os.environ,
) -> Iterator[OurService]:
    """Start our service after `auto` has chosen, so that its start takes as long as later starts.

    script: serves the same Op. Raises CannotMeasure.
    """
    config, (http_port, rpc_port) = default_config(), free_ports(2)
    del config["shards"]  # as `auto` chooses
    config |= ours.service
    config["dag"] |= ours.dag
    config["op"]["bert"] |= ours.op
    conf = config["op"]["bert"]["local_service_conf"]
    conf |= {"model_config": str(model.directory), "precision": ours.precision, "engine": ours.engine}
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="utf-8") as file:
        yaml.safe_dump(config | {"http_port": http_port, "rpc_port": rpc_port}, file)
        file.flush()
        command = [sys.executable, str(script), "--config", file.name]
        choice = _chosen(command, ours, model)
        if ours.on_ray:
            command = [sys.executable, "-m", "bench.peers.apps.our_ray_app", str(script), file.name]
            env = {**env, "PYTHONPATH": str(ROOT)}
        endpoint = Endpoint(http_port, "/bert/prediction", PAIRS)
        with running(command, endpoint, env, text) as server:
            yield OurService(server, http_port, choice)


def _chosen(command: list[str], ours: Ours, model: Model) -> Choice:
    began = time.monotonic()
    done = subprocess.run([*command, "--print-config"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CannotMeasure(f"{ours.name} can't be configured: {done.stderr.strip()}")
    conf: dict[str, Any] = yaml.safe_load(done.stdout)["op"]["bert"]["local_service_conf"]
    return Choice(model.key, ours.key, conf["engine"], conf["precision"], time.monotonic() - began)
