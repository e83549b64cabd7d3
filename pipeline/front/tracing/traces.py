"""Tracing of requests: the settings of all models and of each, the choice of requests, the writing thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from pipeline.config.trace_section import TraceConfig
from pipeline.front.tracing.otlp import SpanExporter
from pipeline.front.tracing.request_trace import RequestTrace, Span, TraceParent, parse_traceparent
from pipeline.front.tracing.trace_file import TraceFile, TraceLog
from pipeline.process.isolation import run_isolated

log = logging.getLogger(__name__)

CLOSE_S = 5.0  # time for traces that wait at the end of the service
_GATHER_S = 0.01  # one wake-up of the thread serves all traces that end within this time
_TENSORS = "TENSORS"


@dataclass(frozen=True)
class TraceValues:
    """The values of a trace setting that clients can change."""

    levels: tuple[str, ...]  # empty: OFF
    rate: int
    count: int  # traces that are still to be collected; -1: any number
    log_frequency: int


class Sink(Protocol):
    """Interface that receives the traces of a trace setting in the writing thread, and writes them.

    Each method returns the number of lost traces.
    """

    def add(self, trace: RequestTrace, *, is_last: bool) -> int:
        """Accept a trace. is_last: whether it is the last trace of the setting's count."""
        ...

    def close(self) -> int:
        """Write the remaining traces."""
        ...


class TraceSetting:
    """An active trace setting: counts requests, and chooses the requests that are traced."""

    def __init__(
        self,
        values: TraceValues,
        sink: Sink | None,
        collect: Callable[[TraceSetting, bool, RequestTrace], None],
        open_spans: dict[str, Span],
    ) -> None:
        """Create the setting. sink: writes or sends the traces; None if no destination is configured.

        collect: called with the setting, whether the trace counts, and the trace.
        """
        self.values = values
        self.remaining = values.count
        self.sink = sink
        self.is_active = bool(values.levels) and sink is not None
        self._counted = partial(collect, self, True)
        self._uncounted = partial(collect, self, False)
        self._open_spans = open_spans
        self._seen = 0
        self._chosen = 0
        self.collected = 0

    @property
    def is_complete(self) -> bool:
        """Whether the traces of the setting's count are all collected."""
        return self.remaining == 0 and self.collected == self._chosen

    def sample(self, parent: TraceParent | None) -> RequestTrace | None:
        """Return a trace for the next request; None if the request is not traced.

        parent: the client's span. A request with a client span is always traced, and not counted.
        """
        if not self.is_active:
            return None
        finish = self._uncounted
        if parent is None:
            if not self.values.rate or self.remaining == 0:
                return None
            self._seen += 1
            if self._seen % self.values.rate:
                return None
            self._chosen += 1
            if self.remaining > 0:
                self.remaining -= 1
            finish = self._counted
        return RequestTrace(finish, parent, self._open_spans, with_tensors=_TENSORS in self.values.levels)


class Traces:
    """Chooses the requests that are traced, and writes their traces in a thread.

    is_on: whether a request may be traced now. is_possible: whether clients can turn tracing on. If the queue
    of the writing thread is full, traces are dropped and counted.
    """

    def __init__(self, config: TraceConfig) -> None:
        self.config = config
        self.is_possible = config.is_possible
        self.is_on = False
        self.dropped = 0
        self._file = TraceFile(config.trace_file) if config.trace_file else None
        self._exporter = SpanExporter(config) if config.mode == "opentelemetry" else None
        self._open_spans: dict[str, Span] = {}
        self._of_all: dict[str, Any] = {}  # what clients have changed, by the field of TraceValues
        self._of_model: dict[str, dict[str, Any]] = {}
        self._setting = self._create_setting(self.get_values())
        self._settings: dict[str, TraceSetting] = {}
        self._update_state()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        if config.level and not self.is_possible:
            log.warning(
                "Requests are not traced: trace.level is set without trace.trace_file "
                "(--trace-config triton,file=PATH)"
            )

    def get_values(self, model: str = "") -> TraceValues:
        """Return the trace setting of a model; with an empty name, the setting of all models."""
        config = self.config
        start = {
            "levels": tuple(config.level),
            "rate": config.rate,
            "count": config.count,
            "log_frequency": config.log_frequency,
        }
        return TraceValues(**{**start, **self._of_all, **self._of_model.get(model, {})})

    def get_remaining(self, model: str = "") -> int:
        """Return how many more traces the setting of a model collects; -1 for an unlimited number."""
        return self._settings.get(model, self._setting).remaining

    def update(self, changes: Mapping[str, Any], model: str = "") -> None:
        """Change the trace setting of a model; with an empty name, the setting of all models.

        changes: new values by field of `TraceValues`; None resets a field. The request counter of the
        sampling rate starts again at zero.
        """
        changed = self._of_model.setdefault(model, {}) if model else self._of_all
        if "count" in changed:
            changed["count"] = self.get_remaining(model)
        changed.update({name: value for name, value in changes.items() if value is not None})
        for name, value in changes.items():
            if value is None:
                changed.pop(name, None)
        if model and not changed:
            del self._of_model[model]
        if not model:
            self._setting = self._replace(self._setting, "")
        for name in [model] if model else list(self._of_model):
            self._settings[name] = self._replace(self._settings.get(name), name)
        if model and not changed:
            del self._settings[model]
        self._update_state()

    def _replace(self, former: TraceSetting | None, model: str) -> TraceSetting:
        if former is not None:
            self._enqueue(partial(self._close_sink, former.sink))
        return self._create_setting(self.get_values(model))

    def _create_setting(self, values: TraceValues) -> TraceSetting:
        return TraceSetting(values, self._create_sink(values), self._collect, self._open_spans)

    def _create_sink(self, values: TraceValues) -> Sink | None:
        if self._exporter is not None or self._file is None:
            return self._exporter
        return TraceLog(self._file, values.log_frequency, holds=values.count > 0)

    def _update_state(self) -> None:
        self.is_on = any(setting.is_active for setting in (self._setting, *self._settings.values()))

    def sample(self, model: str, traceparent: str) -> RequestTrace | None:
        """Return a trace for a request to a model; None if the request is not traced.

        traceparent: value of the request's header `traceparent`; empty if it is missing.
        """
        parent = parse_traceparent(traceparent) if traceparent else None
        return self._settings.get(model, self._setting).sample(parent)

    def _collect(self, setting: TraceSetting, is_counted: bool, trace: RequestTrace) -> None:
        """Queue a complete trace for the writing thread, or drop the trace if the queue is full."""
        if self._queue.qsize() >= self.config.bsp_max_queue_size:
            self.dropped += 1
            return
        self._enqueue(partial(self._add_trace, setting, is_counted, trace))

    def _add_trace(self, setting: TraceSetting, is_counted: bool, trace: RequestTrace) -> None:
        setting.collected += is_counted
        if setting.sink is not None:
            self.dropped += setting.sink.add(trace, is_last=is_counted and setting.is_complete)

    def _close_sink(self, sink: Sink | None) -> None:
        if sink is not None:
            self.dropped += sink.close()

    def _enqueue(self, step: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run_steps, name="traces", daemon=True)
            self._thread.start()
        self._queue.put(step)

    def _run_steps(self) -> None:
        wait_s = None if self._exporter is None else self.config.bsp_schedule_delay / 1000
        while True:
            try:
                step = self._queue.get(timeout=wait_s)
            except Empty:
                step = partial(self._close_sink, self._exporter)
            if step is None:
                return
            run_isolated(step)
            if self._queue.empty():
                time.sleep(_GATHER_S)

    def close(self) -> None:
        """Write the traces that wait, at the end of the service, within `CLOSE_S` seconds."""
        if self._thread is None:
            return
        for setting in (self._setting, *self._settings.values()):
            self._queue.put(partial(self._close_sink, setting.sink))
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        if self.dropped:
            log.warning("%d traces were dropped", self.dropped)
