"""The response cache in Debian's Redis server: shared by two servers, slow, and down."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as v2_http

from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, ServiceProcess, wait_until
from tests.support.triton_repository import write_model

CONFIG = """
backend: "python"
response_cache { enable: true }
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "N" data_type: TYPE_INT64 dims: 1 }
"""
# Answers how many requests this worker has run.
MODEL = """
class TritonPythonModel:
    runs = 0

    def execute(self, requests):
        self.runs += len(requests)
        tensor = pb_utils.Tensor("N", np.array([self.runs]))
        return [pb_utils.InferenceResponse([tensor]) for _ in requests]
"""


class Redis:
    """A running Redis server with a password, which stores nothing on disk."""

    def __init__(self, folder: Path) -> None:
        program = os.environ.get("REDIS_SERVER") or shutil.which("redis-server")
        assert program is not None, "there is no redis-server here; `make test-system` installs it"
        self.port = free_port()
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""]
        self._command += ["--requirepass", "secret", "--dir", str(folder)]
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)

    def flags(self, timeout_ms: int) -> list[str]:
        values = {"host": "127.0.0.1", "port": self.port, "socket_timeout": timeout_ms}
        return [f"--cache-config=redis,{name}={value}" for name, value in values.items()]


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Redis]:
    monkeypatch.setenv("TRITONCACHE_REDIS_PASSWORD", "secret")
    server = Redis(tmp_path)
    try:
        yield server
    finally:
        server.kill()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    write_model(folder, "counted", CONFIG, MODEL)
    return folder


def infer(service: ServiceProcess, value: float) -> int:
    """Return how many requests the worker had run with the one that made the answer."""
    x = v2_http.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.array([value], np.float32))
    with v2_http.InferenceServerClient(
        f"127.0.0.1:{service.http_port}", network_timeout=PATIENCE_S
    ) as client:
        return int(client.infer("counted", [x]).as_numpy("N")[0])


def is_hit(service: ServiceProcess, value: float) -> bool:
    """Return whether the answer to a second request comes from the cache."""
    return infer(service, value) == infer(service, value)


def test_two_servers_share_responses(redis: Redis, repository: Path) -> None:
    flags = redis.flags(timeout_ms=60_000)
    with RepositoryProcess(repository, arguments=flags) as first:
        for value in range(2, 5):
            infer(first, value)
        wait_until(lambda: is_hit(first, 1), "a response is stored")
        with RepositoryProcess(repository, arguments=flags) as second:
            assert infer(second, 1) == infer(first, 1) > 3
            metrics = second.http("/metrics").body.decode()
            assert 'nv_cache_num_hits_per_model{model="counted",version="1"} 1\n' in metrics
            assert "nv_cache_num_hits 1\n" in metrics and "nv_cache_num_entries" not in metrics

        model = repository / "counted" / "1" / "model.py"
        model.write_text(model.read_text("utf-8").replace("runs = 0", "runs = 100"), "utf-8")
        with RepositoryProcess(repository, arguments=flags) as third:
            assert infer(third, 1) == 101  # of the changed file


def test_requests_run_while_redis_is_slow_or_down(redis: Redis, repository: Path) -> None:
    with RepositoryProcess(repository, arguments=redis.flags(timeout_ms=200)) as service:
        wait_until(lambda: is_hit(service, 1), "a response is stored")
        redis.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, redis.process.pid, os.WSTOPPED)
        assert not is_hit(service, 1)
        service.wait_for_log("The Redis server of --cache-config=redis fails")
        redis.process.send_signal(signal.SIGCONT)
        wait_until(lambda: is_hit(service, 2), "the server answers again")

        redis.kill()
        assert not is_hit(service, 1)
        redis.start()
        wait_until(lambda: is_hit(service, 4), "the server answers again")
        assert "paddlewheel_redis_failures_total" in service.http("/metrics").body.decode()
