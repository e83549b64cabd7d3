"""FRONT PROCESS: the metrics of models and of the machine under Triton's names, for /metrics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.api.metrics_settings import DEFAULT_METRICS, FIRST_RESPONSE
from pipeline.api.model_names import get_public_name
from pipeline.dialects.kserve.models import KServeModel, KServeModels
from pipeline.dialects.triton_extensions.server import statistics
from pipeline.front.cache.local import LocalCache
from pipeline.front.cache.redis_cache import RedisCache
from pipeline.front.cache.response_cache import ResponseCache
from pipeline.front.metrics.latencies import ModelLatencies, Summary
from pipeline.front.metrics.metrics import Distribution
from pipeline.front.scheduler.gauges import open_nvml
from pipeline.front.scheduler.scheduler import Scheduler

Stats = dict[str, Any]  # an element of `model_stats`
Counters = dict[str, tuple[str, Callable[[Stats], int]]]
"""Description of each counter by name, and the function that reads it."""

_COUNTERS: Counters = {
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
}
_COMPUTE = "compute_input", "compute_infer", "compute_output"
_LATENCY_COUNTERS: Counters = {
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
    "nv_inference_compute_duration_us": (  # of Triton 1, in the dashboards of later versions
        "Cumulative inference compute duration in microseconds",
        lambda stats: sum(stats["inference_stats"][stage]["ns"] for stage in _COMPUTE) // 1000,
    ),
}
_CACHE_COUNTERS: Counters = {
    "nv_cache_num_hits_per_model": (
        "Number of cache hits per model",
        lambda stats: stats["inference_stats"]["cache_hit"]["count"],
    ),
    "nv_cache_num_misses_per_model": (
        "Number of cache misses per model",
        lambda stats: stats["inference_stats"]["cache_miss"]["count"],
    ),
    "nv_cache_hit_duration_per_model": (
        "Total cache hit duration per model, in microseconds",
        lambda stats: stats["inference_stats"]["cache_hit"]["ns"] // 1000,
    ),
    "nv_cache_miss_duration_per_model": (
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda stats: stats["inference_stats"]["cache_miss"]["ns"] // 1000,
    ),
}
_CACHE_GAUGES: dict[str, tuple[str, Callable[[ResponseCache], float]]] = {
    "nv_cache_num_lookups": ("Number of cache lookups in response cache", lambda cache: cache.lookups),
    "nv_cache_num_hits": ("Number of cache hits in response cache", lambda cache: cache.hits),
    "nv_cache_num_misses": (
        "Number of cache misses in response cache",
        lambda cache: cache.lookups - cache.hits,
    ),
}
_LOCAL_CACHE_GAUGES: dict[str, tuple[str, Callable[[LocalCache], float]]] = {
    "nv_cache_num_entries": ("Number of responses stored in response cache", len),
    "nv_cache_num_evictions": (
        "Number of cache evictions in response cache",
        lambda outputs: outputs.evictions,
    ),
    "nv_cache_util": (
        "Cache utilization [0.0 - 1.0]",
        lambda outputs: outputs.used_bytes / outputs.max_bytes,
    ),
}
_REDIS_FAILURES = (
    "paddlewheel_redis_failures_total",
    "Lookups and insertions that the Redis server of the response cache did not answer in time.",
)
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
_LOAD_DURATION = "nv_model_load_duration_secs", "Model load time in seconds"
_LOAD_RATIO = (  # of Triton 1, in the dashboards of later versions
    "nv_inference_load_ratio",
    "Time since the arrival of a batch's first request, divided by the compute time of the batch",
)
_FIRST_RESPONSE = FIRST_RESPONSE, "Duration from request to first response in milliseconds"
_SUMMARIES: dict[str, tuple[str, Callable[[ModelLatencies], Summary]]] = {
    "nv_inference_request_summary_us": (
        "Summary of inference request duration in microseconds (includes cached requests)",
        lambda latencies: latencies.request,
    ),
    "nv_inference_queue_summary_us": (
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda latencies: latencies.queue,
    ),
    "nv_inference_compute_input_summary_us": (
        "Summary of compute input duration in microseconds (does not include cached requests)",
        lambda latencies: latencies.compute_input,
    ),
    "nv_inference_compute_infer_summary_us": (
        "Summary of compute inference duration in microseconds (does not include cached requests)",
        lambda latencies: latencies.compute_infer,
    ),
    "nv_inference_compute_output_summary_us": (
        "Summary of compute output duration in microseconds (does not include cached requests)",
        lambda latencies: latencies.compute_output,
    ),
}
_CACHE_SUMMARIES: dict[str, tuple[str, Callable[[ModelLatencies], Summary]]] = {
    "nv_cache_hit_summary_us": (
        "Summary of cache hit duration per model, in microseconds",
        lambda latencies: latencies.cache_hit,
    ),
    "nv_cache_miss_summary_us": (
        "Summary of cache miss (insert+lookup) duration per model, in microseconds",
        lambda latencies: latencies.cache_miss,
    ),
}
# As in Triton, cached models have no summary of requests: the time in the cache would distort it.
_REQUEST_SUMMARY = ("nv_inference_request_summary_us",)
_PINNED_GAUGES = {  # no pool of pinned memory is allocated
    "nv_pinned_memory_pool_total_bytes": "Pinned memory pool total memory size, in bytes",
    "nv_pinned_memory_pool_used_bytes": "Pinned memory pool used memory size, in bytes",
}
_HOST_GAUGES = {
    "nv_cpu_utilization": "CPU utilization rate [0.0 - 1.0]",
    "nv_cpu_memory_total_bytes": "CPU total memory (RAM), in bytes",
    "nv_cpu_memory_used_bytes": "CPU used memory (RAM), in bytes",
}
# Description, type, and value in the metric's unit, from the module pynvml and the handle of a GPU.
_GPU_METRICS: dict[str, tuple[str, str, Callable[[Any, Any], float]]] = {
    "nv_gpu_utilization": (
        "GPU utilization rate [0.0 - 1.0)",
        "gauge",
        lambda nvml, gpu: nvml.nvmlDeviceGetUtilizationRates(gpu).gpu / 100,
    ),
    "nv_gpu_memory_total_bytes": (
        "GPU total memory, in bytes",
        "gauge",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).total,
    ),
    "nv_gpu_memory_used_bytes": (
        "GPU used memory, in bytes",
        "gauge",
        lambda nvml, gpu: nvml.nvmlDeviceGetMemoryInfo(gpu).used,
    ),
    "nv_gpu_power_usage": (
        "GPU power usage in watts",
        "gauge",
        lambda nvml, gpu: nvml.nvmlDeviceGetPowerUsage(gpu) / 1000,
    ),
    "nv_gpu_power_limit": (
        "GPU power management limit in watts",
        "gauge",
        lambda nvml, gpu: nvml.nvmlDeviceGetEnforcedPowerLimit(gpu) / 1000,
    ),
    "nv_energy_consumption": (
        "GPU energy consumption in joules since the Triton Server started",
        "counter",
        lambda nvml, gpu: nvml.nvmlDeviceGetTotalEnergyConsumption(gpu) / 1000,
    ),
}
_IDLE = slice(3, 5)  # columns of /proc/stat: idle and iowait


class TritonMetrics:
    """Triton's metrics of each model and of the machine, in Prometheus' text format."""

    def __init__(self, scheduler: Scheduler, models: KServeModels) -> None:
        repository = scheduler.app.repository
        self._scheduler = scheduler
        self._models = models
        self._settings = DEFAULT_METRICS if repository is None else repository.metrics
        self._host = HostMetrics()
        self._gpus = open_gpu_metrics() if self._settings.gpu else None

    def text(self) -> bytes:
        """Return all metrics, for a request of /metrics. As in Triton, unloaded models have none."""
        models = list(self._models.loaded())
        lines = [
            *self._counters(models),
            *self._failures(models),
            *self._gauges(models),
            *self._histograms(models),
            *(self._summaries(models) if self._settings.summary_latencies else ()),
            self._host.text() if self._settings.cpu else "",
            *(self._gpus.lines() if self._gpus else ()),
        ]
        return "".join(lines).encode()

    def _counters(self, models: Sequence[KServeModel]) -> Iterator[str]:
        stats_by_model = [(model, statistics(self._scheduler, self._models, model)) for model in models]
        counters = _COUNTERS
        if self._settings.counter_latencies:
            cache_counters = {} if self._scheduler.cache is None else _CACHE_COUNTERS
            counters = {**_COUNTERS, **_LATENCY_COUNTERS, **cache_counters}
        for name, (description, get_count) in counters.items():
            rows = ((_labels(model), get_count(stats)) for model, stats in stats_by_model)
            yield from _family(name, description, "counter", rows)

    def _failures(self, models: Sequence[KServeModel]) -> Iterator[str]:
        failed = (
            (_labels(model, reason=reason), getattr(self._scheduler.failures(model.key), kind))
            for model in models
            for reason, kind in _REASONS.items()
        )
        yield from _family(*_FAILURES, "counter", failed)
        steps = (
            (_labels(model, step=step, step_model=get_public_name(name), step_version=version), count)
            for model in models
            for (step, op), count in self._scheduler.failures(model.key).steps.items()
            for name, _, version in (op.rpartition(":"),)
        )
        yield from _family(*_STEP_FAILURES, "counter", steps)

    def _gauges(self, models: Sequence[KServeModel]) -> Iterator[str]:
        if (cache := self._scheduler.cache) is not None:
            for name, (description, read) in _CACHE_GAUGES.items():
                yield from _family(name, description, "gauge", [("", read(cache))])
            yield from _describe_store(cache.outputs)
        pending = [(_labels(model), self._pending(model)) for model in models]
        yield from _family(*_PENDING, "gauge", pending)
        loads = [(_labels(model), self._load_s(model)) for model in models]
        yield from _family(*_LOAD_DURATION, "gauge", loads)
        for name, description in _PINNED_GAUGES.items():
            yield from _family(name, description, "gauge", [("", 0)])

    def _pending(self, model: KServeModel) -> int:
        return self._scheduler.waiting(model.op) if model.op else self._scheduler.pending

    def _load_s(self, model: KServeModel) -> float:
        """Return the load time of a model in seconds; for an ensemble, the load time of its slowest step."""
        pools = self._scheduler.pools
        return max(pools[op].load_s for op in self._models.ops(model))

    def _histograms(self, models: Sequence[KServeModel]) -> Iterator[str]:
        of_ops = self._scheduler.metrics.of_ops
        ratios = [(model, of_ops[model.op].load_ratio) for model in models if model.op]
        yield from _histogram_family(*_LOAD_RATIO, ratios)
        if self._settings.histogram_latencies:
            figures = [(model, self._scheduler.requests(model.key) or of_ops[model.op]) for model in models]
            first = [(model, f.first_response_ms) for model, f in figures if f.first_response_ms is not None]
            yield from _histogram_family(*_FIRST_RESPONSE, first)

    def _summaries(self, models: Sequence[KServeModel]) -> Iterator[str]:
        scheduler = self._scheduler
        summaries = _SUMMARIES if scheduler.cache is None else {**_SUMMARIES, **_CACHE_SUMMARIES}
        for name, (description, select) in summaries.items():
            yield _head(name, description, "summary")
            for model in models:
                figures = scheduler.requests(model.key) or scheduler.metrics.of_ops[model.op]
                hidden = _REQUEST_SUMMARY if scheduler.is_cached(model.key) else _CACHE_SUMMARIES
                if name not in hidden and figures.latencies is not None:
                    yield from self._summary_lines(name, model, select(figures.latencies))

    def _summary_lines(self, name: str, model: KServeModel, summary: Summary) -> Iterator[str]:
        labels, quantiles = _labels(model), self._settings.summary_quantiles
        yield f"{name}_count{labels} {summary.count}\n{name}_sum{labels} {round(summary.total)}\n"
        for quantile, value in zip(quantiles, summary.get_quantiles(quantiles), strict=True):
            shown = "NaN" if math.isnan(value) else round(value)
            yield f"{name}{_add_label(labels, 'quantile', f'{quantile:g}')} {shown}\n"


def _head(name: str, description: str, kind: str) -> str:
    return f"# HELP {name} {description}\n# TYPE {name} {kind}\n"


def _describe_store(outputs: LocalCache | RedisCache) -> Iterator[str]:
    if isinstance(outputs, RedisCache):
        yield from _family(*_REDIS_FAILURES, "counter", [("", outputs.failures)])
        return
    for name, (description, read) in _LOCAL_CACHE_GAUGES.items():
        yield from _family(name, description, "gauge", [("", read(outputs))])


def _family(name: str, description: str, kind: str, rows: Iterable[tuple[str, float]]) -> Iterator[str]:
    yield _head(name, description, kind)
    for labels, value in rows:
        yield f"{name}{labels} {value}\n"


def _histogram_family(
    name: str, description: str, distributions: Iterable[tuple[KServeModel, Distribution]]
) -> Iterator[str]:
    yield _head(name, description, "histogram")
    for model, distribution in distributions:
        labels, counts = _labels(model), list(itertools.accumulate(distribution.counts))
        for bound, count in zip((*distribution.bounds, math.inf), counts, strict=True):
            le = "+Inf" if bound == math.inf else f"{bound:g}"
            yield f"{name}_bucket{_add_label(labels, 'le', le)} {count}\n"
        yield f"{name}_sum{labels} {distribution.total}\n{name}_count{labels} {counts[-1]}\n"


def _labels(model: KServeModel, **more: str) -> str:
    labels = {"model": model.name, **more, "version": model.version, **model.metric_labels}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _add_label(labels: str, name: str, value: str) -> str:
    return f'{labels.removesuffix("}")},{name}="{value}"}}'


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class HostMetrics:
    """CPU and memory metrics of the machine, under Triton's metric names.

    The CPU utilization covers the time since the previous call; in the first call, since the machine's start.
    """

    def __init__(self) -> None:
        self._before = 0, 0

    def text(self) -> str:
        """Return the gauges in Prometheus' text format; empty if the kernel does not provide them."""
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
        yield min(max(0.0, busy), 1.0)  # the iowait counter of the kernel may decrease
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        memory = {name: int(value.split()[0]) * 1024 for name, value in (line.split(":") for line in lines)}
        yield memory["MemTotal"]
        yield memory["MemTotal"] - memory["MemAvailable"]


class GpuMetrics:
    """Utilization, memory and power of each GPU, read from the NVIDIA driver, under Triton's metric names."""

    def __init__(self, nvml: Any) -> None:
        """Find the GPUs. nvml: the module pynvml, already initialized."""
        self._nvml = nvml
        gpus = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        self._gpus = {f'{{gpu_uuid="{_escaped(nvml.nvmlDeviceGetUUID(gpu))}"}}': gpu for gpu in gpus}
        self._energy_before = {
            labels: self._read_metric("nv_energy_consumption", gpu) or 0 for labels, gpu in self._gpus.items()
        }

    def lines(self) -> Iterator[str]:
        """Yield the metrics in Prometheus' text format, without metrics that a GPU does not provide."""
        for name, (description, kind, _) in _GPU_METRICS.items():
            values = {labels: self._read_metric(name, gpu) for labels, gpu in self._gpus.items()}
            rows = [(labels, value) for labels, value in values.items() if value is not None]
            if kind == "counter":
                rows = [(labels, max(0.0, value - self._energy_before[labels])) for labels, value in rows]
            if rows:
                yield from _family(name, description, kind, rows)

    def _read_metric(self, name: str, gpu: Any) -> float | None:
        try:
            return _GPU_METRICS[name][2](self._nvml, gpu)
        except self._nvml.NVMLError:  # not supported by this GPU, or the GPU has failed
            return None


def open_gpu_metrics() -> GpuMetrics | None:
    """Return the metrics of the GPUs; None if the package nvidia-ml-py or a driver is missing."""
    nvml = open_nvml()
    return None if nvml is None else GpuMetrics(nvml)
