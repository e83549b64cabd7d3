"""Prometheus gauges of queues, workers, memory and API keys, which are read for each request of /metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pipeline import __version__
from pipeline.config.config_file import ServiceConfig
from pipeline.front.metrics.metrics import Metrics, Rows
from pipeline.front.pool.shards import Shards
from pipeline.front.pool.worker_process import WorkerProcess
from pipeline.front.scheduler.admission import KeyRing
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.sequences import Sequences
from pipeline.front.tracing.traces import Traces
from pipeline.process.processes import resident_bytes

log = logging.getLogger(__name__)

_ON_CARDS = (1, 2)  # of `device_type`: gpu, tensorRT


class GpuMemory:
    """Reads the GPU memory of each process from the NVIDIA driver, through the package nvidia-ml-py."""

    def __init__(self, nvml: Any) -> None:
        """Store the module. nvml: the module pynvml, already initialized."""
        self._nvml = nvml
        self._cards = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]

    def read_usage(self) -> dict[int, int]:
        """Return the bytes of GPU memory by process id, summed over all GPUs."""
        used: dict[int, int] = {}
        for card in self._cards:
            try:
                processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(card)
            except self._nvml.NVMLError:  # a card that has failed; its workers will say so themselves
                continue
            for process in processes:
                used[process.pid] = used.get(process.pid, 0) + (process.usedGpuMemory or 0)
        return used


def open_gpu_memory(config: ServiceConfig) -> GpuMemory | None:
    """Return a reader of GPU memory.

    None if no Op runs on a GPU, or if the driver or the package nvidia-ml-py is missing.
    """
    confs = [op.local_service_conf for op in config.op.values()]
    if not any(conf and (conf.devices or conf.device_type in _ON_CARDS) for conf in confs):
        return None
    nvml = open_nvml()
    return None if nvml is None else GpuMemory(nvml)


def open_nvml() -> Any | None:
    """Return the initialized module pynvml; None if the package nvidia-ml-py or a driver is missing."""
    try:
        import pynvml  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as exc:
        log.info("there are no metrics of GPUs: %s", exc)
        return None
    return pynvml


def register_gauges(
    metrics: Metrics,
    batchers: Mapping[str, Batcher],
    pending: Callable[[], int],
    keys: KeyRing | None,
    config: ServiceConfig,
    shards: Shards | None,
) -> None:
    """Register the Prometheus gauges of a service: versions, queues, instances, memory and API keys.

    batchers: by the name of the Op. pending: returns the number of pending requests in the front-end process.
    shards: worker processes that have pending requests of their own; None without shards.
    """

    def per_op(read: Callable[[Batcher], int]) -> Rows:
        return [({"op": name}, float(read(batcher))) for name, batcher in batchers.items()]

    def in_shards(read: Callable[[Shards], int]) -> int:
        return 0 if shards is None else read(shards)

    def pending_requests() -> Rows:
        yield {}, float(pending() + in_shards(lambda s: s.pending))

    def queue_lengths() -> Rows:
        return per_op(lambda b: b.waiting + in_shards(lambda s: s.waiting))

    def memory() -> Rows:
        yield {"process": "front"}, resident_bytes()
        for process in _processes(batchers):
            yield {"process": process.name}, process.resident_bytes

    def models() -> Rows:
        for name, batcher in batchers.items():
            plan = batcher.pool.plan
            if plan.version:
                yield {"op": name, "version": plan.version, "engine": plan.engine}, 1.0

    watch = metrics.watch
    watch("paddlewheel_build_info", "The version that serves.", lambda: [({"version": __version__}, 1.0)])
    watch("paddlewheel_model_info", "The version of an Op's model, and what runs it.", models)
    watch("paddlewheel_pending_requests", "Admitted, not yet answered.", pending_requests)
    watch("paddlewheel_op_queue_length", "Requests queued before an Op.", queue_lengths)
    watch(
        "paddlewheel_op_ready_instances",
        "Instances that take requests.",
        lambda: per_op(lambda b: b.pool.ready),
    )
    restarts = "paddlewheel_op_restarts_total"
    metrics.watch_total(restarts, "Workers replaced.", lambda: per_op(lambda b: b.pool.restarts))
    _watch_sequences(metrics, batchers)
    watch("paddlewheel_resident_bytes", "Resident memory by process.", memory)
    if any(batcher.pool.plan.app.choices for batcher in batchers.values()):
        _watch_choices(metrics, batchers)
    if keys is not None:
        _watch_keys(metrics, keys)
    cards = open_gpu_memory(config)
    if cards is not None:
        _watch_cards(metrics, cards, batchers)


def _watch_sequences(metrics: Metrics, batchers: Mapping[str, Batcher]) -> None:
    def per_op(read: Callable[[Sequences], int]) -> Rows:
        for name, batcher in batchers.items():
            if batcher.sequences is not None:
                yield {"op": name}, float(read(batcher.sequences))

    watch = metrics.watch
    watch("paddlewheel_sequences", "Live sequences.", lambda: per_op(lambda s: s.live))
    watch("paddlewheel_sequence_bytes", "Bytes of their states.", lambda: per_op(lambda s: s.bytes))
    metrics.watch_total(
        "paddlewheel_sequences_expired_total",
        "Sequences that ended without a request for too long.",
        lambda: per_op(lambda s: s.expired),
    )


def watch_shards(metrics: Metrics, shards: Shards) -> None:
    """Register the metrics of the connections that shards (processes with their own connections) serve."""
    watch, total = metrics.watch, metrics.watch_total
    name = "paddlewheel_shard_connections"
    watch(name, "Connections that shards serve.", lambda: [({}, float(shards.connections))])
    name = "paddlewheel_shard_moved_connections_total"
    total(name, "Connections of dead shards, served by another process.", lambda: [({}, shards.moved)])
    name = "paddlewheel_shard_lost_connections_total"
    total(name, "Connections of dead shards, closed within an answer.", lambda: [({}, shards.lost)])


def watch_traces(metrics: Metrics, traces: Traces) -> None:
    """Register the counter of request traces that were lost instead of written or sent."""
    name = "paddlewheel_traces_dropped_total"
    metrics.watch_total(
        name,
        "Traces that could not be written or sent, or found a full queue.",
        lambda: [({}, traces.dropped)],
    )


def _watch_choices(metrics: Metrics, batchers: Mapping[str, Batcher]) -> None:
    """Register the gauge of engines chosen by `auto` in config.yml, with their measured rows per second."""

    def choices() -> Rows:
        for op, batcher in batchers.items():
            choice = batcher.pool.plan.app.choices.get(op)
            if choice is not None:
                chosen = {"engine": choice.engine, "precision": choice.precision}
                yield {"op": op, **chosen, "batch_rows": str(choice.best_rows)}, choice.rows_per_s

    metrics.watch(
        "paddlewheel_op_chosen_rows_per_second",
        "What `auto` has chosen: the rows a second that it was timed at, in batches of about batch_rows.",
        choices,
    )


def _watch_keys(metrics: Metrics, keys: KeyRing) -> None:
    figures, total = keys.figures, metrics.watch_total
    total("paddlewheel_key_requests_total", "Requests by API key.", lambda: figures(lambda c: c.requests))
    total("paddlewheel_key_refused_total", "Over their key's limits.", lambda: figures(lambda c: c.refused))
    metrics.watch("paddlewheel_key_pending", "Pending by API key.", lambda: figures(lambda c: c.pending))


def _watch_cards(metrics: Metrics, cards: GpuMemory, batchers: Mapping[str, Batcher]) -> None:
    def memory() -> Rows:
        used = cards.read_usage()
        for process in _processes(batchers):
            yield {"process": process.name}, float(used.get(process.pid, 0))

    metrics.watch("paddlewheel_gpu_memory_bytes", "GPU memory by worker.", memory)


def _processes(batchers: Mapping[str, Batcher]) -> Iterator[WorkerProcess]:
    for batcher in batchers.values():
        yield from batcher.pool.processes
