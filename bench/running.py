"""A service started for a measurement: a script, its configuration with free ports, its processes."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.load import CannotMeasure
from bench.processes import children, cpu_s

ROOT = Path(__file__).resolve().parent.parent
DEMO_MODEL = ROOT / "models" / "demo"
_START_S = 120.0
_STOP_S = 30.0


class RunningService:
    """The processes of a service and its doors. CPU and memory are those of front and workers."""

    def __init__(self, process: subprocess.Popen[bytes], http_port: int, rpc_port: int, log: Path) -> None:
        self.front = process.pid
        self.ports = http_port, rpc_port
        self._log = log
        self.workers: list[int] = []
        self.url = f"http://127.0.0.1:{http_port}"
        self.rpc_address = f"127.0.0.1:{rpc_port}"
        self._process = process

    @property
    def log_text(self) -> str:
        """What the service has written so far."""
        return self._log.read_text(errors="replace")

    def wait_until_ready(self) -> None:
        """Return when every instance is ready."""
        until = time.monotonic() + _START_S
        while time.monotonic() < until and self._process.poll() is None:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{self.url}/health/ready") as answer:
                ops = json.load(answer)["ops"].values()
                if all(op["ready"] == op["instances"] for op in ops):
                    self.workers = children(self.front)
                    return
            time.sleep(0.05)
        raise CannotMeasure(f"the service did not become ready:\n{self.log_text[-4000:]}")

    def cpu_s(self) -> tuple[float, float]:
        """CPU time so far: of the front, of all workers."""
        if children(self.front) != self.workers:
            raise CannotMeasure("a worker was replaced during the measurement; its CPU time is lost")
        return cpu_s([self.front]), cpu_s(self.workers)

    def answered(self) -> dict[str, int]:
        """Requests so far by outcome, from /metrics: "ok" or the err_no."""
        with urllib.request.urlopen(f"{self.url}/metrics") as answer:
            lines = answer.read().decode().splitlines()
        counts: dict[str, int] = {}
        for line in lines:
            if line.startswith("paddlewheel_requests_total{"):
                err_no = line.partition('err_no="')[2].partition('"')[0]
                counts[err_no] = counts.get(err_no, 0) + int(float(line.rpartition(" ")[2]))
        return counts

    def post(self, path: str, body: bytes) -> bytes:
        request = urllib.request.Request(self.url + path, body, {"content-type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            content: bytes = answer.read()
        return content


@contextlib.contextmanager
def running_service(
    script: Path, config: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> Iterator[RunningService]:
    """Start `script --config` with free ports put into `config`; stop it with SIGTERM."""
    http_port, rpc_port = free_ports(2)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        file, log = Path(folder, "config.yml"), Path(folder, "log")
        file.write_text(yaml.safe_dump({**config, "http_port": http_port, "rpc_port": rpc_port}))
        with log.open("wb") as output:
            command = [sys.executable, str(script), "--config", str(file)]
            process = subprocess.Popen(command, cwd=ROOT, env=env, stdout=output, stderr=output)
            try:
                service = RunningService(process, http_port, rpc_port, log)
                service.wait_until_ready()
                yield service
            finally:
                stop(process)


def stop(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def default_config(instances: int | None = None) -> dict[str, Any]:
    """config.yml, or with another number of instances. Raises CannotMeasure without the demo model."""
    if not (DEMO_MODEL / "serving_server").is_dir():
        raise CannotMeasure("models/demo is not there; run `python -m convert demo` first")
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yml").read_text(encoding="utf-8"))
    if instances is not None:
        config["op"]["bert"]["concurrency"] = instances
    return config


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
