"""A process that may open few files: connections are bounded by that, so that workers can be replaced."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from client.tls import Tls
from tests.support.service_process import APPS, ROOT, ServiceProcess, wait_until

TLS = ROOT / "tests" / "fixtures" / "tls"
PAIR = {"cert": str(TLS / "server.pem"), "key": str(TLS / "server.key")}
FILES = 160


@pytest.mark.parametrize(("config", "tls"), [({}, None), ({"tls": PAIR}, Tls(TLS / "ca.pem"))])
def test_connections_leave_descriptors_for_workers_and_for_others(
    config: dict[str, Any], tls: Tls | None
) -> None:
    with (
        ServiceProcess(APPS / "few_files.py", config, env={"FILES": str(FILES)}, tls=tls) as service,
        contextlib.ExitStack() as opened,
    ):
        assert f"this process may open {FILES} files" in service.log
        for port in (service.http_port, service.rpc_port):
            for _ in range(FILES):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        killed = service.kill_worker()
        wait_until(lambda: service.worker_pids() not in ([], [killed]), "the worker is replaced")
        wait_until(lambda: service.ask({"number": "21"})["err_no"] == 0, "those that say nothing give way")
        assert "can't be spawned" not in service.log


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
        for port in (service.http_port, service.rpc_port):
            for _ in range(FILES):
                opened.enter_context(socket.create_connection(("127.0.0.1", port)))
        killed = service.kill_worker()
        wait_until(lambda: service.worker_pids() not in ([], [killed]), "the worker is replaced")
        wait_until(lambda: service.ask({"number": "21"})["err_no"] == 0, "those that say nothing give way")
        assert "can't be spawned" not in service.log
