"""Prometheus scrapes a repository's server, and evaluates the expressions of Triton's Grafana dashboards."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from tests.support.prometheus_process import PrometheusProcess, running_prometheus
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import wait_until
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


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("models")
    (write_model(folder, "echo", MODEL) / "1").mkdir(exist_ok=True)
    with RepositoryProcess(folder) as process:
        yield process


@pytest.fixture(scope="module")
def prometheus(
    service: RepositoryProcess, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusProcess]:
    folder, labels = tmp_path_factory.mktemp("prometheus"), {"pod": "triton-0"}
    with running_prometheus(folder, "triton", [service.metrics_port], labels=labels) as prometheus:
        yield prometheus


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_of_the_dashboards_returns_data(
    service: RepositoryProcess, prometheus: PrometheusProcess, expression: str
) -> None:
    def returns_data() -> bool:
        assert service.http("/v2/models/echo/infer", BODY).status == 200
        values = prometheus.read_values(expression)
        return bool(values) and not any(map(math.isnan, values))

    wait_until(returns_data, expression)


def test_prometheus_keeps_every_sample(service: RepositoryProcess, prometheus: PrometheusProcess) -> None:
    scraped = f"scrape_samples_scraped > {len(EXPRESSIONS)}"
    wait_until(lambda: prometheus.read_values(scraped), "the scrape succeeds")
    # One expression: between two queries Prometheus may scrape again, and find more series.
    dropped = "scrape_samples_scraped - scrape_samples_post_metric_relabeling"
    assert prometheus.read_values(dropped) == [0.0]
