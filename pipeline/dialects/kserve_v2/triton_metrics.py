"""Metrics under Triton's names, for its dashboards and autoscalers: `nv_inference_*`, `nv_cpu_*`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pipeline.dialects.kserve.models import KServeModel, KServeModels
from pipeline.dialects.kserve_v2.server import statistics
from pipeline.front.scheduler.scheduler import Scheduler

Stats = dict[str, Any]  # an element of `model_stats`

_COUNTERS: dict[str, tuple[str, Callable[[Stats], int]]] = {
    "nv_inference_request_success": (
        "Number of successful inference requests, all batch sizes",
        lambda stats: stats["inference_stats"]["success"]["count"],
    ),
    "nv_inference_count": (
        "Number of inferences performed (does not include cached requests)",
        lambda stats: stats["inference_count"],
    ),
    "nv_inference_exec_count": (
        "Number of model executions performed (does not include cached requests)",
        lambda stats: stats["execution_count"],
    ),
    "nv_inference_request_duration_us": (
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda stats: stats["inference_stats"]["success"]["ns"] // 1000,
    ),
    "nv_inference_queue_duration_us": (
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda stats: stats["inference_stats"]["queue"]["ns"] // 1000,
    ),
    "nv_inference_compute_input_duration_us": (
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda stats: stats["inference_stats"]["compute_input"]["ns"] // 1000,
    ),
    "nv_inference_compute_infer_duration_us": (
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda stats: stats["inference_stats"]["compute_infer"]["ns"] // 1000,
    ),
    "nv_inference_compute_output_duration_us": (
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda stats: stats["inference_stats"]["compute_output"]["ns"] // 1000,
    ),
}
_FAILURES = "nv_inference_request_failure", "Number of failed inference requests, all batch sizes"
_REASONS = {"OTHER": "other", "CANCELED": "canceled", "REJECTED": "rejected", "BACKEND": "broken"}
_STEP_FAILURES = (
    "paddlewheel_ensemble_step_failures_total",
    "Requests of an ensemble that failed, by the step where they did.",
)
_PENDING = (
    "nv_inference_pending_request_count",
    "Instantaneous number of pending requests awaiting execution per-model.",
)
_HOST_GAUGES = {
    "nv_cpu_utilization": "CPU utilization rate [0.0 - 1.0]",
    "nv_cpu_memory_total_bytes": "CPU total memory (RAM), in bytes",
    "nv_cpu_memory_used_bytes": "CPU used memory (RAM), in bytes",
}
_IDLE = slice(3, 5)  # of the times in /proc/stat: idle and waiting for disks


def triton_metrics(scheduler: Scheduler, models: KServeModels, host: HostMetrics) -> bytes:
    """The figures of every model and of the machine, in Prometheus' text format."""
    stats_by_model = [(model, statistics(scheduler, models, model)) for model in models.all()]
    lines: list[str] = []
    for name, (description, get_count) in _COUNTERS.items():
        rows = ((_labels(model), get_count(stats)) for model, stats in stats_by_model)
        lines += _family(name, description, "counter", rows)
    failed = (
        (_labels(model, reason=reason), getattr(scheduler.failures(model.key), kind))
        for model, _ in stats_by_model
        for reason, kind in _REASONS.items()
    )
    lines += _family(*_FAILURES, "counter", failed)
    steps = (
        (_labels(model, step=step, step_model=name, step_version=version), count)
        for model, _ in stats_by_model
        for (step, op), count in scheduler.failures(model.key).steps.items()
        for name, _, version in (op.rpartition(":"),)
    )
    lines += _family(*_STEP_FAILURES, "counter", steps)
    pending = ((_labels(model), _pending(scheduler, model)) for model, _ in stats_by_model)
    lines += _family(*_PENDING, "gauge", pending)
    return "".join([*lines, host.text()]).encode()


def _pending(scheduler: Scheduler, model: KServeModel) -> int:
    return scheduler.waiting(model.op) if model.op else scheduler.pending


def _family(name: str, description: str, kind: str, rows: Iterator[tuple[str, int]]) -> Iterator[str]:
    yield f"# HELP {name} {description}\n# TYPE {name} {kind}\n"
    for labels, value in rows:
        yield f"{name}{labels} {value}\n"


def _labels(model: KServeModel, **more: str) -> str:
    labels = {"model": model.name, **more, "version": model.version}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class HostMetrics:
    """The machine's processors and memory, read when asked.

    The utilization is that since the last time, at first since the machine's start.
    """

    def __init__(self) -> None:
        self._before = 0, 0

    def text(self) -> str:
        """The gauges in Prometheus' text format; nothing where the kernel does not tell."""
        try:
            gauges = dict(zip(_HOST_GAUGES, self._values(), strict=True))
        except (OSError, LookupError, ValueError):
            return ""
        return "".join(
            f"# HELP {name} {_HOST_GAUGES[name]}\n# TYPE {name} gauge\n{name} {value}\n"
            for name, value in gauges.items()
        )

    def _values(self) -> Iterator[float]:
        times = [int(ticks) for ticks in Path("/proc/stat").read_text("ascii").splitlines()[0].split()[1:9]]
        idle, total = sum(times[_IDLE]), sum(times)
        idle_before, total_before = self._before
        self._before = idle, total
        passed = total - total_before
        busy = 1 - (idle - idle_before) / passed if passed else 0.0
        yield min(max(0.0, busy), 1.0)  # the kernel's count of waiting may go back
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        memory = {name: int(value.split()[0]) * 1024 for name, value in (line.split(":") for line in lines)}
        yield memory["MemTotal"]
        yield memory["MemTotal"] - memory["MemAvailable"]
