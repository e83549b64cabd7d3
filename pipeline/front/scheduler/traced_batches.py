"""Adds the runs of a model, as its workers have timed them, to the traces of the requests in the batch."""

from __future__ import annotations

import itertools
import time
from operator import itemgetter

from pipeline.front.dag_run import Task
from pipeline.front.pool.worker_process import Dispatch, Instance, WorkerProcess
from pipeline.front.tracing.request_trace import Compute, RequestTrace, Span, add_batch, place_run, to_ns
from pipeline.messages.messages import Reply, Timings


def trace_reply(op: str, instance: Instance, dispatch: Dispatch, reply: Reply) -> None:
    """Add the model run that a reply reports to the traces of its requests, before they are completed."""
    traced = [
        (settled, task, trace)
        for settled in reply.settled
        if (task := dispatch.tasks[settled.index]) is not None
        and (trace := task.dag_run.request.trace) is not None
    ]
    if not traced:
        return
    now, worker = to_ns(time.monotonic()), instance.process.name
    runs: list[tuple[RequestTrace, Span]] = []
    for settled, task, trace in traced:
        if reply.timings.steps:
            _add_steps(trace, task, dispatch, reply.timings, now)
            continue
        span = trace.find_step(task.node, op, task.queued_at)
        span.compute = place_run(span.queued, to_ns(dispatch.began), now, _list_durations(reply.timings))
        span.tensors = settled.tensors
        if not trace.is_single:
            span.end = now
        runs.append((trace, span))
    if runs:
        start = min(span.compute.start for _, span in runs if span.compute is not None)
        add_batch(op, worker, len(reply.settled), runs, start, now)


def trace_lost(op: str, process: WorkerProcess) -> None:
    """Add the runs that a dying worker process leaves unfinished to the traces of its requests."""
    now = to_ns(time.monotonic())
    for instance in process.instances:
        for dispatch in instance.in_flight:
            tasks = dispatch.open_tasks()
            runs = [
                (trace, trace.find_step(task.node, op, task.queued_at))
                for task in tasks
                if (trace := task.dag_run.request.trace) is not None
            ]
            if runs:
                began = min(now, to_ns(dispatch.began))
                add_batch(op, process.name, len(tasks), runs, began, now, "the worker process died")


def trace_retry(op: str, task: Task) -> None:
    """Record in the trace of a request that one of its tasks was queued again."""
    trace = task.dag_run.request.trace
    if trace is not None:
        trace.find_step(task.node, op, task.queued_at).notes.append(("REQUEUED", to_ns(time.monotonic())))


def _add_steps(trace: RequestTrace, task: Task, dispatch: Dispatch, timings: Timings, now: int) -> None:
    """Add the steps of an ensemble, which one worker has run one after the other, to a trace."""
    began, queued = to_ns(dispatch.began), to_ns(task.queued_at)
    steps = [
        (op, [_list_durations(run) for _, _, run in runs])
        for op, runs in itertools.groupby(timings.steps, key=itemgetter(0))
    ]
    computes: list[tuple[str, Compute]] = []
    ended = now
    for op, durations in reversed(steps):
        compute = place_run(queued, began, ended, [sum(stage) for stage in zip(*durations, strict=True)])
        computes.insert(0, (op, compute))
        ended = compute.start
    for number, (op, compute) in enumerate(computes):
        queued_at = compute.start * 1e-9 if number else task.queued_at
        span = trace.find_step(f"{number}:{op}", op, queued_at)
        span.compute, span.end = compute, compute.end


def _list_durations(timings: Timings) -> tuple[int, int, int]:
    return timings.preprocess_ns, timings.process_ns, timings.postprocess_ns
