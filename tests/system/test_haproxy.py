"""docker/haproxy.cfg in front of two services: a front that is killed under load fails no request.

FAILOVER_REQUESTS=20000 is the measurement of docs/deploy.md.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from client.errors import ClientError
from client.http_client import HttpClient
from client.rpc_client import RpcClient
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, ServiceProcess, wait_until

CONFIG = ROOT / "docker" / "haproxy.cfg"
REQUESTS = int(os.environ.get("FAILOVER_REQUESTS", "600"))
THREADS = 16
PENDING = "paddlewheel_pending_requests"


class Balancer(NamedTuple):
    """A running HAProxy, and the two services behind it."""

    fronts: tuple[ServiceProcess, ServiceProcess]
    url: str
    rpc_address: str


@pytest.fixture
def balancer(tmp_path: Path) -> Iterator[Balancer]:
    """The configuration of docker/, with free ports in place of its own."""
    program = os.environ.get("HAPROXY") or shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program is not None, "there is no HAProxy here; `make test-system` installs it"
    config = {"dag": {"http_errors": "status"}}
    with (
        ServiceProcess(APPS / "echo.py", config) as first,
        ServiceProcess(APPS / "echo.py", config) as second,
    ):
        http_port, rpc_port = free_port(), free_port()
        text = CONFIG.read_text("utf-8")
        for written, used in {
            " :80\n": f" 127.0.0.1:{http_port}\n",
            " :81 ": f" 127.0.0.1:{rpc_port} ",
            "127.0.0.1:18082 ": f"127.0.0.1:{first.http_port} ",
            "127.0.0.1:28082 ": f"127.0.0.1:{second.http_port} ",
            "127.0.0.1:8088 ": f"127.0.0.1:{first.rpc_port} ",
            "127.0.0.1:28088 ": f"127.0.0.1:{second.rpc_port} ",
            "check port 18082 ": f"check port {first.http_port} ",
            "check port 28082 ": f"check port {second.http_port} ",
            # A busy machine may take longer for a health check than its interval; a killed front refuses it.
            "timeout queue 5s\n": f"timeout queue 5s\n    timeout check {PATIENCE_S:g}s\n",
        }.items():
            assert text.count(written) == 1, written
            text = text.replace(written, used)
        (tmp_path / "haproxy.cfg").write_text(text, "utf-8")
        with (tmp_path / "haproxy.log").open("wb") as log:
            process = subprocess.Popen(
                [program, "-db", "-f", str(tmp_path / "haproxy.cfg")], stdout=log, stderr=log
            )
        started = Balancer((first, second), f"http://127.0.0.1:{http_port}", f"127.0.0.1:{rpc_port}")
        try:
            for client in clients(started):
                with client:
                    wait_until(lambda client=client: answers(client), "HAProxy answers")
            yield started
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def clients(balancer: Balancer) -> tuple[HttpClient, RpcClient]:
    """Clients of one address without retries of their own."""
    http = HttpClient(balancer.url, "test", timeout_s=PATIENCE_S, retries=0)
    return http, RpcClient(balancer.rpc_address, "test", timeout_s=PATIENCE_S, retries=0)


def answers(client: HttpClient | RpcClient) -> bool:
    try:
        return client.predict({"number": "1"}).texts["doubled"] == "2"
    except ClientError:
        return False


def test_no_request_fails_when_a_front_is_killed_under_load(balancer: Balancer, tmp_path: Path) -> None:
    mark = tmp_path / "held"
    hold = {"number": "7", "action": "wait_once", "argument": str(mark)}
    third = threading.Semaphore(0)
    http, rpc = clients(balancer)

    def ask(number: int) -> str:
        doubled = (http, rpc)[number % 2].predict({"number": str(number)}).texts["doubled"]
        third.release()
        return doubled

    with http, rpc, ThreadPoolExecutor(THREADS) as pool:
        held = pool.submit(http.predict, hold)
        wait_until(Path(f"{mark}.gate.waiting").exists, "the request runs")
        killed, left = sorted(balancer.fronts, key=lambda front: front.metric(PENDING), reverse=True)
        results = [pool.submit(ask, number) for number in range(REQUESTS)]
        for _ in range(REQUESTS // 3):
            assert third.acquire(timeout=PATIENCE_S)
        killed.process.kill()
        assert held.result().texts["doubled"] == "14"
        assert [result.result() for result in results] == [str(2 * number) for number in range(REQUESTS)]
    assert left.answered()["ok"] > REQUESTS // 3
