"""Traces, recent errors and scaling of requests that simulated workers run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.tracing.request_trace import RequestTrace, TraceParent
from tests.support.simulated_service import RUN_S, SimulatedService

Serve = Callable[..., SimulatedService]
TRACED = {"trace": {"trace_file": "/nonexistent/trace.json"}}
TRACE_ID, CALLER_ID = "ab" * 16, "cd" * 8
US = 1_000  # nanoseconds


def ask_traced(service: SimulatedService, kind: str = "answer", *, is_single: bool = False) -> RequestTrace:
    """Run a request, whose client traces it, to its end."""
    trace = RequestTrace(lambda trace: None, TraceParent(TRACE_ID, CALLER_ID), {}, with_tensors=True)
    call = service.make(kind)
    call.request.trace = trace

    def begin() -> None:
        trace.begin("HTTP", service.clock.now, "sim", "3", "", is_single=is_single)

    service.run(begin)
    service.send(call)
    service.advance(1.0)
    assert call.answers
    return trace


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
    trace = RequestTrace(lambda trace: None, TraceParent(TRACE_ID, CALLER_ID), {}, with_tensors=True)
    call = service.make()
    call.request.trace = trace
    service.run(lambda: trace.begin("HTTP", service.clock.now, "sim", "3", "", is_single=False))
    service.send(call)
    service.advance(RUN_S / 2)
    (instance,) = service.scheduler.pools["a"].instances
    (task,) = instance.in_flight[0].tasks
    assert task is not None
    message = service.run(lambda: task.message(4, []))
    span = trace.steps["a"]
    assert message.trace is not None and message.trace.with_tensors
    assert message.trace.traceparent == f"00-{TRACE_ID}-{span.span_id}-01"
    assert (message.index, message.data_id, message.log_id) == (4, task.dag_run.data_id, 1)
    call.request.trace = None
    assert service.run(lambda: task.message(4, [])).trace is None
    assert (message.answers, message.state) == ("sim", None)


def test_recent_errors_name_the_op_and_the_request(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    for _ in range(2):
        service.ask("error", node="b")
        service.advance(1.0)
    (cause,) = service.scheduler.recent_errors.list_causes()
    assert (cause.model, cause.op, cause.kind, cause.endpoint) == ("sim", "b", "InvalidInput", "http")
    assert (cause.count, cause.http_status, cause.err_no) == (2, 400, 5000)
    assert [request.client_id for request in cause.requests] == ["1", "2"]
    named = service.make("error", node="b")
    named.request.options = named.request.options and named.request.options._replace(id="mine")
    service.send(named)
    service.advance(1.0)
    (cause,) = service.scheduler.recent_errors.list_causes()
    assert cause.requests[-1].client_id == "mine"


def test_an_op_gets_more_instances_while_requests_wait_long(serve: Serve) -> None:
    section = {"batch_size": 1, "max_concurrency": 3, "scale_wait": 0.05}
    service = serve({"a": section})
    pool = service.scheduler.pools["a"]
    assert pool.ready == 1
    calls = []
    for _ in range(40):
        calls += service.ask_several(3)
        service.advance(RUN_S)
    assert pool.ready == 3
    service.advance(20.0)
    assert all(call.answers for call in calls)


class TestWorkersBeside:
    """Workers of another version, beside those that serve."""

    @staticmethod
    def started(service: SimulatedService, live_op: str = "") -> Batcher:
        plan = service.scheduler.pools["a"].plan
        batcher: Batcher = service.run(lambda: service.scheduler.create_batcher_beside("a", plan, live_op))
        service.run(lambda: asyncio.ensure_future(batcher.pool.reload(plan)))
        service.advance(2.0)
        assert batcher.pool.ready == 1
        return batcher

    @staticmethod
    def divert(service: SimulatedService, batcher: Batcher) -> None:
        """Let the workers beside run the requests."""

        class Diverting:
            def pass_on(self, enqueue: Any, *task: Any) -> None:
                batcher.enqueue(*task)

        service.scheduler.mirror("a", Diverting())  # type: ignore[arg-type]

    @pytest.mark.parametrize("live_op", ["", "a"])
    def test_they_run_requests_and_count_those_of_a_live_op(self, serve: Serve, live_op: str) -> None:
        service = serve()
        batcher = self.started(service, live_op)
        self.divert(service, batcher)
        call = service.ask()
        service.advance(1.0)
        assert call.body == "1 a()"
        (served,), (beside,) = service.scheduler.pools["a"].instances, batcher.pool.instances
        assert (served.served, beside.served) == (0, 1)
        assert service.metrics.of_ops["a"].runs == (1 if live_op else 0)
        service.run(lambda: service.scheduler.mirror("a", None))
        service.ask()
        service.advance(1.0)
        assert (served.served, beside.served) == (1, 1)
        service.loop.run_until_complete(batcher.pool.stop(1.0))

    def test_their_failures_do_not_end_the_service(self, serve: Serve) -> None:
        service = serve()
        batcher = self.started(service)
        (worker,) = [worker for worker in service.workers if worker is not service.workers[0]]
        service.kill(worker)
        service.advance(0.01)
        assert (service.scheduler.ready, service.scheduler.fatal.done()) == (True, False)
        service.loop.run_until_complete(batcher.pool.stop(1.0))


def test_an_op_is_idle_without_running_and_queued_requests(serve: Serve) -> None:
    service = serve()
    assert service.scheduler.is_idle("a")
    assert not service.scheduler.is_idle("other")
    service.ask()
    service.advance(RUN_S / 2)
    assert not service.scheduler.is_idle("a")
    service.advance(1.0)
    assert service.scheduler.is_idle("a")
