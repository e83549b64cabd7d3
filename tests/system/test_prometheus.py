"""Prometheus scrapes a repository's server, and evaluates the expressions of Triton's Grafana dashboards."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
import requests

from tests.support.free_ports import free_port
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

# All expressions of triton-inference-server/server, deploy/{aws,fleetcommand,gcp,k8s-onprem,oci}, but none
# of GPUs. `pod` is a label that the scrape adds on Kubernetes.
EXPRESSIONS = (
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "sum(increase(nv_inference_load_ratio_bucket[1m])) by (le)",
    "rate(nv_inference_queue_duration_us[30s]) / 1000",
    "rate(nv_inference_compute_duration_us[30s]) / 1000",
    "count(count(nv_inference_count) by (instance))",
    "sum by (pod) (rate(nv_inference_count[1m])) "
    "/ ignoring(pod) group_left sum (rate(nv_inference_count[1m]))",
    "sum(nv_inference_request_success) by (pod)",
    "sum(nv_inference_request_failure) by (pod)",
    "sum(rate(nv_inference_compute_infer_duration_us[30s])) by (model) / 1000",
    "avg(rate(nv_inference_queue_duration_us[30s])/(1+rate(nv_inference_request_success[30s]))) by (pod)",
    "nv_cpu_memory_used_bytes",
    "nv_cpu_utilization * 100",
)
MODEL = """
backend: "identity"
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 }
"""
BODY = b'{"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [1]}]}'
CONFIG = """
global: {{ scrape_interval: 1s, scrape_timeout: 1s }}
scrape_configs:
  - job_name: triton
    static_configs: [{{ targets: ["127.0.0.1:{port}"], labels: {{ pod: triton-0 }} }}]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("models")
    (write_model(folder, "echo", MODEL) / "1").mkdir(exist_ok=True)
    with RepositoryProcess(folder) as process:
        yield process


@pytest.fixture(scope="module")
def query_url(service: RepositoryProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a running Prometheus that scrapes the service."""
    program = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
    assert program is not None, "there is no Prometheus here; `make test-system` installs it"
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config, log = folder / "prometheus.yml", folder / "log"
    config.write_text(CONFIG.format(port=service.metrics_port), "utf-8")
    arguments = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *arguments, f"--web.listen-address=127.0.0.1:{port}"], stdout=output, stderr=output
        )
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until(lambda: is_ready(url), "Prometheus is ready", on_timeout=lambda: log.read_text("utf-8"))
        yield f"{url}/api/v1/query"
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


def is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/-/ready", timeout=PATIENCE_S).status_code == 200
    except requests.ConnectionError:
        return False


def read_values(query_url: str, expression: str) -> list[float]:
    """Return the values of an expression now. Raises AssertionError for an expression that is refused."""
    answer = requests.get(query_url, {"query": expression}, timeout=PATIENCE_S).json()
    assert answer["status"] == "success", answer
    return [float(sample["value"][1]) for sample in answer["data"]["result"]]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_the_dashboards_returns_data(
    service: RepositoryProcess, query_url: str, expression: str
) -> None:
    def returns_data() -> bool:
        assert service.http("/v2/models/echo/infer", BODY).status == 200
        values = read_values(query_url, expression)
        return bool(values) and not any(map(math.isnan, values))

    wait_until(returns_data, expression)


def test_prometheus_keeps_every_sample(service: RepositoryProcess, query_url: str) -> None:
    wait_until(lambda: read_values(query_url, 'up{job="triton"}') == [1.0], "the scrape succeeds")
    samples = read_values(query_url, "scrape_samples_scraped")
    assert samples == read_values(query_url, "scrape_samples_post_metric_relabeling")
    assert samples[0] > len(EXPRESSIONS)
