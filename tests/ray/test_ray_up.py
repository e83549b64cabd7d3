"""`paddlewheel ray up` on a Ray cluster of this machine: nodes and the placer are killed, nodes are added."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.cluster_utils import Cluster

from pipeline.nodes.on_ray.node_agent import NodeAgent
from tests.support.command_line import paddlewheel, refused
from tests.support.echo_load import ENOUGH, EchoLoad
from tests.support.free_ports import free_port
from tests.support.ray_service import NODE, START_S, RayService, run_cluster
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until
from tests.support.triton_repository import write_model
from tests.upgrades.test_upgrades import TENSORS, classifies, infer

pytestmark = pytest.mark.timeout(900)
NO_CPU = "Op echo needs 1 CPU; free in the cluster: none"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with run_cluster() as running:
        yield running


def create_certificate(cert: Path, key: Path, host: str) -> None:
    """Create a certificate for an IP address, which is its own authority."""
    command = [
        "openssl",
        "req",
        "-x509",
        "-nodes",
        "-subj",
        "/CN=node",
        "-addext",
        f"subjectAltName=IP:{host}",
    ]
    command += [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-out",
        str(cert),
        "-keyout",
        str(key),
    ]
    subprocess.run(command, check=True, capture_output=True)


def test_no_request_fails_when_the_placer_and_a_node_are_killed_and_a_node_is_added(
    cluster: Cluster, tmp_path: Path
) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    create_certificate(cert, key, cluster.address.rpartition(":")[0])
    lost, kept = (cluster.add_node(**NODE) for _ in range(2))
    config = {
        "dag": {"is_thread_op": False, "request_timeout": START_S},
        "op": {"echo": {"concurrency": 2, "start_timeout": START_S}},
    }
    with RayService(cluster, config, f"--cert={cert}", f"--key={key}", f"--ca={cert}") as service:
        service.wait_until_ready(START_S, every_instance=True)
        check_encryption(service, cert)
        with EchoLoad(service) as load:
            load.wait_for_answers(2, "both nodes answer", START_S)
            workers = set(load.workers)
            os.kill(service.find_placer(), signal.SIGKILL)
            wait_until(lambda: service.log.count("Placer is ready") == 2, "a new placer is ready", START_S)
            load.workers.clear()
            load.wait_for_answers(
                2, "both nodes go on without the placer that has started their agents", START_S
            )
            assert set(load.workers) == workers
            cluster.remove_node(lost, allow_graceful=False)
            wait_until(
                lambda: NO_CPU in service.log, "a worker waits for a node", START_S, lambda: service.log
            )
            known = frozenset(load.workers)
            answered = load.workers.total()
            wait_until(lambda: load.workers.total() > answered + ENOUGH, "the other node goes on")
            added = cluster.add_node(**NODE)
            load.wait_for_answers(1, "the added node answers", START_S, known)
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
    config = {"op": {"echo": {"start_timeout": 20}}}
    with RayService(cluster, config, "--resources", "echo=CPU:1,fast:2") as service:
        reason = "Op echo needs 1 CPU, 2 fast; no node of the cluster has as much"
        service.wait_for_log(f"waits for a node, for 20 s at most (start_timeout): {reason}")
        assert service.exit_code() == 1
        assert "it did not start within 20 s" in service.log


def test_an_unknown_op_in_resources_is_named(cluster: Cluster) -> None:
    with RayService(cluster, {}, "--resources", "ocr=GPU:1") as service:
        assert service.process.wait(START_S) == 2
        assert "--resources ocr=...: there is no such Op or model, only echo" in service.log


def test_two_fronts_of_one_repository_share_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    write_model(tmp_path, "model", TENSORS, classifies())
    node = cluster.add_node(**{**NODE, "num_cpus": 2})
    with contextlib.ExitStack() as stack:
        fronts = [stack.enter_context(run_repository(cluster, tmp_path)) for _ in range(2)]
        for front in fronts:
            front.wait_until_ready(START_S)
            assert infer(front, 9).json["outputs"][0]["data"] == [2]
        fronts[0].process.kill()
        fronts[0].process.wait()
        assert infer(fronts[1], 10).json["outputs"][0]["data"] == [3]
    cluster.remove_node(node)


def test_a_service_goes_on_when_its_cluster_has_started_again() -> None:
    port = free_port()
    config = {"dag": {"request_timeout": START_S}, "op": {"echo": {"start_timeout": START_S}}}
    with contextlib.ExitStack() as stack:
        with run_cluster(port) as first:
            first.add_node(**NODE)
            service = stack.enter_context(RayService(first, config))
            service.wait_until_ready(START_S)
            assert service.predict({"number": "2"})["doubled"] == "4"
        wait_until(lambda: service.http("/health/ready").status == 503, "the worker is lost")
        with run_cluster(port) as second:
            second.add_node(**NODE)
            service.wait_until_ready(START_S)
            assert service.predict({"number": "3"})["doubled"] == "6"
            service.terminate()
            assert service.exit_code() == 0


def run_repository(cluster: Cluster, folder: Path) -> RayService:
    """Start a front of a model repository with one worker."""
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    flags = [f"http-port={ports['http_port']}", f"grpc-port={ports['rpc_port']}", "allow-metrics=false"]
    options = [word for flag in flags for word in ("--flag", flag)]
    return RayService(cluster, ports, *options, "--resources", "model=CPU:1", path=folder)


def check_encryption(service: ServiceProcess, ca_file: Path) -> None:
    """Check that the agents of a service encrypt their connections, with certificates of the authority."""
    addresses = re.findall(r"Worker \S+ runs on the node of (\S+):(\d+)", service.log)
    context = ssl.create_default_context(cafile=ca_file)
    assert addresses
    for host, port in addresses:
        with socket.create_connection((host, int(port)), START_S) as connection:
            context.wrap_socket(connection, server_hostname=host).close()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (["--cert", "a.pem"], "--cert, --key and --ca belong together"),
        (["--cert", "a.pem", "--key", "a.key", "--ca", "absent.pem"], "--ca absent.pem can't be used"),
        (["--flag", "http-port=9000"], "--flag is for a model repository"),
    ],
)
def test_mistakes_in_options_are_told_before_ray_is_used(options: list[str], error: str) -> None:
    assert error in refused(paddlewheel("ray", "up", APPS / "echo.py", *options))


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
