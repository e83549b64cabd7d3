"""CPU time of a span, and the cost of traces on a server: off, and at 1 % of requests.

A span: one traced request from its start to its bytes, for a file and for a collector. The server has the
identity model. Its CPU for a request is measured in turns, as a ratio to a server without traces
in the same turn.

python -m bench.traces [--requests N]
python -m bench.traces --turns 7 --seconds 4
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import msgspec

from bench.histograms import MODEL, measure_server_us
from pipeline.front.tracing.otlp import list_spans
from pipeline.front.tracing.request_trace import RequestTrace, Span, add_batch, place_run
from pipeline.front.tracing.trace_file import encode_trace
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_repository import write_model

SPANS = 4  # of a request for a single model: InferRequest, the model, compute, batch


def build_trace(open_spans: dict[str, Span]) -> RequestTrace:
    """Return a complete trace of a request for a single model, alone in its batch."""
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
    """Return the microseconds of CPU per call."""
    began = time.process_time()
    for _ in range(count):
        step()
    return (time.process_time() - began) / count * 1e6


def set_level(service: RepositoryProcess, level: str) -> None:
    """Set the trace level of all models, as a client does."""
    body = msgspec.json.encode({"trace_level": [level], "trace_rate": "100"})
    url = f"http://127.0.0.1:{service.http_port}/v2/trace/setting"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        answer.read()


def measure_ratios(turns: int, seconds: float) -> dict[str, list[float]]:
    """Return the CPU of a request with traces off and at 1 % of requests, relative to that without traces."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (write_model(folder / "models", "echo", MODEL) / "1").mkdir(exist_ok=True)
        settings = f"triton,file={folder / 'trace.json'}", "triton,log-frequency=1000"
        flags = [f"--trace-config={setting}" for setting in settings]
        plain = stack.enter_context(RepositoryProcess(folder / "models"))
        traced = stack.enter_context(RepositoryProcess(folder / "models", arguments=flags))
        ratios: dict[str, list[float]] = {"off": [], "1 %": []}
        for _ in range(turns):
            plain_us = measure_server_us(plain, seconds)
            for name, level in (("off", "OFF"), ("1 %", "TIMESTAMPS")):
                set_level(traced, level)
                ratios[name].append(measure_server_us(traced, seconds) / plain_us)
    return ratios


def print_spans(count: int) -> None:
    """Print the CPU time of a trace and of each of its spans."""
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


def main() -> None:
    """Print the CPU time of spans; with --turns, the cost of traces on a server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--turns", type=int, default=0, help="turns of the server (none)")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load (%(default)s)")
    options = parser.parse_args()
    if not options.turns:
        print_spans(options.requests)
        return
    for name, ratios in measure_ratios(options.turns, options.seconds).items():
        shown = ", ".join(f"{ratio:.3f}" for ratio in ratios)
        sys.stdout.write(f"traces {name}: {statistics.median(ratios):.3f} of the CPU without ({shown})\n")


if __name__ == "__main__":
    main()
