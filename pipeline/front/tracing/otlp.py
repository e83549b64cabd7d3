"""Sends traces to an OpenTelemetry collector, by OTLP over HTTP in JSON, with Triton's names of spans.

The encoder writes no objects of OpenTelemetry's SDK: the cost of a span is that of a few dictionaries.
"""

from __future__ import annotations

import http.client
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pipeline import __version__
from pipeline.config.trace_section import SERVICE_NAME, TraceConfig
from pipeline.front.tracing.request_trace import COMPUTE_EVENTS, Batch, Event, RequestTrace, Span

log = logging.getLogger(__name__)

SEND_S = 10.0  # time limit of a transmission, as OpenTelemetry's default
_SERVER, _INTERNAL = 2, 1  # kinds of spans
_ERROR = {"code": 2}
_DEFAULT_NAME = "triton-inference-server"
_encode = msgspec.json.Encoder().encode


def list_spans(trace: RequestTrace, offset: int) -> Iterator[dict[str, Any]]:
    """Yield the spans of a request's trace, and of the batches that belong to it, in OTLP's JSON format.

    offset: nanoseconds to add to the monotonic clock for the Unix time.
    """
    root = trace.spans[0]
    if trace.caller is None:
        events = [*trace.list_received(), *trace.list_sent()]
        if trace.complete:
            events.insert(2, ("INFER_RESPONSE_COMPLETE", trace.complete))
        end = trace.sent[1] or root.end
        above = "" if trace.parent is None else trace.parent.span_id
        span = _build_span(
            "InferRequest", trace.trace_id, trace.root_id, above, trace.received[0], end, offset
        )
        span["events"] = _build_events(events, offset)
        if trace.error:
            span["status"] = {**_ERROR, "message": trace.error}
        yield span
    for model in trace.spans:
        yield from _list_model_spans(trace, model, offset)
    for batch in trace.batches:
        yield _build_batch(batch, offset)


def _list_model_spans(trace: RequestTrace, model: Span, offset: int) -> Iterator[dict[str, Any]]:
    above = trace.root_id if model.parent is None else model.parent.span_id
    span = _build_span(model.model, trace.trace_id, model.span_id, above, model.start, model.end, offset)
    span["attributes"] = _build_attributes(
        {
            "triton.model_name": model.model,
            "triton.model_version": model.version,
            "triton.trace_id": model.number,
            "triton.trace_parent_id": 0 if model.parent is None else model.parent.number,
            "triton.request_id": trace.request_id,
        }
    )
    events = model.list_events()
    events[-1:-1] = model.notes
    span["events"] = _build_events(events, offset)
    yield span
    if model.compute is None:
        return
    start, *_, end = model.compute
    compute = _build_span("compute", trace.trace_id, model.compute_id, model.span_id, start, end, offset)
    compute["events"] = _build_events(zip(COMPUTE_EVENTS, model.compute, strict=True), offset)
    compute["links"] = [_build_link(batch.trace_id, batch.span_id) for batch in model.batches]
    yield compute


def _build_batch(batch: Batch, offset: int) -> dict[str, Any]:
    """Return the span of a batch. It has its own trace, and links to the requests in the batch."""
    span = _build_span("batch", batch.trace_id, batch.span_id, "", batch.start, batch.end, offset, _INTERNAL)
    span["attributes"] = _build_attributes(
        {
            "paddlewheel.op": batch.op,
            "paddlewheel.worker": batch.worker,
            "paddlewheel.requests": batch.requests,
        }
    )
    span["links"] = [_build_link(*link) for link in batch.links]
    if batch.error:
        span["status"] = {**_ERROR, "message": batch.error}
    return span


def _build_span(
    name: str, trace_id: str, span_id: str, above: str, start: int, end: int, offset: int, kind: int = _SERVER
) -> dict[str, Any]:
    """Return a span without attributes. above: id of the parent span; empty if there is none."""
    return {
        "traceId": trace_id,
        "spanId": span_id,
        "parentSpanId": above,
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start + offset),
        "endTimeUnixNano": str(end + offset),
    }


def _build_events(events: Iterable[Event], offset: int) -> list[dict[str, str]]:
    return [{"timeUnixNano": str(ns + offset), "name": name} for name, ns in events]


def _build_link(trace_id: str, span_id: str) -> dict[str, str]:
    return {"traceId": trace_id, "spanId": span_id}


def _build_attributes(values: dict[str, str | int]) -> list[dict[str, Any]]:
    return [
        {"key": key, "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value}}
        for key, value in values.items()
    ]


class SpanExporter:
    """Sends trace spans to an OpenTelemetry collector, in batches, from the thread that writes traces.

    A batch that the collector does not accept within `SEND_S` seconds is dropped.
    """

    def __init__(self, config: TraceConfig) -> None:
        self._url = urlsplit(config.collector_url)
        self._batch_size = config.bsp_max_export_batch_size
        self._delay_s = config.bsp_schedule_delay / 1000
        attributes = {SERVICE_NAME: _DEFAULT_NAME, "service.version": __version__}
        attributes |= dict(text.split("=", 1) for text in config.resource)
        self._resource = {"attributes": _build_attributes({**attributes})}
        self._spans: list[dict[str, Any]] = []
        self._traces = 0
        self._sent_at = time.monotonic()
        self._has_failed = False
        self._connection: http.client.HTTPConnection | None = None

    def add(self, trace: RequestTrace, *, is_last: bool) -> int:
        """Add the spans of a trace to the next transmission, and send it if it is due or full."""
        self._spans += list_spans(trace, time.time_ns() - time.monotonic_ns())
        self._traces += 1
        is_due = time.monotonic() >= self._sent_at + self._delay_s
        return self.close() if is_last or is_due or len(self._spans) >= self._batch_size else 0

    def close(self) -> int:
        """Send the spans that wait. Return the number of traces that the collector has not accepted."""
        spans, self._spans = self._spans, []
        traces, self._traces = self._traces, 0
        self._sent_at = time.monotonic()
        if not spans:
            return 0
        try:
            self._transmit(spans)
        except (OSError, http.client.HTTPException) as exc:
            self._disconnect()
            if not self._has_failed:
                log.error(
                    "Traces are lost: the collector at %s (trace.url, --trace-config opentelemetry,url) does "
                    "not accept spans: %s",
                    self._url.geturl(), exc,
                )  # fmt: skip
            self._has_failed = True
            return traces
        self._has_failed = False
        return 0

    def _transmit(self, spans: Sequence[dict[str, Any]]) -> None:
        """Send spans to the collector. Raises OSError or HTTPException if the collector refuses them."""
        scope = {"scope": {"name": "paddlewheel", "version": __version__}, "spans": spans}
        body = _encode({"resourceSpans": [{"resource": self._resource, "scopeSpans": [scope]}]})
        reused = self._connection is not None
        try:
            self._post(body)
        except (OSError, http.client.HTTPException):
            if not reused:
                raise
            self._disconnect()  # the collector had closed the idle connection
            self._post(body)

    def _post(self, body: bytes) -> None:
        if self._connection is None:
            secure = self._url.scheme == "https"
            kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
            assert self._url.hostname is not None
            self._connection = kind(self._url.hostname, self._url.port, timeout=SEND_S)
        target = self._url.path or "/"
        if self._url.query:
            target += f"?{self._url.query}"
        self._connection.request("POST", target, body, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        response.read()
        if not 200 <= response.status < 300:
            raise http.client.HTTPException(f"status {response.status}")

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
