"""Gauges of /metrics: queues with those of shards, sequences, connections of shards, traces, GPU memory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pipeline import __version__
from pipeline.config.config_file import ServiceConfig
from pipeline.front.metrics.metrics import Metrics
from pipeline.front.scheduler import gauges
from pipeline.front.scheduler.gauges import GpuMemory, register_gauges, watch_shards, watch_traces

CONFIG = ServiceConfig.model_validate({"http_port": 9292, "op": {"a": {}}})


def fake_batcher(waiting: int = 2, sequences: Any = None, choices: Any = None, version: str = "") -> Any:
    processes = [SimpleNamespace(name="a.0", pid=7, resident_bytes=1024.0)]
    plan = SimpleNamespace(version=version, engine="paddle", app=SimpleNamespace(choices=choices or {}))
    pool = SimpleNamespace(ready=3, restarts=4, plan=plan, processes=processes)
    return SimpleNamespace(waiting=waiting, pool=pool, sequences=sequences)


def registered(shards: Any = None, config: ServiceConfig = CONFIG, **batcher: Any) -> list[str]:
    metrics = Metrics("sim")
    register_gauges(metrics, {"a": fake_batcher(**batcher)}, lambda: 5, None, config, shards)
    return metrics.text().decode().splitlines()


def test_pending_requests_and_queues_include_those_of_shards() -> None:
    lines = registered()
    assert "paddlewheel_pending_requests 5.0" in lines
    assert 'paddlewheel_op_queue_length{op="a"} 2.0' in lines
    shards: Any = SimpleNamespace(pending=30, waiting=40)
    lines = registered(shards)
    assert "paddlewheel_pending_requests 35.0" in lines
    assert 'paddlewheel_op_queue_length{op="a"} 42.0' in lines


def test_instances_versions_and_memory_are_reported_by_op_and_process() -> None:
    lines = registered(version="2")
    assert f'paddlewheel_build_info{{version="{__version__}"}} 1.0' in lines
    assert 'paddlewheel_model_info{engine="paddle",op="a",version="2"} 1.0' in lines
    assert 'paddlewheel_op_ready_instances{op="a"} 3.0' in lines
    assert 'paddlewheel_op_restarts_total{op="a"} 4.0' in lines
    assert 'paddlewheel_resident_bytes{process="a.0"} 1024.0' in lines
    assert any(line.startswith('paddlewheel_resident_bytes{process="front"} ') for line in lines)
    assert not any("model_info{" in line for line in registered())


def test_sequences_and_choices_are_reported_where_there_are_any() -> None:
    choice = SimpleNamespace(engine="onnxruntime", precision="fp32", best_rows=8, rows_per_s=900.0)
    sequences = SimpleNamespace(live=6, bytes=70, expired=8)
    lines = registered(sequences=sequences, choices={"a": choice})
    labels = 'batch_rows="8",engine="onnxruntime",op="a",precision="fp32"'
    assert f"paddlewheel_op_chosen_rows_per_second{{{labels}}} 900.0" in lines
    assert 'paddlewheel_sequences{op="a"} 6.0' in lines
    assert 'paddlewheel_sequence_bytes{op="a"} 70.0' in lines
    assert 'paddlewheel_sequences_expired_total{op="a"} 8.0' in lines
    without = registered()
    assert not any("chosen" in line or line.startswith("paddlewheel_sequence") for line in without)


def test_connections_of_shards_and_lost_traces_are_counted() -> None:
    metrics = Metrics("sim")
    shards: Any = SimpleNamespace(connections=3, moved=2, lost=1)
    traces: Any = SimpleNamespace(dropped=9)
    watch_shards(metrics, shards)
    watch_traces(metrics, traces)
    text = metrics.text().decode()
    for page in (
        "# HELP paddlewheel_shard_connections Connections that shards serve.\n"
        "# TYPE paddlewheel_shard_connections gauge\n"
        "paddlewheel_shard_connections 3.0\n",
        "# HELP paddlewheel_shard_moved_connections_total Connections of dead shards, served by another "
        "process.\n"
        "# TYPE paddlewheel_shard_moved_connections_total counter\n"
        "paddlewheel_shard_moved_connections_total 2.0\n",
        "# HELP paddlewheel_shard_lost_connections_total Connections of dead shards, closed within an "
        "answer.\n"
        "# TYPE paddlewheel_shard_lost_connections_total counter\n"
        "paddlewheel_shard_lost_connections_total 1.0\n",
        "# HELP paddlewheel_traces_dropped_total Traces that could not be written or sent, or found a full "
        "queue.\n"
        "# TYPE paddlewheel_traces_dropped_total counter\n"
        "paddlewheel_traces_dropped_total 9.0\n",
    ):
        assert page in text


class FakeDriver:
    """The module pynvml with three cards, of which the second has failed."""

    NVMLError = OSError

    def nvmlDeviceGetCount(self) -> int:
        return 3

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetComputeRunningProcesses(self, card: int) -> list[Any]:
        if card == 1:
            raise OSError("the card has fallen off the bus")
        usages = {0: [(7, 100), (8, None)], 2: [(7, 20)]}
        return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in usages[card]]


def test_gpu_memory_is_summed_over_the_cards_that_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert GpuMemory(FakeDriver()).read_usage() == {7: 120, 8: 0}
    monkeypatch.setattr(gauges, "open_nvml", FakeDriver)
    local: dict[str, Any] = {"model_config": "models/demo", "client_type": "local_predictor"}
    for conf, is_on_card in ({"device_type": 1}, True), ({"devices": "0"}, True), ({"device_type": 0}, False):
        op = {"local_service_conf": {**local, **conf}}
        config = ServiceConfig.model_validate({"http_port": 9292, "op": {"a": op}})
        lines = registered(config=config)
        assert ('paddlewheel_gpu_memory_bytes{process="a.0"} 120.0' in lines) is is_on_card
