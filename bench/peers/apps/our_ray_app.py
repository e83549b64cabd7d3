"""Our service on a Ray cluster of this machine: `python -m bench.peers.apps.our_ray_app SCRIPT CONFIG`."""

from __future__ import annotations

import signal
import subprocess
import sys

from bench.peers.apps.classifier import INSTANCES
from tests.support.ray_service import NODE, run_cluster

if __name__ == "__main__":
    script, config = sys.argv[1:]
    command = [sys.executable, "-m", "pipeline", "ray", "up", script, "--config", config]
    with run_cluster() as cluster:
        cluster.add_node(**{**NODE, "num_cpus": INSTANCES})
        front = subprocess.Popen([*command, "--address", cluster.address])
        signal.sigwait({signal.SIGTERM, signal.SIGINT})
        front.terminate()
        front.wait()
