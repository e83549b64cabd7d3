"""A process that may open few files: connections are bounded by that, so that workers can be replaced."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.tls import Tls
from pipeline.front.listeners import WORKER_FILES
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until
from tests.support.triton_repository import write_model

TLS = ROOT / "tests" / "fixtures" / "tls"
PAIR = {"cert": str(TLS / "server.pem"), "key": str(TLS / "server.key")}
FILES = 160
MODEL = """
backend: "python"
instance_group {{ count: {instances} kind: KIND_CPU }}
input {{ name: "X" data_type: TYPE_FP32 dims: 2 }}
output {{ name: "Y" data_type: TYPE_FP32 dims: 2 }}
"""
CODE = """
class TritonPythonModel:
    def execute(self, requests):
        return []
"""


@pytest.mark.parametrize(("config", "tls"), [({}, None), ({"tls": PAIR}, Tls(TLS / "ca.pem"))])
def test_connections_leave_descriptors_for_workers_and_for_others(
    config: dict[str, Any], tls: Tls | None
) -> None:
    with (
        ServiceProcess(APPS / "few_files.py", config, env={"FILES": str(FILES)}, tls=tls) as service,
        contextlib.ExitStack() as opened,
    ):
        assert f"this process may open {FILES} files" in service.log
        connect_often(service, opened)
        check_replacement(service)


@pytest.mark.parametrize(
    ("limits", "says"), [({}, False), ({"max_connections": 9000}, True)], ids=["default", "set"]
)
def test_a_limit_of_files_that_leaves_thousands_of_connections_is_news_where_the_number_is_set(
    limits: dict[str, int], says: bool
) -> None:
    with ServiceProcess(APPS / "few_files.py", {"limits": limits}, env={"FILES": "9000"}) as service:
        assert ("connections of each port are the most" in service.log) is says


@pytest.fixture
def shared_files() -> Iterator[list[str]]:
    paths = [Path(f"/dev/shm/paddlewheel-test-{uuid.uuid4().hex}") for _ in range(FILES)]
    for path in paths:
        path.write_bytes(b"x")
    yield [path.name for path in paths]
    for path in paths:
        path.unlink()


def test_shared_memory_leaves_descriptors_for_workers_and_for_connections(shared_files: list[str]) -> None:
    with (
        ServiceProcess(APPS / "few_files.py", env={"FILES": str(FILES)}) as service,
        contextlib.ExitStack() as opened,
    ):
        answers = []
        for number, key in enumerate(shared_files):
            path = f"/v2/systemsharedmemory/region/r{number}/register"
            answers.append(service.http(path, json.dumps({"key": key, "byte_size": 1})))
        assert [answer.status for answer in answers].count(200) == FILES // 8
        assert answers[-1].json["error"].startswith(f"{FILES // 8} shared memory regions are registered")
        connect_often(service, opened)
        check_replacement(service)


def test_models_that_may_be_loaded_later_keep_descriptors_for_each_of_their_instances(tmp_path: Path) -> None:
    limit, smaller_limit = (read_connection_limit(tmp_path / str(count), count) for count in (1, 2))
    assert limit - smaller_limit == WORKER_FILES // 2, "half of a worker's files at each of two ports"


def read_connection_limit(repository: Path, instances: int) -> int:
    """Return the connections of each port that a server has for a model that is not loaded."""
    write_model(repository, "later", MODEL.format(instances=instances), CODE)
    ports = {"http_port": free_port(), "rpc_port": free_port()}
    options = [f"--model-repository={repository}", "--model-control-mode=explicit", "--allow-metrics=false"]
    options += [f"--http-port={ports['http_port']}", f"--grpc-port={ports['rpc_port']}"]
    env = {"FILES": str(FILES)}
    with ServiceProcess(APPS / "few_files.py", ports, arguments=["serve", *options], env=env) as service:
        limit = re.search(r"(\d+) connections of each port are the most", service.log)
        assert limit is not None, service.log
        return int(limit[1])


def connect_often(service: ServiceProcess, opened: contextlib.ExitStack) -> None:
    """Open more connections to each port than the process may have files."""
    for port in (service.http_port, service.rpc_port):
        for _ in range(FILES):
            opened.enter_context(socket.create_connection(("127.0.0.1", port)))


def check_replacement(service: ServiceProcess) -> None:
    """Kill the worker; another one takes its place, and answers a client."""
    killed = service.kill_worker()
    wait_until(lambda: service.worker_pids() not in ([], [killed]), "the worker is replaced")
    wait_until(lambda: service.ask({"number": "21"})["err_no"] == 0, "those that say nothing give way")
    assert "can't be spawned" not in service.log
