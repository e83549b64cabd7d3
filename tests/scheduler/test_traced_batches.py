"""Spans of traced requests: the runs that workers report, lost runs, and further tries."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.front.pool.worker_process import Dispatch
from pipeline.front.scheduler import traced_batches
from pipeline.front.scheduler.traced_batches import trace_lost, trace_reply, trace_retry
from pipeline.front.tracing import request_trace
from pipeline.front.tracing.request_trace import Compute, RequestTrace, TraceParent
from pipeline.messages.messages import Outcome, Reply, Settled, Timings, TracedTensor

BEGAN_S, NOW_S = 100.0, 101.0
MS = 1_000_000
ANSWER = Outcome.ANSWER
TIMINGS = Timings(100 * MS, 300 * MS, 50 * MS)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Requests arrive at BEGAN_S, and replies at NOW_S."""
    clock = SimpleNamespace(monotonic=lambda: NOW_S, monotonic_ns=lambda: ns(BEGAN_S))
    monkeypatch.setattr(traced_batches, "time", clock)
    monkeypatch.setattr(request_trace, "time", clock)
    return clock


def ns(seconds: float) -> int:
    return int(seconds * 1e9)


def build_trace(*, is_single: bool = True) -> RequestTrace:
    trace = RequestTrace(lambda trace: None, TraceParent("ab" * 16, "cd" * 8), {}, with_tensors=True)
    trace.begin("HTTP", BEGAN_S, "model", "3", "", is_single=is_single)
    return trace


def build_task(trace: RequestTrace | None, queued_at: float = 100.2) -> Any:
    request = SimpleNamespace(trace=trace)
    return SimpleNamespace(node="step", queued_at=queued_at, dag_run=SimpleNamespace(request=request))


def build_dispatch(tasks: Sequence[Any], began: float = 100.4) -> Dispatch:
    return Dispatch(7, list(tasks), NOW_S + 9, began, began, len(tasks))


def build_process(*dispatches: Dispatch) -> Any:
    return SimpleNamespace(name="worker-1", instances=[SimpleNamespace(in_flight=list(dispatches))])


def reply(dispatch: Dispatch, timings: Timings = TIMINGS, settled: Sequence[Settled] | None = None) -> None:
    """Let a worker answer all requests of a dispatch."""
    if settled is None:
        settled = [Settled(index, ANSWER) for index in range(len(dispatch.tasks))]
    instance: Any = SimpleNamespace(process=build_process(dispatch))
    trace_reply("classifier:4", instance, dispatch, Reply(7, True, list(settled), timings))


def test_a_run_ends_with_its_reply_and_lasts_as_long_as_the_worker_says() -> None:
    trace = build_trace()
    reply(build_dispatch([build_task(trace)]))
    (span,) = trace.spans
    assert span.queued == ns(100.2)
    expected = Compute(ns(NOW_S) - 450 * MS, ns(NOW_S) - 350 * MS, ns(NOW_S) - 50 * MS, ns(NOW_S))
    assert span.compute == expected
    (batch,) = span.batches
    assert (batch.op, batch.worker, batch.requests) == ("classifier:4", "worker-1", 1)
    assert (batch.start, batch.end, batch.error) == (expected.start, ns(NOW_S), "")
    assert batch.links == [(trace.trace_id, span.span_id)]
    assert span.end == 0, "the span of the model ends with the response"


def test_no_run_begins_before_its_dispatch() -> None:
    trace = build_trace()
    reply(build_dispatch([build_task(trace)], began=100.9), Timings(0, 500 * MS, 0))
    assert trace.spans[0].compute == Compute(ns(100.9), ns(100.9), ns(NOW_S), ns(NOW_S))


def test_a_batch_counts_all_its_requests_and_links_those_that_are_traced() -> None:
    first, second = build_trace(), build_trace()
    reply(build_dispatch([build_task(first), build_task(None), build_task(second, queued_at=100.7), None]))
    (batch,) = first.spans[0].batches
    assert second.spans[0].batches == [batch]
    assert batch.requests == 4
    assert batch.links == [(trace.trace_id, trace.spans[0].span_id) for trace in (first, second)]
    assert batch.start == ns(NOW_S) - 450 * MS, "the run of the first request of the batch"
    assert (first.batches, second.batches) == ([batch], []), "a batch is reported once"


def test_only_settled_requests_get_the_run_of_a_reply() -> None:
    first, second = build_trace(), build_trace()
    reply(build_dispatch([build_task(first), build_task(second)]), settled=[Settled(1, ANSWER)])
    assert not first.spans[0].batches
    assert second.spans[0].batches[0].requests == 1


def test_a_reply_without_traced_requests_adds_nothing() -> None:
    dispatch = build_dispatch([build_task(None), None])
    reply(dispatch)
    assert dispatch.tasks[1] is None


def test_a_step_of_a_dag_has_a_span_that_ends_with_its_run() -> None:
    trace = build_trace(is_single=False)
    tensors = [TracedTensor("TENSOR_BACKEND_OUTPUT", "logits", "FP32", [1], "0.5")]
    reply(build_dispatch([build_task(trace)]), settled=[Settled(0, ANSWER, tensors=tensors)])
    root, span = trace.spans
    assert (span.model, span.version, span.parent) == ("classifier", 4, root)
    assert (span.start, span.queued, span.end) == (ns(100.2), ns(100.2), ns(NOW_S))
    assert span.tensors == tensors
    assert root.compute is None


def test_the_steps_of_an_ensemble_in_one_worker_follow_each_other_up_to_the_reply() -> None:
    trace = build_trace(is_single=False)
    steps = [
        ("tokenizer:1", 1, Timings(0, 10 * MS, 0)),
        ("network:2", 1, Timings(10 * MS, 100 * MS, 5 * MS)),
        ("network:2", 1, Timings(10 * MS, 100 * MS, 5 * MS)),
    ]
    dispatch = build_dispatch([build_task(trace), build_task(None)])
    reply(dispatch, Timings(steps=steps))
    _, tokenizer, network = trace.spans
    assert (tokenizer.model, network.model) == ("tokenizer", "network")
    end = ns(NOW_S)
    assert network.compute == Compute(end - 230 * MS, end - 210 * MS, end - 10 * MS, end)
    begin = end - 230 * MS
    assert tokenizer.compute == Compute(begin - 10 * MS, begin - 10 * MS, begin, begin)
    assert (tokenizer.queued, tokenizer.end, network.end) == (ns(100.2), begin, end)
    assert abs(network.queued - begin) < 1000, "a later step waits for nothing"
    assert not trace.batches, "batches of steps have requests of one worker alone"


def test_the_run_of_a_dead_worker_is_reported_with_an_error() -> None:
    trace = build_trace()
    lost = build_dispatch([build_task(trace), build_task(None), None])
    trace_lost("classifier:4", build_process(lost, build_dispatch([build_task(None)])))
    (batch,) = trace.spans[0].batches
    assert (batch.op, batch.worker, batch.requests) == ("classifier:4", "worker-1", 2)
    assert (batch.start, batch.end, batch.error) == (ns(100.4), ns(NOW_S), "the worker process died")


def test_a_dispatch_that_had_not_begun_starts_with_the_death() -> None:
    trace = build_trace()
    trace_lost("classifier:4", build_process(build_dispatch([build_task(trace)], began=NOW_S + 1)))
    (batch,) = trace.spans[0].batches
    assert batch.start == batch.end == ns(NOW_S)


def test_another_try_is_noted_in_the_span_of_its_step() -> None:
    trace = build_trace(is_single=False)
    trace_retry("classifier:4", build_task(trace))
    trace_retry("classifier:4", build_task(None))
    assert trace.steps["step"].notes == [("REQUEUED", ns(NOW_S))]
