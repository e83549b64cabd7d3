"""CPU time of a span: one traced request from its start to its bytes, for a file and for a collector.

python -m bench.traces [--requests N]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable

import msgspec

from pipeline.front.tracing.otlp import list_spans
from pipeline.front.tracing.request_trace import RequestTrace, Span, add_batch, place_run
from pipeline.front.tracing.trace_file import encode_trace

SPANS = 4  # of a request for a single model: InferRequest, the model, compute, batch


def build_trace(open_spans: dict[str, Span]) -> RequestTrace:
    """A complete trace of a request for a single model, alone in its batch."""
    trace = RequestTrace(lambda _: None, None, open_spans, with_tensors=False)
    now = time.monotonic()
    trace.begin("HTTP", now, "model", "1", "request", is_single=True)
    span = trace.find_step("model", "model:1", now)
    trace.issue_traceparent(span)
    span.compute = place_run(span.queued, span.queued, time.monotonic_ns(), (1000, 1000, 1000))
    add_batch("model:1", "model.0", 1, [(trace, span)], span.compute.start, span.compute.end)
    trace.begin_response()
    trace.end_response()
    return trace


def measure_us(step: Callable[[], object], count: int) -> float:
    """Microseconds of CPU for each call."""
    began = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - began) / count * 1e6


def main() -> None:
    """Print the CPU time of a trace and of each of its spans."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    count = parser.parse_args().requests
    open_spans: dict[str, Span] = {}
    trace = build_trace(open_spans)
    encode = msgspec.json.Encoder().encode
    built = measure_us(lambda: build_trace(open_spans), count)
    for name, step in (
        ("file", lambda: encode_trace(trace)),
        ("collector", lambda: encode(list(list_spans(trace, 0)))),
    ):
        total = built + measure_us(step, count)
        sys.stdout.write(f"{name}: {total:.1f} us of CPU a request, {total / SPANS:.1f} us a span\n")


if __name__ == "__main__":
    main()
