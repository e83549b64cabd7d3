"""A service started for a measurement: a script and its configuration."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bench.load import CannotMeasure
from bench.processes import cpu_s
from tests.support.service_process import ROOT, ServiceProcess

DEMO_MODEL = ROOT / "models" / "demo"
_STOP_S = 30.0


class ServiceCpu:
    """CPU time of a service whose workers stay the same."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        self._workers = service.worker_pids()

    def so_far_s(self) -> tuple[float, float]:
        """Return the CPU seconds of the front and of all workers so far."""
        if self._service.worker_pids() != self._workers:
            raise CannotMeasure("a worker was replaced during the measurement; its CPU time is lost")
        return cpu_s([self._service.process.pid]), cpu_s(self._workers)


@contextlib.contextmanager
def running_service(
    script: Path, config: Mapping[str, Any], env: Mapping[str, str] | None = None
) -> Iterator[ServiceProcess]:
    """Run `script --config` on free ports, with all instances ready, and stop it at the end.

    Raises CannotMeasure if the service does not start.
    """
    arguments = ("--config", "{config}")
    with ServiceProcess(script, config, arguments=arguments, env=env, folder=ROOT, wait=False) as service:
        try:
            service.wait_until_ready(every_instance=True)
        except AssertionError as exc:
            raise CannotMeasure(str(exc)[-4000:]) from None
        try:
            yield service
        finally:
            stop(service.process)


def stop(process: subprocess.Popen[Any]) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def default_config(instances: int | None = None) -> dict[str, Any]:
    """Return config.yml without its ports, so that `running_service` takes free ones, and with one front.

    `shards` is 1, because most measurements tell the front from its workers. instances: replaces the number
    of instances. Raises CannotMeasure without the demo model.
    """
    if not (DEMO_MODEL / "serving_server").is_dir():
        raise CannotMeasure("models/demo is not there; run `paddlewheel convert demo` first")
    config: dict[str, Any] = yaml.safe_load((ROOT / "config.yml").read_text(encoding="utf-8"))
    del config["http_port"], config["rpc_port"]
    config["shards"] = 1
    if instances is not None:
        config["op"]["bert"]["concurrency"] = instances
    return config


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]
