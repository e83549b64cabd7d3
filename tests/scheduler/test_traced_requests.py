"""Traces of requests that simulated workers run."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pipeline.front.tracing.request_trace import RequestTrace, TraceParent
from tests.support.simulated_service import RUN_S, Call, SimulatedService

Serve = Callable[..., SimulatedService]
TRACED = {"trace": {"trace_file": "/nonexistent/trace.json"}}
TRACE_ID, CALLER_ID = "ab" * 16, "cd" * 8
US = 1_000  # nanoseconds


def send_traced(service: SimulatedService, *, is_single: bool = False) -> Call:
    """Send a request that its client traces."""
    trace = RequestTrace(lambda trace: None, TraceParent(TRACE_ID, CALLER_ID), {}, with_tensors=True)
    call = service.make()
    call.request.trace = trace
    service.run(lambda: trace.begin("HTTP", service.clock.now, "sim", "3", "", is_single=is_single))
    return service.send(call)[0]


def ask_traced(service: SimulatedService, *, is_single: bool = False) -> RequestTrace:
    """Run a traced request to its end."""
    call = send_traced(service, is_single=is_single)
    service.advance(1.0)
    assert call.answers and call.request.trace is not None
    return call.request.trace


@pytest.mark.parametrize("has_profile", [False, True])
def test_each_step_of_a_request_has_a_span(serve: Serve, has_profile: bool) -> None:
    service = serve({"a": {}, "b": {}}, dag={"use_profile": has_profile}, config=TRACED)
    trace = ask_traced(service)
    root, *steps = trace.spans
    assert [(span.model, span.parent) for span in trace.spans] == [("sim", None), ("a", root), ("b", root)]
    assert root.start < steps[0].start < steps[0].end <= steps[1].start < steps[1].end
    for span in steps:
        assert span.compute is not None
        taken = span.compute.input_end - span.compute.start, span.compute.end - span.compute.output_start
        assert taken == (1 * US, 1 * US)
        assert span.compute.output_start - span.compute.input_end == 2 * US
        assert span.queued and span.end - span.start == pytest.approx(RUN_S * 1e9, rel=0.2)
        assert [batch.links for batch in span.batches] == [[(TRACE_ID, span.span_id)]]
    assert [batch.op for batch in trace.batches] == ["a", "b"]


def test_the_run_of_a_single_op_belongs_to_the_span_of_its_model(serve: Serve) -> None:
    trace = ask_traced(serve(config=TRACED), is_single=True)
    (span,) = trace.spans
    assert (span.model, span.queued >= span.start) == ("sim", True)
    assert span.compute is not None


def test_the_worker_gets_the_place_of_a_request_in_its_trace(serve: Serve) -> None:
    service = serve(config=TRACED)
    call = send_traced(service)
    service.advance(RUN_S / 2)
    (instance,) = service.scheduler.pools["a"].instances
    (task,) = instance.in_flight[0].tasks
    assert task is not None
    message = service.run(lambda: task.message(4, []))
    assert call.request.trace is not None
    span = call.request.trace.steps["a"]
    assert message.trace is not None and message.trace.with_tensors
    assert message.trace.traceparent == f"00-{TRACE_ID}-{span.span_id}-01"
    assert (message.index, message.data_id, message.log_id) == (4, task.dag_run.data_id, 1)
    call.request.trace = None
    assert service.run(lambda: task.message(4, [])).trace is None
    assert (message.answers, message.state) == ("sim", None)
