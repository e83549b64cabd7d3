"""Copies of live requests, and the workers that run the copies beside the live workers."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from pipeline.api.dag import Dag, Edge, Node
from pipeline.errors import ServingError, StartFailed
from pipeline.front.dag_run import Answer, DagRun, Entry, Inputs, OpQueue, Request
from pipeline.front.metrics.metrics import Failures
from pipeline.front.pool.plan import Plan
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.front.upgrades.answers import Difference, Kind, Tolerances, find_difference
from pipeline.messages.frames import Part, decode
from pipeline.process.isolation import run_isolated

MAX_WAITING = 4  # copies of requests that wait for idle capacity
MAX_BYTES = 4 << 20  # of the inputs of a copied request
_STOP_S = 2.0  # for the end of a worker that does not hang
_READY_CHECK_S = 0.05
_SINK = "@compared"  # the node that receives the output of a copy

Enqueue = Callable[[DagRun, str, Inputs], None]


class Sample(NamedTuple):
    """A copy of the part of a live request that an Op gets."""

    request: Request
    node: Node  # the step of the request's graph that the Op runs
    inputs: Inputs


class Router(Protocol):
    """Interface that decides whether the served version or another version of a model runs a task."""

    def route(self, enqueue: Enqueue, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Queue a task for one of the versions. enqueue: queues the task for the served version."""
        ...


class Tap:
    """Copies requests on their way to the queue of an Op, unless too many copies wait."""

    def __init__(self, router: Router | None = None) -> None:
        """Create the tap. router: queues the requests; None if all go to the served version."""
        self.seen = 0  # requests of the Op
        self.copied = 0
        self._router = router
        self._samples: deque[Sample] = deque()
        self._arrived = asyncio.Event()

    def pass_on(self, enqueue: Enqueue, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Queue a task by `enqueue` or by the router, and copy the task for a comparison of versions."""
        if self._router is None:
            enqueue(dag_run, node, inputs)
        else:
            self._router.route(enqueue, dag_run, node, inputs)
        run_isolated(self._copy, dag_run, node, inputs)

    async def get_sample(self) -> Sample:
        """Wait until a request has been copied, and return the copy."""
        while not self._samples:
            self._arrived.clear()
            await self._arrived.wait()
        return self._samples.popleft()

    def _copy(self, dag_run: DagRun, name: str, inputs: Inputs) -> None:
        self.seen += 1
        node = dag_run.entry.dag.nodes[name]
        size = sum(len(part) for _, parts in inputs for part in parts)
        if len(self._samples) >= MAX_WAITING or size > MAX_BYTES or node.jumps or dag_run.turns:
            return
        # The client may change its shared memory once it has its response.
        copies: Inputs = [(source, [bytes(part) for part in parts]) for source, parts in inputs]
        self._samples.append(Sample(_copy_request(dag_run.request), node, copies))
        self.copied += 1
        self._arrived.set()


def _copy_request(request: Request) -> Request:
    """Return a copy of a request, without its client, deadline and trace."""
    return msgspec.structs.replace(
        request,
        inputs={},  # the tasks have them in encoded form
        deadline=math.inf,
        priority=0,
        timings=None,
        version="",
        finish=None,
        client=None,
        turn=0,
        stream=None,
        trace=None,
    )


@dataclass(eq=False)
class MirroredRun:
    """The run of a copied request by the workers of one version."""

    answer: asyncio.Future[Answer]
    dag_run: DagRun
    began: float
    took_s: float = 0.0

    def leave(self) -> None:
        """Abandon the copied request, as if its client had left."""
        self.dag_run.leave()


class VersionWorkers:
    """Workers of one version of a model, besides the workers that serve. They have their own queue."""

    def __init__(self, scheduler: Scheduler, op: str, plan: Plan, live_op: str = "") -> None:
        """Create the queue and the worker pool. op: the Op in `plan`.

        live_op: the Op whose live requests run here; empty if the workers get only copies of requests.
        """
        self._batcher = scheduler.create_batcher_beside(op, replace(plan, older=()), live_op)
        self._pool = self._batcher.pool

    async def start(self) -> None:
        """Start the worker processes, and wait until all are ready. Raises StartFailed."""
        pool = self._pool
        await pool.reload(pool.plan)
        while pool.ready < pool.size:
            if pool.given_up or pool.restarts:
                raise StartFailed(
                    f"a worker of Op {pool.op} died while others started; the log has the reason"
                )
            await asyncio.sleep(_READY_CHECK_S)

    async def stop(self) -> None:
        """End the worker processes. Kill a process that hangs, because nobody waits for its requests."""
        await self._pool.stop(_STOP_S)

    @property
    def deaths(self) -> int:
        """How often a worker process has died."""
        return self._pool.restarts

    @property
    def memory_bytes(self) -> float:
        """Resident memory of the worker processes, in bytes."""
        return sum(process.resident_bytes for process in self._pool.processes)

    def enqueue(self, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Queue a task of a request for the workers."""
        self._batcher.enqueue(dag_run, node, inputs)


class MirrorWorkers(VersionWorkers):
    """Workers of one version of a model that run copies of live requests.

    By default they run only on idle CPU time: with the kernel's scheduling policy SCHED_IDLE, all other
    processes of the machine run first. The metrics of the service do not count the copies.
    """

    def __init__(self, scheduler: Scheduler, op: str, plan: Plan, share_cpu: bool) -> None:
        """Store the plan for a single worker process, which suffices for copies.

        op: the Op in `plan`. share_cpu: whether copies compete with live requests for the CPU, instead of
        running only on idle CPU time.
        """
        super().__init__(scheduler, op, replace(plan, places=plan.places[:1]))
        self._op = op
        self._share_cpu = share_cpu
        self._yielding: set[int] = set()  # processes with the lowest priority

    def begin_copy(self, sample: Sample) -> MirroredRun:
        """Queue a copied request for the workers."""
        self._yield_cpu()
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        entry = self._create_entry(sample.node, answer)
        now = time.monotonic()
        dag_run = DagRun(_copy_request(sample.request), _ignore, now, entry, 0, 1)
        run = MirroredRun(answer, dag_run, now)
        answer.add_done_callback(lambda _: _record_time(run))
        inputs = dag_run.awaited[sample.node.name] = list(sample.inputs)
        self.enqueue(dag_run, sample.node.name, inputs)
        return run

    def _create_entry(self, node: Node, answer: asyncio.Future[Answer]) -> Entry:
        """Return the request state of a DAG with only one step, whose output is not encoded for a client."""

        def end(dag_run: DagRun, result: Answer | None) -> None:
            if not answer.done():
                if result is None:
                    answer.cancel()
                else:
                    answer.set_result(result)

        def keep_output(dag_run: DagRun, name: str, inputs: Inputs) -> None:
            # The parts may be views of memory that the next reply is written to.
            dag_run.end([bytes(part) for _, parts in inputs for part in parts])

        dag = Dag((Node(node.name, self._op, node.inputs), Node(_SINK, _SINK, (Edge(node.name),))), _SINK)
        queues = {
            node.name: OpQueue(self.enqueue, _ignore),
            _SINK: OpQueue(keep_output, _ignore),
        }
        return Entry(
            self._op,
            dag,
            queues,
            end,
            0,
            1,
            None,
            version="",
            versioned="",
            requests=None,
            failures=Failures(),
        )

    def _yield_cpu(self) -> None:
        """Give new worker processes the lowest priority. Threads that they start later inherit it."""
        for process in self._pool.processes:
            if self._share_cpu or process.pid in self._yielding:
                continue
            self._yielding.add(process.pid)
            with contextlib.suppress(OSError):  # the process has ended, or the kernel does not allow it
                for thread in Path(f"/proc/{process.pid}/task").iterdir():
                    os.sched_setscheduler(int(thread.name), os.SCHED_IDLE, os.sched_param(0))


def compare_answers(old: Answer, new: Answer, tolerances: Tolerances) -> Difference | None:
    """Return the first difference between the encoded answers of two runs; None if they agree.

    Two errors count as equal. Values that only a worker can decode are compared byte by byte.
    """
    if isinstance(old, ServingError) or isinstance(new, ServingError):
        if isinstance(old, ServingError) and isinstance(new, ServingError):
            return None
        return Difference("", Kind.TEXTS, _describe_answer(old)[:200], _describe_answer(new)[:200])
    try:
        values = _decode_parts(old), _decode_parts(new)
    except ValueError:
        if [bytes(part) for part in old] == [bytes(part) for part in new]:
            return None
        return Difference("", Kind.TENSORS, "a value of a Python class", "another value")
    return find_difference(*values, tolerances)


def _decode_parts(parts: list[Part]) -> Any:
    return decode(parts, allow_pickle=False)


def _describe_answer(answer: Answer) -> str:
    return f"error: {answer.message}" if isinstance(answer, ServingError) else "an answer"


def _record_time(run: MirroredRun) -> None:
    run.took_s = time.monotonic() - run.began


def _ignore(*_: object) -> None:
    pass
