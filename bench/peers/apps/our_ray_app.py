"""Our service on a Ray cluster of this machine: `python -m bench.peers.apps.our_ray_app SCRIPT CONFIG`."""

from __future__ import annotations

import signal
import subprocess
import sys

from ray.cluster_utils import Cluster

from bench.peers.apps.classifier import INSTANCES

if __name__ == "__main__":
    script, config = sys.argv[1:]
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": INSTANCES, "include_dashboard": False}
    )
    command = [sys.executable, "-m", "pipeline", "ray", "up", script, "--config", config]
    front = subprocess.Popen([*command, "--address", cluster.address])
    signal.sigwait({signal.SIGTERM, signal.SIGINT, signal.SIGCHLD})
    front.terminate()
    front.wait()
    cluster.shutdown()
