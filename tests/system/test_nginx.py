"""The nginx.conf of docs/deploy.md in front of a service: requests, the limit of bodies, and a stop."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import grpc
import pytest
import requests

from client.protos.pipeline_service_pb2 import Request, Response
from tests.support.followed_documents import blocks_of
from tests.support.free_ports import free_port
from tests.support.service_process import APPS, PATIENCE_S, ROOT, RPC_METHOD, ServiceProcess, wait_until

BODY_BYTES = 64 << 20


class Proxy(NamedTuple):
    """A running nginx, and the service behind it."""

    service: ServiceProcess
    url: str
    rpc_address: str
    log: Path

    def ask(self, **inputs: str) -> requests.Response:
        body = {"key": list(inputs), "value": list(inputs.values())}
        return requests.post(f"{self.url}/test/prediction", json=body, timeout=PATIENCE_S)

    def answers(self) -> bool:
        try:
            return requests.get(f"{self.url}/health/ready", timeout=PATIENCE_S).status_code == 200
        except requests.ConnectionError:
            return False


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """The configuration of the page, with free ports in place of its own. The last test ends the service."""
    folder = tmp_path_factory.mktemp("nginx")
    (text,) = (block.text for block in blocks_of(ROOT / "docs" / "deploy.md") if block.title == "nginx.conf")
    http_port, rpc_port = free_port(), free_port()
    with ServiceProcess(APPS / "echo.py", {"dag": {"http_errors": "status"}}) as service:
        replacements = {
            "127.0.0.1:18082": f"127.0.0.1:{service.http_port}",
            "127.0.0.1:8088": f"127.0.0.1:{service.rpc_port}",
            "listen 80;": f"listen 127.0.0.1:{http_port};",
            "listen 81 http2;": f"listen 127.0.0.1:{rpc_port} http2;",
        }
        for written, used in replacements.items():
            assert text.count(written) == 1, written
            text = text.replace(written, used)
        config, log = folder / "nginx.conf", folder / "nginx.log"
        config.write_text(f"daemon off; pid {folder}/nginx.pid; error_log {log};\n{text}", "utf-8")
        program = os.environ.get("NGINX") or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
        assert program is not None, "there is no nginx here; `make test-system` installs it"
        process = subprocess.Popen([program, "-p", str(folder), "-c", str(config)])
        started = Proxy(service, f"http://127.0.0.1:{http_port}", f"127.0.0.1:{rpc_port}", log)
        try:
            wait_until(started.answers, "nginx answers", on_timeout=lambda: log.read_text("utf-8"))
            yield started
        finally:
            process.terminate()
            process.wait(PATIENCE_S)


def test_nginx_passes_requests_and_calls_on(proxy: Proxy) -> None:
    assert proxy.ask(number="21").json()["value"][1] == "42"
    with grpc.insecure_channel(proxy.rpc_address) as channel:
        call = channel.unary_unary(
            RPC_METHOD,
            request_serializer=Request.SerializeToString,
            response_deserializer=Response.FromString,
        )
        message = Request(name="test", key=["number"], value=["4"])
        assert call(message, timeout=PATIENCE_S).value[1] == "8"


def test_a_body_over_the_limit_is_refused_and_the_largest_body_reaches_the_service(proxy: Proxy) -> None:
    url = f"{proxy.url}/test/prediction"
    assert requests.post(url, b" " * (BODY_BYTES + 1), timeout=PATIENCE_S).status_code == 413
    answer = requests.post(url, b" " * BODY_BYTES, timeout=PATIENCE_S)
    assert answer.status_code == 400 and answer.json()["err_no"] != 0  # of the service: this is no JSON


def test_a_stop_of_the_service_loses_no_request_of_nginx(proxy: Proxy, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(proxy.ask, number="1", action="wait", argument=str(gate))
        wait_until(Path(f"{gate}.waiting").exists, "the request runs")
        proxy.service.terminate()
        proxy.service.wait_for_log("Stopping")
        gate.touch()
        assert held.result().json()["value"][1] == "2"
    assert proxy.service.exit_code() == 0
    assert proxy.ask(number="1").status_code == 502
