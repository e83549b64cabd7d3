"""Dynamic batching: the batcher queues the requests of one Op, and sends them in groups to its workers.

A task is the part of a request that one Op computes. A dispatch is a group of tasks that is sent to a worker
instance together. The worker may cut it into several batches of the model. The decisions are pure functions
of queue, policy and current time, see `dispatch_size`.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import attrgetter
from typing import Any

from pipeline.api.queue_policy import QueuePolicies
from pipeline.api.request_options import NO_OPTIONS
from pipeline.config.config_file import ServiceConfig
from pipeline.errors import (
    DeadlineExceeded,
    NotReady,
    Overloaded,
    ServingError,
    UnknownVersion,
    get_error_text,
)
from pipeline.front.dag_run import DagRun, FairQueue, InOrder, Inputs, Task, TaskQueue
from pipeline.front.metrics.metrics import OpFigures
from pipeline.front.pool.plan import Plan
from pipeline.front.pool.worker_pool import PoolServices, WorkerPool
from pipeline.front.pool.worker_process import (
    Dispatch,
    DispatchCallbacks,
    Instance,
    State,
    WorkerProcess,
    time_limits,
)
from pipeline.front.scheduler.batch_limit import BatchLimit
from pipeline.front.scheduler.run_limiter import LimitedRuns, RunLimiter
from pipeline.front.scheduler.sequences import Sequences
from pipeline.front.scheduler.traced_batches import trace_lost, trace_reply, trace_retry
from pipeline.front.scheduler.worker_faults import (
    STOPPED_LIMIT_S,
    STUCK_AFTER_S,
    STUCK_RUNS,
    HungRuns,
    RunTimes,
    Verdict,
    late_after_s,
    refuse_blamed,
    tried_again,
)
from pipeline.messages.frames import Part
from pipeline.messages.messages import Outcome, Reply, Timings
from pipeline.process.isolation import isolated, run_isolated

log = logging.getLogger(__name__)

FAST_DISPATCH_S = 0.010  # below this, waiting for the front between two dispatches is a visible loss
SHORT_DISPATCH_S = 0.050  # below this, new requests hardly wait longer for a dispatch of more batches
BATCHES_WHEN_SHORT = 4
BATCHES_WHEN_LONG = 2
SLOW_DISPATCH_S = 0.5  # above this, send fewer batches per dispatch so that new requests wait less
MIN_RUNS = 2  # minimum of runs in a slow dispatch: fewer would hide how many tasks share a run
GATHER_SHARE = 0.5  # of a usual run: maximum wait of an idle instance for its previous callers
GATHER_MOST_S = 0.005
REST_S = 0.006  # of a dispatch that is answered in part: behind a shorter rest the next one may wait
# Decoding takes a worker up to 0.1 us a byte, for which the other requests of a dispatch would wait.
LONE_BYTES = 4 << 20  # a request with more input bytes has a dispatch of its own
OVERTAKING_S = 1.0  # usual time of the queued tasks that a new worker gets before it runs suspects
_SMOOTHING = 0.2  # weight of the latest dispatch in `Pace.usual_s`
_MEMORY = 0.95  # weight of the earlier tasks in the means of `Pace`, for each further task
_MIN_MEMORY = 0.7  # the same for a dispatch with many tasks: about three dispatches count


HANGS = {
    Verdict.HUNG: "seems to hang: its run makes no progress and uses no CPU",
    Verdict.STOPPED: "is stopped (SIGSTOP) in a run",
}
_IDLE_SINCE = attrgetter("idle_since")
_ROWS = attrgetter("rows")
_READY = State.READY
_numbers = itertools.count()


@dataclass(frozen=True)
class BatchPolicy:
    """Batching settings of a pipeline step (Op): batch size, and maximum wait for a full batch."""

    batch_size: int  # requests in a predictor batch
    max_queue_delay_s: float = 0.0  # how long a partial batch may wait
    # a dispatch has one batch at most: its time is that of each request in it, and resources are held shortly
    one_batch: bool = False
    preferred: tuple[int, ...] = ()  # rows of batches that leave at once, ascending; see `prefer_batch`
    least: int = 0  # requests that leave at once; 0: a full batch
    max_rows: int = 0  # rows of a full batch; 0: any number, only requests count

    @cached_property
    def full(self) -> int:
        """Number of queued requests that are dispatched immediately, without waiting for more requests."""
        return self.least or self.batch_size


def prefer_batch(rows: Iterable[int], policy: BatchPolicy) -> tuple[int, bool]:
    """Return how many of the next queued requests form a batch, and whether to send the batch immediately.

    As in Triton, a batch is sent immediately if its number of rows is a preferred batch size: the largest
    that the requests reach exactly. If the requests exceed all preferred sizes without reaching any, the
    batch is sent without the request that exceeds them. Other requests may wait for more requests.

    rows: rows of each queued request, in order.
    """
    best = tasks = total = 0
    for count in rows:
        if tasks and not best and total + count > policy.preferred[-1]:
            best = tasks
        if tasks and total + count > (policy.max_rows or math.inf):
            break
        total += count
        tasks += 1
        if total in policy.preferred:
            best = tasks
    return best or tasks, best > 0


def count_alike(keys: Iterable[tuple[Any, ...] | None]) -> int:
    """Return how many of the next queued requests may share a delayed batch.

    The batch ends before the first request with another key. keys: `Request.batch_key` of each request. An
    unknown key (None) matches any other.
    """
    count, first = 0, None
    for key in keys:
        if key is not None and first is not None and key != first:
            break
        first = first or key
        count += 1
    return count


def ripe_in(may_grow: bool, oldest: float, policy: BatchPolicy, now: float) -> float:
    """Return the seconds until queued requests may be dispatched under a configured queue delay; 0: now.

    may_grow: whether the requests fill no batch yet. oldest: instant at which the oldest request was queued.
    now: instant of time.monotonic().
    """
    return max(0.0, oldest + policy.max_queue_delay_s - now) if may_grow else 0.0


def gathered_in(
    waiting: int, answered: int, policy: BatchPolicy, idle_since: float, usual_s: float | None, now: float
) -> float:
    """Return how many seconds an idle worker waits for new requests of its previous callers; 0: send now.

    Clients that send their next request immediately after a response return one by one. If the first request
    ran alone, the others would wait for its run, and batches would stay small (docs/decisions/batching.md).
    An instance that has answered k requests therefore waits for k requests or a full batch, but at most for
    half a usual run. A single client never waits, nor does a request that arrives after that time.

    waiting: queued requests. answered: requests in the last dispatch of the instance. usual_s: time of recent
    dispatches; None before the first.
    """
    if usual_s is None or waiting >= min(answered, policy.full):
        return 0.0
    return max(0.0, idle_since + min(GATHER_SHARE * usual_s, GATHER_MOST_S) - now)


def dispatch_size(
    waiting: int, free_instances: int, policy: BatchPolicy, usual_s: float | None, max_tasks: float = math.inf
) -> int:
    """Return how many queued tasks (requests) to send to a worker: an even share, but at most a few batches.

    If a worker gets several batches of tasks, it can batch requests of similar length. A slow model gets
    fewer batches, so that the last request of a dispatch does not wait while another instance is idle.

    waiting: number of queued tasks. usual_s: time of recent dispatches; None before the first. max_tasks: see
    `Pace.most_tasks`.
    """
    if policy.one_batch:
        batches = 1
    else:
        is_short = usual_s is not None and usual_s < SHORT_DISPATCH_S
        batches = BATCHES_WHEN_SHORT if is_short else BATCHES_WHEN_LONG
    share = -(-waiting // max(1, free_instances))
    return max(1, math.floor(min(share, policy.batch_size * batches, max_tasks)))


def may_queue_behind(
    running: int, began: float, waiting: int, batch_size: int, usual_s: float | None, now: float
) -> bool:
    """Return whether a busy worker may get its next tasks before it has finished the current ones.

    This avoids an idle gap after the run of a fast model. Behind a slow or late run it would only bind
    requests to one instance, and split a batch that could still grow. So the queue must contain a full batch,
    and as many tasks as are running.

    running: number of tasks that the instance executes since the instant `began`. waiting: number of queued
    tasks.
    """
    fast = usual_s is not None and usual_s < FAST_DISPATCH_S and now - began < 2 * usual_s + 0.001
    return fast and waiting >= max(running, batch_size)


def may_follow(tasks: int, open_tasks: int, waiting: int, rest_s: float) -> bool:
    """Return whether a worker that has answered only a part of its tasks may already get the next tasks.

    Between two dispatches the instance would be idle until the front-end process has sent responses and new
    tasks. Most clients whose requests are answered have sent new requests by then, so the next dispatch is
    not small: at least half as many tasks must wait. A dispatch of a single model run is answered as a whole,
    so the function does not apply to it (docs/decisions/batching.md).

    tasks: size of the current dispatch. open_tasks: its tasks without an answer. waiting: queued tasks.
    rest_s: expected time of the open tasks. If negative, they are late, and no request shall wait behind a
    run that may hang.
    """
    return open_tasks < tasks and 2 * waiting >= tasks and abs(rest_s) <= REST_S


def overtaking_tasks(waiting: int, per_task_s: float) -> int:
    """Return how many queued tasks a new worker gets before tasks that may have killed the previous worker.

    waiting: number of queued tasks. per_task_s: mean time of a task; 0 if unknown.
    """
    return min(waiting, max(1, int(OVERTAKING_S / per_task_s))) if per_task_s else waiting


class Pace:
    """Statistics of an Op's speed, from the durations of its recent dispatches in seconds; 0 without history.

    A dispatch is a group of tasks that a worker gets together. usual_s: exponential average of the durations;
    None before the first. run_s: mean duration of a dispatch. per_task_s: mean time of an instance for one
    task.

    first_s: mean time of a dispatch until its requests have their first answers. per_row_s: the same time for
    one row. Both exclude the rest of streams: the length of a stream says nothing about the next request.

    The means stay correct when short and long runs alternate. They cover few tasks, because an overload slows
    runs within a tenth of a second (rejections take CPU), and older times would admit too many requests.
    """

    def __init__(self) -> None:
        self.usual_s: float | None = None
        self.run_s = self.first_s = 0.0
        self.per_task_s = 0.0
        self.per_row_s = 0.0
        self._took_s = self._streamed_s = self._dispatches = self._tasks = self._rows = 0.0
        self._tasks_a_run = math.inf

    @property
    def most_tasks(self) -> float:
        """Maximum number of tasks to send to a worker together, so that new requests do not wait long.

        It is the number of tasks that take `SLOW_DISPATCH_S`, or that fill `MIN_RUNS` model runs. It is
        infinite until a worker has split a dispatch into several runs: before that, the time may not depend
        on the number of tasks.
        """
        if self._tasks_a_run == math.inf:
            return math.inf
        return max(MIN_RUNS * self._tasks_a_run, SLOW_DISPATCH_S / self.per_task_s)

    def record(
        self, took_s: float, tasks: int, runs: int = 0, rows: int = 0, streamed_s: float = 0.0
    ) -> None:
        """Record the duration of a dispatch (a group of tasks in a worker) that has ended.

        took_s: the duration in seconds. tasks: number of its requests. runs: sequential executions of the
        model; 0 if unknown. rows: rows of its requests, at least one for each. streamed_s: part of the
        duration, from first to latest answers.
        """
        if runs > 1:
            is_known = self._tasks_a_run < math.inf
            change = tasks / runs - self._tasks_a_run
            self._tasks_a_run = self._tasks_a_run + _SMOOTHING * change if is_known else tasks / runs
        elif runs == 1 and self._tasks_a_run < tasks:
            self._tasks_a_run = tasks
        usual_s = self.usual_s
        self.usual_s = took_s if usual_s is None else usual_s + _SMOOTHING * (took_s - usual_s)
        memory = max(_MIN_MEMORY, _MEMORY**tasks)
        self._took_s = self._took_s * memory + took_s
        self._streamed_s = self._streamed_s * memory + streamed_s
        self._dispatches = self._dispatches * memory + 1
        self._tasks = self._tasks * memory + tasks
        self.run_s = self._took_s / self._dispatches
        self.first_s = (self._took_s - self._streamed_s) / self._dispatches
        self.per_task_s = self._took_s / self._tasks
        self._rows = self._rows * memory + max(tasks, rows)
        self.per_row_s = (self._took_s - self._streamed_s) / self._rows


class Batcher:
    """Queue and dynamic batching of a pipeline step (Op): sends queued tasks in groups to idle workers.

    A task is the part of a request that the Op computes. An idle instance waits at most 5 ms for a fuller
    batch, or as config.yml sets. A task that may have killed a worker is a suspect: it runs alone in an idle
    process, and before the queued tasks. If no other worker is available, a new worker gets some queued tasks
    first, because a suspect may kill the new worker, too.
    """

    def __init__(
        self,
        op: str,
        config: ServiceConfig,
        plan: Plan,
        figures: OpFigures,
        fair_queue: FairQueue,
        update_paces: Callable[[], None],
        services: PoolServices,
        of_steps: Mapping[str, OpFigures] | None = None,
        limiter: RunLimiter | None = None,
    ) -> None:
        """Create the batcher and its worker pool; `pool.start` starts the processes.

        plan: version, files and processes of the Op's workers. figures: the Op's metrics. fair_queue: the
        turns of clients. update_paces: called when `pace` has changed. of_steps: metrics by Op, if the
        workers run all steps of an ensemble. limiter: the rate limiter of the service; None if model runs
        need no resources.
        """
        section = config.op[op]
        batching = plan.app.get_batching(op)
        self._queue_policies = batching.policies
        self._in_order = InOrder() if batching.in_order else None
        self.op = op
        self.number = next(_numbers)  # identifies this load of the model
        replying: Callable[[Instance, Dispatch, Reply], None] | None = None
        profiles = config.dag.use_profile or figures.latencies is not None
        if config.trace.is_possible:
            replying = partial(self._trace_reply, profiles=profiles)
        elif profiles:
            replying = self.add_timings
        callbacks = DispatchCallbacks(
            replying,
            self.replied,
            self.timed_out,
            self.declined,
            self.dispatch_soon,
            self.requeue_lost,
            refuse_blamed,
        )
        self.pool = WorkerPool(op, plan, callbacks, services)
        self.pace = Pace()
        self._names_version = bool(plan.version)
        self._timeout_s = time_limits(section).call_s  # of one try
        needs = plan.app.get_run_needs(op)
        self.limited = (
            LimitedRuns(limiter, needs, self.dispatch_soon) if limiter is not None and needs else None
        )
        self._policy = BatchPolicy(
            section.batch_size,
            section.auto_batching_timeout / 1000,
            one_batch=self._timeout_s < math.inf or self.limited is not None,
            preferred=batching.preferred,
            least=batching.least,
            max_rows=batching.max_rows,
        )
        self._batch_limit = 0  # see `DispatchMessage`
        self._learned: BatchLimit | None = None  # with `batch_size: auto`
        choice = plan.app.choices.get(op)
        if choice is not None and "batch_size" in choice.left_open:
            first = choice.batch_limit or section.batch_size
            self._learned = BatchLimit(first, section.batch_size, time.monotonic())
            self.limit_batches(first)
        self._runs_in_turn = not section.server_endpoints  # a remote model's are under way together
        self._crash_retry = section.crash_retry
        self._stuck_after_s = (section.run_timeout or math.inf) / 4
        self._tries = max(1, section.retry)
        self._figures = figures
        self._of_steps = of_steps
        self._fair_queue = fair_queue
        self._update_paces = update_paces
        self._queue = TaskQueue()
        rules = plan.app.get_sequence_rules(op)
        self.sequences = (
            None
            if rules is None
            else Sequences(
                op, rules, config.limits, self._push_again, list_instances=self._list_ready_instances
            )
        )
        self._suspects: deque[Task] = deque()
        self._overtakes = False  # the next ready worker gets queued tasks before suspects
        self._ahead = 0  # queued tasks to send before the suspects
        waits_idly = bool(section.server_endpoints)
        instances = self.pool.all_instances
        self._hung_runs = HungRuns(instances, self._get_run_times, self._move_requests, waits_idly=waits_idly)
        self._dispatching = False
        self._ripening: asyncio.TimerHandle | None = None
        self.held_s = 0.0  # how long the workers may hold finished answers back
        # Lets another process run queued tasks while the runs of all instances are late; None without one.
        self.pass_on: Callable[[Sequence[Task]], None] | None = None

    def limit_batches(self, requests: int) -> None:
        """Set the maximum number of requests in one execution of the model, up to the worker's own limit."""
        self._batch_limit = requests
        self._policy = replace(self._policy, batch_size=requests)

    def _list_ready_instances(self) -> list[Instance]:
        return [instance for instance in self.pool.instances if instance.state is _READY]

    @property
    def waiting(self) -> int:
        """Number of queued tasks, cancelled tasks included."""
        return len(self._queue) + len(self._suspects)

    @property
    def _has_available(self) -> bool:
        """Whether an instance will soon accept tasks: it is ready, and runs no abandoned or large request."""
        return any(
            instance.state is _READY
            and instance.abandoned is None
            and not (instance.in_flight and instance.in_flight[0].is_lone)
            for instance in self.pool.instances
        )

    @property
    def sound(self) -> int:
        """Number of worker instances that are ready and do not seem to hang in a model run.

        It is 0 in a crash loop. A hung instance is killed only at its time limit, because a single run may be
        slow.
        """
        if self.pool.in_crash_loop:
            return 0
        run_s = self.pace.run_s
        busy_since = time.monotonic() - max(min(STUCK_AFTER_S, self._stuck_after_s), STUCK_RUNS * run_s)
        return sum(
            instance.state is _READY
            and not instance.hangs
            and (not instance.in_flight or not run_s or instance.in_flight[0].run_began > busy_since)
            for instance in self.pool.instances
        )

    @property
    def idle(self) -> bool:
        """Whether a new task would run at once: the queue is empty, and a worker instance has no work."""
        return not self.waiting and any(i.has_place and not i.in_flight for i in self.pool.instances)

    def rows_ahead(self, place: tuple[int, int] | None) -> int:
        """Return the number of rows that will run before a new task: rows in workers, and queued rows.

        place: priority of the new task, and the turn after its own turn; None: behind all queued tasks.
        """
        if place is None:
            queued = self._queue.rows + sum(task.rows for task in self._suspects)
        else:
            queued = self._queue.rows_before(place)
        in_flight = (dispatch for instance in self.pool.instances for dispatch in instance.in_flight)
        return queued + sum(dispatch.rows for dispatch in in_flight if not dispatch.abandoned)

    def wait_s(self, rows: int) -> float:
        """Return the expected seconds until the workers have processed this number of rows."""
        working = sum(i.state is _READY and not i.hangs for i in self.pool.instances)
        return rows * self.pace.per_row_s / max(1, working) + self._overdue_s()

    def expect_wait_s(self) -> float:
        """Return the expected seconds that a new request will be in the queue."""
        return self.wait_s(self.rows_ahead(None))

    def _overdue_s(self) -> float:
        """Return by how many seconds the least late worker exceeds its usual time; 0 if any is on time."""
        now, first_s = time.monotonic(), self.pace.first_s
        began = [
            instance.in_flight[0].began + instance.in_flight[0].streamed_s if instance.in_flight else now
            for instance in self.pool.instances
            if instance.state is _READY
        ]
        return max(0.0, now - max(began) - first_s) if began and first_s else 0.0

    def last(self) -> Task | None:
        """Return the queued task that would run last, without removing it; None if the queue is empty."""
        return self._queue.last()

    def record_error(self, error: ServingError) -> None:
        """Count a request that this pipeline step (Op) has refused or failed, in the Op's metrics."""
        self._figures.failed += 1
        self._figures.failures.count(error)

    def enqueue(self, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Queue a task: the work of this pipeline step (Op) for a request.

        node: step of the DAG. inputs: outputs of the previous steps. Tasks of the same iteration of the event
        loop are dispatched together. A task that the queue policy rejects fails with Overloaded.
        """
        turn = dag_run.turns.get(self.op)
        task = Task(
            dag_run,
            node,
            inputs,
            next(_numbers),
            time.monotonic(),
            self._tries,
            dag_run.request.rows,
            in_order=self._in_order,
            turn=turn,
        )
        if turn is not None and not turn.admit(task):
            return
        if turn is None and self.sequences is not None:
            error = ServingError(f"Op {self.op} keeps sequences, so that no decoupled model can precede it")
            asyncio.get_running_loop().call_soon(task.fail, error)
            return
        if self._queue_policies is not None and not self._may_wait(task, self._queue_policies):
            return
        self._queue.insert(task)
        if not self._dispatching:
            self.dispatch_soon()

    def _may_wait(self, task: Task, policies: QueuePolicies) -> bool:
        """Return whether the model's queue policy admits a task. Otherwise the task fails with Overloaded.

        Sets the timer that limits the time of an admitted task in the queue.
        """
        options = task.dag_run.request.options or NO_OPTIONS
        policy = policies.get_policy(options.priority)
        loop = asyncio.get_running_loop()
        queued = self._queue.count_priority(task.dag_run.request.priority) if policy.max_queue_size else 0
        if queued and not (self._policy.max_queue_delay_s and self._may_grow()):
            # Idle instances take as many requests before the event loop turns.
            queued -= sum(i.has_place and not i.in_flight for i in self.pool.instances)
        if policy.max_queue_size and queued >= policy.max_queue_size:
            refusal = Overloaded(f"max_queue_size of model {self.op} is {policy.max_queue_size}")
            loop.call_soon(task.fail, refusal)  # later, for the admission of the request has not returned yet
            return False
        wait_s = policy.wait_s(options.timeout_us)
        if wait_s < math.inf:
            task.wait_limit = loop.call_later(wait_s, self._delay if policy.delays else _refuse_late, task)
        return True

    def _delay(self, task: Task) -> None:
        """Move a task behind all others of its priority, because its queue policy's timeout has passed.

        Does nothing if the task has left the queue.
        """
        if task.wanted and not task.left_queue:
            self._queue.insert(task.delayed())
            self.dispatch_soon()

    def _push_again(self, task: Task) -> None:
        """Queue a task after a lost, abandoned or recalled try, or after its predecessor in its sequence.

        Suspects (tasks that may have killed a worker) get a separate queue.
        """
        run_isolated(trace_retry, self.op, task)
        if task.alone:
            self._suspects.append(task)
        else:
            self._queue.insert(task)
        self.dispatch_soon()

    def dispatch_soon(self) -> None:
        """Send queued tasks to free workers at the end of this iteration of the event loop."""
        if not self._dispatching:
            self._dispatching = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        """Send queued tasks to free worker instances until tasks, instances or resources run out."""
        self._dispatching = False
        if self.limited is None:
            self._dispatch_tasks()
            return
        self.limited.begin_attempt()
        try:
            self._dispatch_tasks()
        finally:
            self.limited.end_attempt(has_tasks=bool(self.waiting))

    def _dispatch_tasks(self) -> None:
        if self.pool.given_up and not self.pool.ready:
            self._refuse_all()
            return
        now, pace = time.monotonic(), self.pace
        if self.sequences is not None and self.sequences.is_bound:
            self._dispatch_bound(self.sequences, now)
            return
        if self._overtakes and self._has_available:
            self._overtakes = False
            self._ahead = overtaking_tasks(len(self._queue), pace.per_task_s)
        while (first := self._queue.first()) is not None:
            if self._suspects and not self._ahead and not self._dispatch_suspects(now):
                return  # other tasks would keep the processes busy, and suspects need an idle process
            free = self._free(first, now)
            if not free:
                return
            size = self._choose_size(self._queue, len(free), now)
            if self._ahead:
                size = min(size, self._ahead)
                self._ahead -= size
            self._send(free[0], self._queue.pop_tasks(size), now)
        self._ahead = 0
        if self._suspects:
            self._dispatch_suspects(now)

    def _dispatch_bound(self, sequences: Sequences, now: float) -> None:
        """Send the queued tasks of stateful sequences, each to the instance that keeps its state."""
        sequences.give_slots()
        if self._suspects and not self._dispatch_suspects(now):
            return
        for instance, tasks in sequences.group_tasks(list(self._queue)).items():
            assert isinstance(instance, Instance)
            if not self._may_get(instance, tasks, now):
                continue
            size = self._choose_size(tasks, 1, now)
            chosen = tasks[:size]
            self._queue.pop_only(chosen)
            self._send(instance, chosen, now)

    def _choose_size(self, tasks: TaskQueue | list[Task], free_instances: int, now: float) -> int:
        """Return how many of these queued tasks to send to a worker instance together."""
        alike = self._list_alike(tasks)
        if len(alike) < len(tasks):
            next_task = next(itertools.islice(tasks, len(alike), None))
            if ripe_in(True, next_task.queued_at, self._policy, now) > 0:
                tasks = alike  # the others still wait for a batch of their own
        if self._policy.preferred:
            return prefer_batch(map(_ROWS, tasks), self._policy)[0]
        pace = self.pace
        return dispatch_size(len(tasks), free_instances, self._policy, pace.usual_s, pace.most_tasks)

    def _list_alike(self, tasks: TaskQueue | list[Task]) -> TaskQueue | list[Task]:
        """Return the first of these tasks that may share a delayed batch, up to the first that may not."""
        if not self._policy.max_queue_delay_s:
            return tasks
        limit = min(len(tasks), self._policy.full)  # a full batch need not wait for more
        alike = count_alike(task.dag_run.request.batch_key for task in itertools.islice(tasks, limit))
        return tasks if alike == limit else list(itertools.islice(tasks, alike))

    def _may_grow(self, tasks: TaskQueue | list[Task] | None = None) -> bool:
        """Return whether queued tasks may wait for more tasks, because they do not fill a batch yet.

        tasks: None for all queued tasks. As in Triton, the first task that can't join their batch ends the
        wait.
        """
        policy, tasks = self._policy, self._queue if tasks is None else tasks
        if self._list_alike(tasks) is not tasks:
            return False
        if policy.preferred:
            return not prefer_batch(map(_ROWS, tasks), policy)[1]
        if len(tasks) >= policy.full:
            return False
        rows = tasks.rows if isinstance(tasks, TaskQueue) else sum(map(_ROWS, tasks))
        return not policy.max_rows or rows < policy.max_rows

    def _may_get(self, instance: Instance, tasks: list[Task], now: float) -> bool:
        """Return whether an instance may get tasks now. If it waits for a fuller batch, a timer is set."""
        if not instance.has_place:
            return False
        if instance.in_flight:
            return self._may_queue_behind(instance.in_flight[0], len(tasks), now)
        wait_s = self._wait(instance, tasks[0], len(tasks), self._may_grow(tasks), now)
        if wait_s > 0:
            self._ripen_in(wait_s)
        return wait_s <= 0 and bool(self._select_limited([instance]))

    def _select_limited(self, instances: list[Instance]) -> list[Instance]:
        """Return the instances whose rate-limiter resources suffice for another run; without limits, all."""
        return instances if self.limited is None else self.limited.select(instances)

    def _refuse_all(self) -> None:
        """Fail all queued tasks with NotReady (HTTP 503), because no worker is left and none can start."""
        tasks = [*self._suspects, *self._queue.clear()]
        self._suspects.clear()
        error = NotReady(f"Op {self.op} has no worker left and none can be started: the service ends")
        if self.sequences is not None:
            self.sequences.clear_backlog(error)
        for task in tasks:
            task.fail(error)

    def _free(self, first: Task, now: float) -> list[Instance]:
        """Return the worker instances that may get tasks now. The last used is first: its caches are warm.

        first: the next task. If an idle instance has to wait for a fuller batch, a timer is set.
        """
        ripe: list[Instance] = []
        busy: list[Instance] = []
        shortest_s = math.inf  # until an idle instance may get a dispatch
        may_grow = self._may_grow()
        for instance in self.pool.instances:
            if not instance.has_place:
                continue
            if instance.in_flight:
                busy.append(instance)
                continue
            wait_s = self._wait(instance, first, len(self._queue), may_grow, now)
            shortest_s = min(shortest_s, wait_s)
            if wait_s <= 0:
                ripe.append(instance)
        if shortest_s == math.inf:
            return [i for i in busy if self._may_queue_behind(i.in_flight[0], len(self._queue), now)]
        if not ripe:
            self._ripen_in(shortest_s)
        if len(ripe) > 1:
            ripe.sort(key=_IDLE_SINCE, reverse=True)
        return self._select_limited(ripe)

    def _wait(self, instance: Instance, first: Task, waiting: int, may_grow: bool, now: float) -> float:
        """Return the seconds until a partial batch may be sent to this idle worker instance.

        waiting: number of queued tasks that the instance may get. first: the next of them. may_grow: whether
        they fill no batch yet.
        """
        if self._policy.max_queue_delay_s or not may_grow:
            return ripe_in(may_grow, first.queued_at, self._policy, now)
        answered, idle_since = instance.answered, instance.idle_since
        return gathered_in(waiting, answered, self._policy, idle_since, self.pace.usual_s, now)

    def _may_queue_behind(self, running: Dispatch, waiting: int, now: float) -> bool:
        """Return whether a busy worker instance may get a second dispatch.

        running: the dispatch that it executes. waiting: number of queued tasks that it may get.
        """
        if running.is_lone or self.limited is not None:
            return False
        size, tasks = self._policy.batch_size, len(running.tasks)
        open_tasks = tasks - running.tasks.count(None)
        rest_s = open_tasks * self.pace.per_task_s - (now - running.run_began)
        if may_follow(tasks, open_tasks, waiting, rest_s):
            return True
        return may_queue_behind(tasks, running.began, waiting, size, self.pace.usual_s, now)

    def _ripen_in(self, wait_s: float) -> None:
        """Set a timer that dispatches again in `wait_s` seconds, when a partial batch may leave."""
        if self._ripening is None:
            self._ripening = asyncio.get_running_loop().call_later(wait_s, self._ripen)

    def _ripen(self) -> None:
        self._ripening = None
        self._dispatch()

    def _dispatch_suspects(self, now: float) -> bool:
        """Send each suspect (a task that may have killed a worker) alone to an idle process.

        Return false if a suspect has to wait for an idle process.
        """
        while self._suspects:
            task = self._suspects[0]
            if task.wanted:
                process = next((p for p in self.pool.processes if p.idle), None)
                if process is None:
                    # A hung process is never idle, and waiting for it would stop all work.
                    return all(p.abandoned for p in self.pool.processes if p.ready_at)
                if not self._select_limited(process.instances[:1]):
                    return False
                self._send(process.instances[0], [task], now)
                process.reserved = bool(process.instances[0].in_flight)
            self._suspects.popleft()
        return True

    def _send(self, instance: Instance, tasks: list[Task], now: float) -> None:
        """Send tasks to a worker instance.

        If the front end has an internal error, the tasks fail immediately.
        """
        tail: list[Part] = []
        try:
            if self._names_version:
                version = instance.process.version
                tasks = [task for task in tasks if self._is_of_version(task, version)]
                if not tasks:
                    return
            if self.sequences is not None:
                tasks = [task for task in tasks if self._is_bound(task, instance)]
                if not tasks:
                    return
            calls = [task.message(index, tail) for index, task in enumerate(tasks)]
            is_lone = sum(map(len, tail)) > LONE_BYTES
            if is_lone and len(tasks) > 1 and self.sequences is None:
                tasks, tail = self._divide(tasks), []
                calls = [task.message(index, tail) for index, task in enumerate(tasks)]
                is_lone = len(tasks) == 1 and tasks[0].input_bytes > LONE_BYTES
            self._fair_queue.record_dispatch(tasks[-1].dag_run.request.turn)
            run_isolated(self._figures.queue_s.observe_all, [now - task.queued_at for task in tasks])
            for task in tasks:
                task.left_queue = True
                if self._in_order is not None:
                    self._in_order.sent(task)
            instance.dispatch(tasks, calls, tail, self._batch_limit)
            if self.limited is not None:
                self.limited.begin(instance)
            dispatch = instance.in_flight[-1]
            dispatch.queued_at, dispatch.is_lone = tasks[0].queued_at, is_lone
            self._hung_runs.watch(instance)
        except Exception as exc:  # an internal fault: fail these requests now, not at their deadlines
            log.exception("Op %s: a dispatch of %d requests can't be sent", self.op, len(tasks))
            for task in tasks:
                task.fail(ServingError(f"the request can't be handed to Op {self.op}: {get_error_text(exc)}"))

    def _is_bound(self, task: Task, instance: Instance) -> bool:
        """Bind the sequence of a task to an instance. Fail the task, and return False, if that fails."""
        turn = task.turn
        error = None if turn is None else turn.bind(instance, is_retry=task.tries_left < self._tries)
        if error is not None:
            task.fail(error)
        return error is None

    def _divide(self, tasks: list[Task]) -> list[Task]:
        """Return the first of these tasks, and queue the others again: a large task is dispatched alone.

        The result ends before the first large task, or is that task alone if it is the first.
        """
        end = next((at for at, task in enumerate(tasks) if task.input_bytes > LONE_BYTES), len(tasks))
        for task in tasks[max(1, end) :]:
            self._queue.insert(task)
        return tasks[: max(1, end)]

    def _is_of_version(self, task: Task, version: str) -> bool:
        """Set the model version in the response. If the request names another version, fail the task.

        Returns whether the task may run.
        """
        if task.dag_run.entry.versioned == self.op:
            request = task.dag_run.request
            if request.version and int(request.version) != int(version):
                task.fail(UnknownVersion(request.service, request.version))
                return False
            request.model_version = version
        return True

    # What the instances and their pool report:

    def _trace_reply(self, instance: Instance, dispatch: Dispatch, reply: Reply, *, profiles: bool) -> None:
        """Add a run of the model to the traces of its requests. profiles: also record its stage durations."""
        if profiles:
            self.add_timings(instance, dispatch, reply)
        trace_reply(self.op, instance, dispatch, reply)

    def add_timings(self, instance: Instance, dispatch: Dispatch, reply: Reply) -> None:
        """Add the stage durations of a reply to its requests, and to the latency summaries of the Op."""
        timings = reply.timings
        if timings.steps:
            _add_step_timings(dispatch, reply)
            return
        if timings.preprocess_ns:  # only in the first reply, unless requests run one by one
            dispatch.preprocess_ns = timings.preprocess_ns
        spent_ns = dispatch.preprocess_ns, timings.process_ns, timings.postprocess_ns
        spent_s = [ns * 1e-9 for ns in spent_ns]
        latencies, now = self._figures.latencies, time.monotonic()
        for settled in reply.settled:
            task = dispatch.tasks[settled.index]
            if task is None:
                continue
            queue_s = max(0.0, dispatch.began - task.queued_at)
            if task.dag_run.request.timings is not None:
                task.dag_run.request.timings.add_stages(self.op, queue_s, *spent_s)
            if latencies is not None and settled.outcome is not Outcome.ERROR:
                latencies.observe(now - task.queued_at, (queue_s, *spent_s))

    def replied(self, instance: Instance, dispatch: Dispatch, reply: Reply) -> None:
        """Update metrics and statistics after a worker's reply, and send the next tasks."""
        self.dispatch_soon()
        instance.served += len(reply.settled)
        dispatch.runs += reply.timings.batches
        if self._of_steps is None:
            waited_s = time.monotonic() - dispatch.queued_at
            run_isolated(self._figures.record_run, reply.timings, len(reply.settled), waited_s)
        else:
            run_isolated(self._record_steps, reply.timings, self._of_steps)
        if not reply.last:
            return
        if self.limited is not None:
            self.limited.end(instance)
        instance.idle_since = time.monotonic()
        instance.answered = 0 if dispatch.abandoned else len(dispatch.tasks)
        if not dispatch.abandoned:
            self._note_pace(instance.idle_since - dispatch.began, dispatch)
            if self._learned is not None:
                self._learn_batch_limit(self._learned, dispatch, instance.idle_since)

    def _record_steps(self, timings: Timings, of_steps: Mapping[str, OpFigures]) -> None:
        """Add an ensemble's batches, whose steps one worker has run, to the metrics of each step's Op.

        Requests wait only in the queue of the ensemble, so the queue times of the steps are 0.
        """
        for op, requests, of_batch in timings.steps:
            of_steps[op].record_run(of_batch, requests)
            of_steps[op].queue_s.observe(0.0, requests)
            if (latencies := of_steps[op].latencies) is not None:
                latencies.observe_step(of_batch, requests)

    def timed_out(self, instance: Instance, dispatch: Dispatch) -> None:
        """Abandon a model run over `op.<name>.timeout`. Retry its requests, or fail them after the last try.

        The failure is DeadlineExceeded (HTTP 504).
        """
        self.pool.abandoned.set()
        self._figures.abandoned += 1
        self._note_pace(self._timeout_s, dispatch)
        now = time.monotonic()
        for task in dispatch.open_tasks():
            if not task.wanted:
                continue
            if task.tries_left > 1 and not task.streaming:
                renewed = task.next_try(now)
                if self._in_order is not None:
                    self._in_order.sent(renewed)  # the next try keeps the place
                self._push_again(renewed)
            else:
                task.fail(self._timeout_error())
        for task in instance.take_back():
            self._push_again(task)
        if self._in_order is not None:
            self._in_order.release_results()

    def declined(self, tasks: Sequence[Task]) -> None:
        """Queue recalled tasks again that the worker has not begun, unless another instance runs them."""
        for task in tasks:
            if not task.moved:
                self._push_again(task)

    def _move_requests(self, instance: Instance, verdict: Verdict) -> None:
        """Move the requests of a worker instance whose run is late or hangs to other instances.

        verdict: observed state of the instance. A process that stays stopped by SIGSTOP is killed.
        """
        if verdict is Verdict.LOST:
            instance.process.kill(f"it was stopped (SIGSTOP) in a run, for {STOPPED_LIMIT_S:g} s")
            return
        hangs = verdict in HANGS
        # A retiring instance is not among those of the pool.
        has_others = self.pass_on is not None or any(other is not instance for other in self.pool.instances)
        about_to_begin = verdict is Verdict.LATE and not instance.is_running
        if not hangs and (about_to_begin or not has_others):
            return
        not_begun = instance.take_back()
        for task in not_begun:
            self._push_again(task)
        if self.pass_on is not None and self._are_all_late():
            self.pass_on(list(self._queue))
        if hangs and not instance.hangs:
            self._run_elsewhere(instance, verdict, len(not_begun))

    def _are_all_late(self) -> bool:
        """Whether the run of each ready instance is late, so that queued tasks would wait."""
        began = time.monotonic() - late_after_s(self.pace.usual_s, self.held_s)
        instances = self._list_ready_instances()
        return all(i.in_flight and i.in_flight[0].run_began < began for i in instances)

    def _run_elsewhere(self, instance: Instance, verdict: Verdict, taken_back: int) -> None:
        """Run the requests of a hung worker instance a second time on other instances.

        For each request, the first answer counts.

        With `crash_retry: false` no request runs twice: the requests of the run wait for the hung instance.
        taken_back: number of requests of the instance that have not begun.
        """
        instance.hangs = True
        instance.abandon()
        self.pool.abandoned.set()
        dispatch = instance.in_flight[0]
        tasks = dispatch.open_tasks() if self._crash_retry else []
        moved = [task for task in tasks if task.wanted and not (task.hung or task.moved or task.streaming)]
        log.warning(
            "Worker %s (pid %d) %s; other instances run %d of its requests, %d for the second time",
            instance.process.name, instance.process.pid, HANGS[verdict], len(moved) + taken_back, len(moved),
        )  # fmt: skip
        dispatch.abandoned = dispatch.abandoned or self._crash_retry
        self._figures.moved += len(moved) + taken_back
        for task in moved:
            self._push_again(task.second_try(blamed=verdict is Verdict.HUNG))

    def _get_run_times(self) -> RunTimes:
        return RunTimes(self.pace.usual_s, self.pace.run_s, self.held_s)

    def _timeout_error(self) -> DeadlineExceeded:
        """Return the error for a request whose last try was over the Op's timeout."""
        tries = f" in each of {self._tries} tries" if self._tries > 1 else ""
        return DeadlineExceeded(
            f"[{self.op}] took more than op.{self.op}.timeout ({self._timeout_s * 1000:g} ms){tries}: the "
            "call is abandoned, and its instance is replaced unless the call ends before that"
        )

    @isolated(None)
    def _note_pace(self, took_s: float, dispatch: Dispatch) -> None:
        """Add the duration of a dispatch to the statistics of speed, and update admission control."""
        runs = dispatch.runs if self._runs_in_turn else 0
        self.pace.record(took_s, len(dispatch.tasks), runs, dispatch.rows, dispatch.streamed_s)
        self._update_paces()

    @isolated(None)
    def _learn_batch_limit(self, learned: BatchLimit, dispatch: Dispatch, now: float) -> None:
        """Add a dispatch to the search of `batch_size: auto`, and apply and log a new limit."""
        before = learned.limit
        if learned.record(dispatch.queued_at, dispatch.began, now, len(dispatch.tasks)):
            self.limit_batches(learned.used)
        if learned.limit != before:
            log.info(
                "Op %s: batches of up to %d requests in place of %d save %.0f %% of the time of a request",
                self.op, learned.limit, before, 100 * learned.saved_share,
            )  # fmt: skip

    def requeue_lost(self, process: WorkerProcess) -> None:
        """Queue the tasks of a dying worker process again, except tasks that are blamed for its death.

        In the next worker, queued tasks go before suspects, unless they went first in this worker. So neither
        group waits for more than one worker start because of the other group.
        """
        run_isolated(trace_lost, self.op, process)
        if self.limited is not None:
            for instance in process.instances:
                self.limited.end(instance)
        went_ahead = bool(self._suspects) and not process.reserved
        for task in tried_again(process, self._crash_retry):
            self._figures.retried += 1
            self._push_again(task)
        if process.ready_at and not self._has_available:
            self._overtakes, self._ahead = not went_ahead, 0
        self.dispatch_soon()


def _add_step_timings(dispatch: Dispatch, reply: Reply) -> None:
    """Add the durations of an ensemble's steps, which one worker has run, to the requests of a reply."""
    answered = [task for settled in reply.settled if (task := dispatch.tasks[settled.index]) is not None]
    for task in answered:
        queue_s = max(0.0, dispatch.began - task.queued_at)
        for op, _, run in reply.timings.steps:
            if task.dag_run.request.timings is not None:
                spent_ns = run.preprocess_ns, run.process_ns, run.postprocess_ns
                task.dag_run.request.timings.add_stages(op, queue_s, *(ns * 1e-9 for ns in spent_ns))
            queue_s = 0.0


def _refuse_late(task: Task) -> None:
    """Fail a task with DeadlineExceeded (HTTP 504) if it is still queued after its queue policy's timeout."""
    if not task.left_queue:
        task.fail(DeadlineExceeded("the request has waited as long as its model's queue policy allows"))
