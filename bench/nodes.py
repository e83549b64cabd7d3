"""Workers on other nodes while a node is lost: a killed and an added node of Ray, or a network partition.

Callers in threads send requests to an Op without a model, and count the answers of each worker. The nodes are
processes of this machine. `ray`: one of three nodes is killed after a third of the load, and a node is added
after two thirds. `partition` (as root): the network between the front and one of two nodes loses all packets
for 5 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tests.support.agent_process import run_on_agents
from tests.support.echo_load import EchoAnswer, EchoLoad
from tests.support.network_namespace import NetworkNamespace

NODES = 3
SHARE = 0.8  # of an equal share of the answers in a second: the added node has its share
START_S, TIMEOUT_S, PARTITION_S = 240.0, 10.0, 5.0


def create_config(instances: int) -> dict[str, Any]:
    """Return the configuration of a service with an instance on each node."""
    return {
        "dag": {"is_thread_op": False, "request_timeout": TIMEOUT_S},
        "op": {"echo": {"concurrency": instances, "start_timeout": START_S}},
    }


def find_share_delay(answers: Sequence[EchoAnswer], began: float, workers: set[str], nodes: int) -> float:
    """Return the seconds after `began` until workers have their share of the answers; inf if never."""
    ends = int(max(answer.at for answer in answers) - began)
    for second in range(ends):
        window = [answer for answer in answers if second <= answer.at - began < second + 1]
        count = sum(answer.worker in workers for answer in window)
        if window and count >= SHARE * len(window) / nodes:
            return second + 1.0
    return float("inf")


def describe_load(load: EchoLoad, seconds: float) -> str:
    """Return requests, failures and the longest time of an answer in words."""
    took_s = sorted(answer.took_s for answer in load.answers)
    return (
        f"{len(took_s):,} requests answered in {seconds:.0f} s, {len(load.failures)} failed or wrong; p50 "
        f"{took_s[len(took_s) // 2] * 1e3:.1f} ms, longest {took_s[-1]:.2f} s"
    )


def measure_ray(seconds: float) -> str:
    """Kill one of three nodes of Ray under load, and add one. Return the figures in words."""
    from tests.support.ray_service import NODE, RayService, run_cluster

    with run_cluster() as cluster:
        nodes = [cluster.add_node(**NODE) for _ in range(NODES)]
        with RayService(cluster, create_config(NODES)) as service:
            service.wait_until_ready(START_S, every_instance=True)
            began = time.monotonic()
            with EchoLoad(service) as load:
                time.sleep(seconds / 3)
                cluster.remove_node(nodes[0], allow_graceful=False)
                time.sleep(seconds / 3)
                known = set(load.workers)
                added_at = time.monotonic()
                cluster.add_node(**NODE)
                time.sleep(seconds / 3)
            delay_s = find_share_delay(load.answers, added_at, set(load.workers) - known, NODES)
            figures = describe_load(load, time.monotonic() - began)
            return f"{figures}; the added node has its share after {delay_s:.0f} s"


def measure_partition() -> str:
    """Cut the network between the front and one of two nodes under load. Return the figures in words."""
    with tempfile.TemporaryDirectory() as folder, NetworkNamespace() as node:
        nodes = {"timeout": 2.0}
        with run_on_agents(Path(folder), create_config(2), nodes=nodes, namespace=node) as (service, _):
            began = time.monotonic()
            with EchoLoad(service) as load:
                time.sleep(PARTITION_S)
                with node.partitioned():
                    time.sleep(PARTITION_S)
                healed_at, known = time.monotonic(), set(load.workers)
                service.wait_until_ready(START_S, every_instance=True)
                ready_s = time.monotonic() - healed_at
                time.sleep(PARTITION_S)
            delay_s = find_share_delay(load.answers, healed_at, set(load.workers) - known, 2)
            figures = describe_load(load, time.monotonic() - began)
            return (
                f"{figures}; all instances are ready {ready_s:.1f} s after the partition, and each node has "
                f"its share after {delay_s:.0f} s"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.nodes",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("scenario", choices=["ray", "partition"])
    parser.add_argument("--seconds", type=float, default=60.0, help="of load on Ray's nodes (%(default)s)")
    options = parser.parse_args()
    text = measure_ray(options.seconds) if options.scenario == "ray" else measure_partition()
    Console().print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
