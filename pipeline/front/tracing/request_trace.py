"""The trace of one sampled request: a span for the model, and one for each step of an ensemble or DAG."""

from __future__ import annotations

import itertools
import re
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipeline.api.model_names import get_public_name
from pipeline.messages.messages import TracedTensor

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
_numbers = itertools.count(1)
TRACEPARENT = b"traceparent"  # header of HTTP, key of gRPC's metadata
Event = tuple[str, int]  # name, nanoseconds of time.monotonic_ns()


class TraceParent(NamedTuple):
    """The parent span of a request in its client's trace, from the W3C header `traceparent`."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16 hexadecimal digits


def parse_traceparent(text: str) -> TraceParent | None:
    """Parse the header `traceparent`. Return None for an invalid value, as the W3C standard requires."""
    match = _TRACEPARENT.fullmatch(text.strip())
    if match is None or text.startswith("ff") or not int(match[1], 16) or not int(match[2], 16):
        return None
    return TraceParent(match[1], match[2])


def to_ns(instant: float) -> int:
    """Convert an instant of time.monotonic() to nanoseconds."""
    return int(instant * 1e9)


COMPUTE_EVENTS = ("COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END")


class Compute(NamedTuple):
    """Instants of the run of a model for a request, in nanoseconds, in the order of `COMPUTE_EVENTS`."""

    start: int
    input_end: int
    output_start: int
    end: int


class Batch(NamedTuple):
    """A model run for several requests, recorded as a trace of its own."""

    op: str
    worker: str
    requests: int  # all of the run, also those that are not traced
    start: int
    end: int
    links: list[tuple[str, str]]  # ids of trace and span of each traced request
    trace_id: str
    span_id: str
    error: str = ""


class Span:
    """The span of one model in the trace of a request."""

    __slots__ = (
        "batches",
        "compute",
        "compute_id",
        "end",
        "model",
        "notes",
        "number",
        "parent",
        "queued",
        "span_id",
        "start",
        "tensors",
        "version",
    )

    def __init__(self, model: str, version: str, start: int, parent: Span | None = None) -> None:
        self.number = next(_numbers)  # Triton's id of the trace
        self.span_id = secrets.token_hex(8)
        self.compute_id = secrets.token_hex(8)
        self.model = model
        self.version = int(version) if version.isdecimal() else 1
        self.start = start
        self.parent = parent
        self.queued = 0  # 0: never
        self.compute: Compute | None = None
        self.end = 0
        self.tensors: Sequence[TracedTensor] = ()
        self.notes: list[Event] = []  # further tries, after deaths of workers and timeouts
        self.batches: list[Batch] = []

    def list_events(self) -> list[Event]:
        """Return the events of the model's span: its start, its start of queueing, and its end."""
        return [
            ("REQUEST_START", self.start),
            ("QUEUE_START", self.queued or self.start),
            ("REQUEST_END", self.end),
        ]


class RequestTrace:
    """The trace of one request, from its arrival at the server to the end of its response.

    spans: the spans of all models; the requested model is the first. root_id: id of the span around them.
    caller: the span of the Python model in this server that has sent the request; None for a request of a
    client.
    """

    __slots__ = (
        "_finish",
        "_open_spans",
        "batches",
        "caller",
        "complete",
        "error",
        "is_single",
        "parent",
        "protocol",
        "received",
        "request_id",
        "root_id",
        "sent",
        "spans",
        "steps",
        "trace_id",
        "with_tensors",
    )

    def __init__(
        self,
        finish: Callable[[RequestTrace], None],
        parent: TraceParent | None,
        open_spans: dict[str, Span],
        *,
        with_tensors: bool,
    ) -> None:
        """Create an empty trace. finish: called once, with the complete trace. parent: the client's span.

        open_spans: the spans of all models in this server that may send requests, by span id.
        """
        self._finish: Callable[[RequestTrace], None] | None = finish
        self._open_spans = open_spans
        self.caller = None if parent is None else open_spans.get(parent.span_id)
        self.parent = parent
        self.trace_id = secrets.token_hex(16) if parent is None else parent.trace_id
        self.root_id = secrets.token_hex(8)
        self.with_tensors = with_tensors
        self.protocol = ""
        self.received: tuple[int, int] = (0, 0)
        self.sent: tuple[int, int] = (0, 0)  # zeros: no response was sent
        self.complete = 0
        self.error = ""
        self.request_id = ""
        self.is_single = True
        self.spans: list[Span] = []
        self.steps: dict[str, Span] = {}  # by node of the DAG
        self.batches: list[Batch] = []  # of which this trace is the first

    def begin(
        self, protocol: str, received_at: float, model: str, version: str, request_id: str, *, is_single: bool
    ) -> None:
        """Record the start of the request.

        protocol: HTTP or GRPC. received_at: instant of time.monotonic(). is_single: whether the model
        consists of one Op, whose run belongs to the model's own span.
        """
        now = time.monotonic_ns()
        self.protocol = protocol
        self.received = min(now, to_ns(received_at)), now
        self.request_id = request_id
        self.is_single = is_single
        self.spans.append(Span(model, version, now, self.caller))

    def find_step(self, node: str, op: str, queued_at: float) -> Span:
        """Return the span of a step. The first call for a step creates its span.

        op: the Op's name, as MODEL:VERSION. queued_at: instant of time.monotonic().
        """
        root = self.spans[0]
        if self.is_single:
            root.queued = root.queued or max(root.start, to_ns(queued_at))
            return root
        span = self.steps.get(node)
        if span is None:
            model, _, version = op.rpartition(":")
            queued = max(root.start, to_ns(queued_at))
            span = self.steps[node] = Span(
                get_public_name(model) or op, version if model else "", queued, root
            )
            span.queued = queued
            self.spans.append(span)
        return span

    def begin_response(self, error: str = "") -> None:
        """Record that the response is complete, and that its sending begins.

        error: the error message; empty for a successful request.
        """
        now = time.monotonic_ns()
        self.error = error
        self.complete = self.spans[0].end = now
        self.sent = (now, 0)

    def end_response(self) -> None:
        """Record that the response is sent, and pass the complete trace to `finish`."""
        self.sent = (self.sent[0], time.monotonic_ns())
        self._pass_on()

    def end_without_response(self, error: str) -> None:
        """Finish the trace of a request that was not admitted, or whose client has left."""
        self.error = error
        self.spans[0].end = time.monotonic_ns()
        self._pass_on()

    def _pass_on(self) -> None:
        finish, self._finish = self._finish, None
        if finish is None:
            return
        for span in self.spans:
            span.end = span.end or self.spans[0].end
            self._open_spans.pop(span.span_id, None)
        finish(self)

    def issue_traceparent(self, span: Span) -> str:
        """Return the header `traceparent` for requests that the span's model sends, maybe to this server."""
        self._open_spans[span.span_id] = span
        return f"00-{self.trace_id}-{span.span_id}-01"

    def list_received(self) -> list[Event]:
        """Return the events of the request's arrival; none if a model in this server has sent it."""
        if self.caller is not None:
            return []
        name = "HTTP_RECV" if self.protocol == "HTTP" else "GRPC_WAITREAD"
        return [(f"{name}_START", self.received[0]), (f"{name}_END", self.received[1])]

    def list_sent(self) -> list[Event]:
        """Return the events of sending the response; none without a response, or if a model is the client."""
        if not self.sent[0] or self.caller is not None:
            return []
        return [(f"{self.protocol}_SEND_START", self.sent[0]), (f"{self.protocol}_SEND_END", self.sent[1])]


def add_batch(
    op: str,
    worker: str,
    requests: int,
    runs: Sequence[tuple[RequestTrace, Span]],
    start: int,
    end: int,
    error: str = "",
) -> None:
    """Add a batch to the traces of its requests.

    requests: number of requests in the batch. runs: trace and span of each traced request. start, end: in
    nanoseconds.
    """
    links = [(trace.trace_id, span.span_id) for trace, span in runs]
    batch = Batch(op, worker, requests, start, end, links, secrets.token_hex(16), secrets.token_hex(8), error)
    runs[0][0].batches.append(batch)
    for _, span in runs:
        span.batches.append(batch)


def place_run(queued: int, began: int, ended: int, durations_ns: Sequence[int]) -> Compute:
    """Return the start and end of each phase of a run, calculated from the durations that a worker measured.

    All times are in nanoseconds. queued, began: earliest possible starts. ended: arrival of the worker's
    reply. durations_ns: durations of preprocess, process and postprocess.
    """
    earliest = min(ended, max(queued, began))
    preprocess_ns, process_ns, postprocess_ns = durations_ns
    output_start = max(earliest, ended - postprocess_ns)
    input_end = max(earliest, output_start - process_ns)
    return Compute(max(earliest, input_end - preprocess_ns), input_end, output_start, ended)


def describe_answer(value: Any) -> str:
    """Return the error message of an answer for a trace; empty if the answer is a response."""
    return "" if isinstance(value, list) else str(getattr(value, "message", value))
