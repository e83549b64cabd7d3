"""Gauges: figures that are read from the engine when /metrics is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from pipeline.server.engine.batcher import Batcher
from pipeline.server.telemetry.metrics import resident_bytes
from pipeline.server.workers.gpu_memory import open_gpu_memory

if TYPE_CHECKING:
    from pipeline.server.engine.engine import Engine

Rows = Iterable[tuple[dict[str, str], float]]


def register_gauges(engine: Engine, batchers: Mapping[str, Batcher]) -> None:
    """Have the engine's metrics tell queues, instances, memory, and what each API key did."""

    def per_op(read: str) -> Rows:
        for name, batcher in batchers.items():
            value = batcher.waiting if read == "waiting" else getattr(batcher.crew, read)
            yield {"op": name}, float(value)

    def memory() -> Rows:
        yield {"process": "front"}, resident_bytes()
        for crew in engine.crews.values():
            for process in crew.processes:
                yield {"process": process.name}, resident_bytes(process.pid)

    watch = engine.metrics.watch
    watch(
        "paddlewheel_pending_requests", "Admitted, not yet answered.", lambda: [({}, float(engine.pending))]
    )
    watch("paddlewheel_op_queue_length", "Requests queued before an Op.", lambda: per_op("waiting"))
    watch("paddlewheel_op_ready_instances", "Instances that take requests.", lambda: per_op("ready"))
    watch("paddlewheel_op_restarts_total", "Workers replaced.", lambda: per_op("restarts"))
    watch("paddlewheel_resident_bytes", "Resident memory by process.", memory)
    _watch_keys(engine)
    _watch_cards(engine)


def _watch_keys(engine: Engine) -> None:
    if engine.keys is None:
        return
    figures, watch = engine.keys.figures, engine.metrics.watch
    watch("paddlewheel_key_requests_total", "Requests by API key.", lambda: figures(lambda c: c.requests))
    watch("paddlewheel_key_refused_total", "Over their key's limits.", lambda: figures(lambda c: c.refused))
    watch("paddlewheel_key_pending", "Pending by API key.", lambda: figures(lambda c: c.pending))


def _watch_cards(engine: Engine) -> None:
    cards = open_gpu_memory(engine.app.config)
    if cards is None:
        return

    def memory() -> Rows:
        used = cards.of_processes()
        for crew in engine.crews.values():
            for process in crew.processes:
                yield {"process": process.name}, float(used.get(process.pid, 0))

    engine.metrics.watch("paddlewheel_gpu_memory_bytes", "GPU memory by worker.", memory)
