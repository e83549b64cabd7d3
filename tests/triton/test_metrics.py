"""Metrics under Triton's names: latency summaries, first responses, loads, and counts without batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as rpc
import tritonclient.http as http
from prometheus_client.parser import text_string_to_metric_families

from pipeline.api.metrics_settings import parse_metrics_settings
from pipeline.dialects.triton_extensions.metrics import open_gpu_metrics
from pipeline.errors import ConfigError
from pipeline.front.metrics.latencies import WINDOW_S, Summary
from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import APPS, PATIENCE_S, wait_until
from tests.support.triton_repository import write_model

_TENSORS = """
backend: "python"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }
"""
_ECHO = """
class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests
        ]
"""
_STREAM = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender, x = request.get_response_sender(), request.inputs()[0].as_numpy()
            for _ in range(3):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("Y", x)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
_DECOUPLED = """
model_transaction_policy { decoupled: true }
model_metrics { metric_control {
  metric_identifier { family: "nv_inference_first_response_histogram_ms" }
  histogram_options { buckets: [ 0.5, 60000 ] }
} }
"""
# Counts a run before it waits for the file.
_COUNTING = """
import time
from pathlib import Path

class TritonPythonModel:
    def initialize(self, args):
        family = pb_utils.MetricFamily("runs_begun", "Runs.", pb_utils.MetricFamily.COUNTER)
        self.runs = family.Metric({"model": "counting"})

    def execute(self, requests):
        self.runs.increment(1)
        while not Path("FILE").exists():
            time.sleep(0.002)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("Y", r.inputs()[0].as_numpy())]) for r in requests
        ]
"""
_ENSEMBLE = """
platform: "ensemble"
input { name: "X" data_type: TYPE_FP32 dims: -1 }
output { name: "Y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling { step {
  model_name: "plain" model_version: -1
  input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
} }
"""
_STAGES = "request", "queue", "compute_input", "compute_infer", "compute_output"
_FLAGS = (
    "summary_latencies=true",
    "summary_quantiles=0.5:0.05,0.9:0.01",
    "histogram_latencies=true",
    "counter_latencies=TRUE",
)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file that the model `counting` waits for."""
    return tmp_path_factory.mktemp("gate") / "open"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, gate: Path) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("metrics")
    write_model(folder, "plain", _TENSORS, _ECHO)
    write_model(folder, "cached", _TENSORS + "response_cache { enable: true }", _ECHO)
    write_model(folder, "stream", _TENSORS + _DECOUPLED, _STREAM)
    write_model(folder, "counting", _TENSORS, _COUNTING.replace("FILE", str(gate)))
    (write_model(folder, "whole", _ENSEMBLE) / "1").mkdir(exist_ok=True)
    flags = [f"--metrics-config={setting}" for setting in _FLAGS]
    flags += ["--cache-config=local,size=4096", "--allow-cpu-metrics=false"]
    with RepositoryProcess(folder, arguments=flags) as process:
        yield process


def read_samples(service: RepositoryProcess) -> dict[str, float]:
    """Return the values of /metrics by name and labels, as they are written."""
    lines = service.http("/metrics").body.decode().splitlines()
    return {
        name: float(value) for name, _, value in (line.rpartition(" ") for line in lines) if name[0] != "#"
    }


def infer(service: RepositoryProcess, model: str, *values: float) -> None:
    x = http.InferInput("X", [len(values)], "FP32")
    x.set_data_from_numpy(np.array(values, np.float32))
    with http.InferenceServerClient(f"127.0.0.1:{service.http_port}", network_timeout=PATIENCE_S) as client:
        client.infer(model, [x])


def test_summaries_have_the_counts_and_sums_of_the_counters(service: RepositoryProcess) -> None:
    for _ in range(3):
        infer(service, "whole", 1, 2)
    samples = read_samples(service)
    for model in ("plain", "whole"):
        labels = f'model="{model}",version="1"'
        for stage in _STAGES:
            name = f"nv_inference_{stage}_summary_us"
            assert samples[f"{name}_count{{{labels}}}"] == 3, (model, stage)
            quantiles = [samples[f'{name}{{{labels},quantile="{q}"}}'] for q in ("0.5", "0.9")]
            assert quantiles == sorted(quantiles)
            total = samples[f"{name}_sum{{{labels}}}"]
            assert min(quantiles) <= total
            if stage.startswith("compute"):
                counter = samples[f"nv_inference_{stage}_duration_us{{{labels}}}"]
                assert total == pytest.approx(counter, abs=3)


def test_a_cached_model_has_summaries_of_hits_and_misses_in_place_of_requests(
    service: RepositoryProcess,
) -> None:
    infer(service, "cached", 7)
    infer(service, "cached", 7)
    samples, labels = read_samples(service), '{model="cached",version="1"}'
    assert samples[f"nv_cache_hit_summary_us_count{labels}"] == 1
    assert samples[f"nv_cache_miss_summary_us_count{labels}"] == 1
    assert samples[f"nv_inference_queue_summary_us_count{labels}"] == 2
    assert f"nv_inference_request_summary_us_count{labels}" not in samples


def test_the_first_response_of_a_decoupled_model_is_counted_in_its_own_buckets(
    service: RepositoryProcess,
) -> None:
    x = rpc.InferInput("X", [1], "FP32")
    x.set_data_from_numpy(np.ones(1, np.float32))
    answers: list[object] = []
    with rpc.InferenceServerClient(f"127.0.0.1:{service.rpc_port}") as client:
        client.start_stream(lambda result, error: answers.append(error or result))
        client.async_stream_infer("stream", [x])
        wait_until(lambda: len(answers) == 3, "the stream has three answers", on_timeout=lambda: str(answers))
    samples, name = read_samples(service), "nv_inference_first_response_histogram_ms"
    labels = 'model="stream",version="1"'
    buckets = [samples[f'{name}_bucket{{{labels},le="{le}"}}'] for le in ("0.5", "60000", "+Inf")]
    assert buckets[1:] == [1, 1]
    assert samples[f"{name}_count{{{labels}}}"] == 1
    assert samples[f"{name}_sum{{{labels}}}"] > 0
    assert f'{name}_count{{model="plain",version="1"}}' not in samples


def test_a_request_to_a_model_without_batches_counts_once(service: RepositoryProcess) -> None:
    name = 'nv_inference_count{model="MODEL",version="1"}'
    before = read_samples(service)
    infer(service, "whole", 1, 2, 3, 4)
    after = read_samples(service)
    for model in ("plain", "whole"):
        key = name.replace("MODEL", model)
        assert after[key] == before[key] + 1
    (stats,) = service.http("/v2/models/plain/stats").json["model_stats"]
    assert [batch["batch_size"] for batch in stats["batch_stats"]] == [1]


def test_a_metric_that_a_model_writes_is_there_while_execute_runs(
    service: RepositoryProcess, gate: Path
) -> None:
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(infer, service, "counting", 1)
        wait_until(
            lambda: read_samples(service).get('runs_begun{model="counting"}') == 1, "the run is counted"
        )
        assert not running.done()
        gate.touch()
        running.result()


def test_gauges_have_the_load_duration_and_no_pinned_memory(service: RepositoryProcess) -> None:
    samples = read_samples(service)
    loads = [samples[f'nv_model_load_duration_secs{{model="{m}",version="1"}}'] for m in ("plain", "whole")]
    assert loads[0] == loads[1] > 0
    assert samples["nv_pinned_memory_pool_total_bytes"] == samples["nv_pinned_memory_pool_used_bytes"] == 0
    assert not any(name.startswith("nv_cpu_") for name in samples)  # --allow-cpu-metrics=false


def test_prometheus_parses_all_metrics_and_none_has_two_declarations(service: RepositoryProcess) -> None:
    families = [f.name for f in text_string_to_metric_families(service.http("/metrics").body.decode())]
    assert sorted(set(families)) == sorted(families)
    assert "nv_inference_load_ratio" in families


def test_gpus_have_their_gauges_and_the_energy_since_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(APPS / "nvml"))
    metrics = open_gpu_metrics()
    assert metrics is not None
    lines = [line for text in metrics.lines() for line in text.splitlines() if not line.startswith("#")]
    samples = {name: float(value) for name, value in (line.rsplit(maxsplit=1) for line in lines)}
    first, second = ('{gpu_uuid="GPU-0"}', '{gpu_uuid="GPU-1"}')
    assert samples == {
        f"nv_gpu_utilization{first}": 0.25, f"nv_gpu_utilization{second}": 0.5,
        f"nv_gpu_memory_total_bytes{first}": 80e9, f"nv_gpu_memory_total_bytes{second}": 80e9,
        f"nv_gpu_memory_used_bytes{first}": 1e9, f"nv_gpu_memory_used_bytes{second}": 2e9,
        f"nv_gpu_power_usage{first}": 123.5,
        f"nv_gpu_power_limit{first}": 700, f"nv_gpu_power_limit{second}": 700,
        f"nv_energy_consumption{first}": 2.5, f"nv_energy_consumption{second}": 1,
    }  # fmt: skip


class TestSummary:
    def test_quantiles_are_those_of_the_last_minute(self) -> None:
        now = [0.0]
        summary = Summary(lambda: now[0])
        assert all(map(math.isnan, summary.get_quantiles([0.5, 1.0])))
        for value in range(1, 1001):
            summary.observe(value)
        assert summary.get_quantiles([0.0, 0.5, 0.99, 1.0]) == pytest.approx([1, 500, 990, 1000], rel=0.02)
        now[0] += WINDOW_S / 2
        summary.observe(5000, times=3000)
        assert summary.get_quantiles([0.1, 0.5]) == pytest.approx([400, 5000], rel=0.02)
        now[0] += WINDOW_S * 0.7
        assert summary.get_quantiles([0.1]) == [5000]
        now[0] += 3 * WINDOW_S
        assert math.isnan(summary.get_quantiles([0.5])[0])
        assert summary.count == 4000
        assert summary.total == 500500 + 15_000_000

    def test_values_below_a_microsecond_are_counted(self) -> None:
        summary = Summary(lambda: 0.0)
        summary.observe(0.0)
        assert summary.get_quantiles([0.5]) == [0.0]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("summary_latencies", "write NAME=VALUE"),
        ("summary_latencies=perhaps", "neither true nor false"),
        ("gauge_latencies=true", "there is no setting 'gauge_latencies', only counter_latencies"),
        ("summary_quantiles=0.5", "'0.5' is no quantile"),
        ("summary_quantiles=0.5:x", "'0.5:x' is no quantile"),
        ("summary_quantiles=1.5:0.1", "'1.5:0.1' is no quantile"),
        ("summary_quantiles=nan:0.1", "'nan:0.1' is no quantile"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_name(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--metrics-config={setting}.*{message}"):
        parse_metrics_settings([setting])
