"""PrometheusProcess: Debian's Prometheus, which scrapes a service each second and evaluates expressions."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import requests
import yaml

from tests.support.free_ports import free_port
from tests.support.service_process import PATIENCE_S, wait_until


def find_prometheus() -> str:
    """The path of Prometheus. Raises AssertionError on a machine without it."""
    program = shutil.which(os.environ.get("PROMETHEUS") or "prometheus")
    assert program is not None, "there is no Prometheus here; `make test-system` installs it"
    return program


class PrometheusProcess:
    """A running Prometheus.

    url: its address.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer of the API. Raises AssertionError for a request that is refused."""
        answer = requests.get(f"{self.url}/api/v1/{path}", parameters, timeout=PATIENCE_S).json()
        assert answer["status"] == "success", answer
        return answer["data"]

    def read_values(self, expression: str) -> list[float]:
        """The values of an expression now. Raises AssertionError for an expression that is refused."""
        return [float(sample["value"][1]) for sample in self.get("query", query=expression)["result"]]

    def is_ready(self) -> bool:
        try:
            return requests.get(f"{self.url}/-/ready", timeout=PATIENCE_S).status_code == 200
        except requests.ConnectionError:
            return False


@contextlib.contextmanager
def running_prometheus(
    folder: Path, job: str, ports: list[int], *, labels: dict[str, str] | None = None, rules: str = ""
) -> Iterator[PrometheusProcess]:
    """Run Prometheus with its files in `folder`.

    job, ports, labels: of the targets on this machine. rules: path of a file with rules.
    """
    targets = {"targets": [f"127.0.0.1:{port}" for port in ports], "labels": labels or {}}
    config = {
        "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
        "rule_files": [rules] if rules else [],
        "scrape_configs": [{"job_name": job, "static_configs": [targets]}],
    }
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config), "utf-8")
    address, log = f"127.0.0.1:{free_port()}", folder / "log"
    arguments = [f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [find_prometheus(), *arguments, f"--web.listen-address={address}"], stdout=output, stderr=output
        )
    try:
        prometheus = PrometheusProcess(f"http://{address}")
        wait_until(prometheus.is_ready, "Prometheus is ready", on_timeout=lambda: log.read_text("utf-8"))
        yield prometheus
    finally:
        process.terminate()
        process.wait(PATIENCE_S)
