"""Planted bugs: changes of the real code that the simulation must find.

Each is a function that replaces something of the scheduler or the pool. `find_seed` runs seeds with a bug
planted until a seed breaks an invariant.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from pipeline.front.dag_run import DagRun, FairQueue, InOrder, Task, TaskQueue
from pipeline.front.pool import worker_pool, worker_process
from pipeline.front.pool.upkeep import Upkeep
from pipeline.front.pool.worker_pool import BackOff, Starts, WorkerPool
from pipeline.front.pool.worker_process import Instance, WorkerProcess
from pipeline.front.scheduler import batcher, worker_faults
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.scheduler import Deadlines, Scheduler
from pipeline.front.scheduler.sequences import Sequences, Turn
from pipeline.messages.frames import FrameReader, Outbox
from tests.simulation.run import simulate

Replace = Callable[[Any, str, Any], None]
"""Replaces an attribute of a class or module while the bug is planted."""

BUGS: dict[str, Callable[[Replace], None]] = {}


def bug(plant: Callable[[Replace], None]) -> Callable[[Replace], None]:
    """Add a bug to the table, by the name of its function."""
    BUGS[plant.__name__] = plant
    return plant


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    """Have the code contain a bug."""
    with contextlib.ExitStack() as stack:

        def replace(owner: Any, attribute: str, value: Any) -> None:
            stack.enter_context(mock.patch.object(owner, attribute, value))

        BUGS[name](replace)
        yield


def find_seed(name: str, seeds: int) -> int | None:
    """Return the first seed that finds a bug; None where none of so many does."""
    with planted(name):
        runs = (simulate(seed, sequences=name in OF_SEQUENCES) for seed in range(seeds))
        return next((run.seed for run in runs if run.violations), None)


def _call(step: Callable[..., Any], *args: Any, **kwargs: Any) -> bool:
    step(*args, **kwargs)
    return True


# Of what workers leave behind:


@bug
def real_time_signals_have_no_name(replace: Replace) -> None:
    """A death by a signal from 35 to 63 raises amid the bookkeeping, and the worker is not replaced."""
    replace(worker_process, "signal_name", lambda number: signal.Signals(number).name)
    replace(worker_process, "run_isolated", _call)
    replace(worker_pool, "run_isolated", _call)
    replace(batcher, "run_isolated", _call)
    replace(worker_faults, "run_isolated", _call)


@bug
def hung_instances_keep_their_requests(replace: Replace) -> None:
    """Requests stay with an instance that hangs while another one is idle."""
    replace(Batcher, "_move_requests", lambda queue, instance, verdict: None)


@bug
def threads_count_as_their_process(replace: Replace) -> None:
    """A thread that hangs seems to work as long as another thread of its process does."""
    replace(WorkerProcess, "read_activity", lambda process, _: worker_process.read_activity(process.pid, 0))


@bug
def declined_requests_kill_their_worker(replace: Replace) -> None:
    """A worker that declines a request in its last reply counts as broken."""
    take_reply = Instance._take_reply

    def take_strictly(instance: Instance, reply: Any, tail: Any) -> Any:
        if reply.last and reply.settled:
            instance.in_flight[0].recalled = False
        return take_reply(instance, reply, tail)

    replace(Instance, "_take_reply", take_strictly)


@bug
def queue_policy_timers_stay(replace: Replace) -> None:
    """The timer of a queue policy holds a task, and so its inputs, until it fires."""
    replace(Task, "cancel_wait_limit", lambda task: None)


@bug
def dead_workers_keep_refused_tasks(replace: Replace) -> None:
    """A dead process still refers to the tasks that it may have died of."""
    refuse = batcher.refuse_blamed

    def refuse_and_keep(process: WorkerProcess) -> None:
        tasks = list(process.refused)
        refuse(process)
        process.refused = tasks

    replace(batcher, "refuse_blamed", refuse_and_keep)


@bug
def failed_spawns_keep_a_socket(replace: Replace) -> None:
    """The lifeline of a process that could not be spawned is not closed."""

    spawn = WorkerProcess._spawn

    def spawn_and_keep(process: WorkerProcess, unless_started: contextlib.ExitStack) -> Any:
        with mock.patch.object(unless_started, "enter_context", lambda lifeline: lifeline):
            return spawn(process, unless_started)

    replace(WorkerProcess, "_spawn", spawn_and_keep)


@bug
def outputs_stay_open(replace: Replace) -> None:
    """The outputs of a dead process are not closed."""

    def reap(process: WorkerProcess) -> None:
        process._process.wait()

    replace(WorkerProcess, "_reap", reap)


# Of retries:


@bug
def suspects_run_with_others(replace: Replace) -> None:
    """A request that may have killed a worker runs in a batch again."""
    push_again = Batcher._push_again

    def push_unsuspected(queue: Batcher, task: Task) -> None:
        if task.suspect:
            queue._queue.insert(task)
            queue.dispatch_soon()
        else:
            push_again(queue, task)

    replace(Batcher, "_push_again", push_unsuspected)


@bug
def queued_requests_are_blamed(replace: Replace) -> None:
    """A request that a dead worker had not begun counts as a cause of its death."""
    replace(Instance, "began", lambda instance, dispatch: True)


@bug
def deaths_of_whole_batches_count(replace: Replace) -> None:
    """A request is refused that ran alone in one of the two workers that died under it."""

    def refused_after_two(task: Task, crash_retry: bool, *, alone: bool) -> bool:
        suspected, task.suspect = task.suspect, True
        return suspected or not crash_retry

    replace(worker_faults, "_is_refused", refused_after_two)


@bug
def crash_retry_is_ignored(replace: Replace) -> None:
    """Requests of a dead worker are tried again also where `crash_retry` is off."""
    tried_again = batcher.tried_again
    replace(batcher, "tried_again", lambda process, crash_retry: tried_again(process, True))


@bug
def tasks_of_other_threads_are_lost(replace: Replace) -> None:
    """Requests of a dead process are not tried again, but for those of its first instance."""
    tried_again = batcher.tried_again

    def tried_again_in_part(process: WorkerProcess, crash_retry: bool) -> Any:
        for instance in process.instances[1:]:
            instance.in_flight.clear()
        return tried_again(process, crash_retry)

    replace(batcher, "tried_again", tried_again_in_part)


@bug
def late_tries_are_not_counted(replace: Replace) -> None:
    """A request is tried again and again when the Op's timeout is over."""
    next_try = Task.next_try

    def uncounted(task: Task, now: float) -> Task:
        renewed = next_try(task, now)
        renewed.tries_left = task.tries_left
        return renewed

    replace(Task, "next_try", uncounted)


@bug
def tasks_behind_an_abandoned_call_stay(replace: Replace) -> None:
    """Requests behind a call that is over its timeout are not taken back."""
    replace(Instance, "take_back", lambda instance: iter(()))


# Of answers:


@bug
def requests_end_twice(replace: Replace) -> None:
    """A DAG run that has ended ends again."""
    replace(DagRun, "end", lambda dag_run, answer: dag_run.entry.on_end(dag_run, answer))


@bug
def regions_of_shared_memory_overlap(replace: Replace) -> None:
    """Two dispatches under way have their inputs in the same memory."""
    region = worker_process.request_region
    replace(worker_process, "request_region", lambda dispatch_id: region(0))


@bug
def stale_replies_take_a_place(replace: Replace) -> None:
    """The late reply of an abandoned try takes the place of the next one in the order of answers."""

    def complete(order: InOrder, task: Any, go_on: Callable[[], None]) -> None:
        if task.number not in order._under_way:
            go_on()
            return
        order._settled[task.number] = go_on
        order.release_results()

    replace(InOrder, "complete", complete)


@bug
def order_of_answers_is_lost(replace: Replace) -> None:
    """Answers are given as they come."""
    replace(InOrder, "sent", lambda order, task: None)


@bug
def short_writes_are_lost(replace: Replace) -> None:
    """Bytes that the socket does not take at once are never sent."""

    def send(outbox: Outbox, buffers: Any) -> None:
        for buffer in buffers:
            with contextlib.suppress(OSError):
                outbox._socket.send(memoryview(buffer))

    replace(Outbox, "send", send)


@bug
def short_reads_are_lost(replace: Replace) -> None:
    """A frame that arrives in two reads is forgotten."""
    feed = FrameReader.feed

    def feed_anew(reader: FrameReader, data: Any) -> Any:
        if not reader._writable:  # the front's
            reader._buffer.clear()
        return feed(reader, data)

    replace(FrameReader, "feed", feed_anew)


# Of queues and admission:


@bug
def clients_have_no_turns(replace: Replace) -> None:
    """Requests are served in the order of their arrival, whoever sends most."""
    admit = FairQueue.admit

    def admit_without_turn(queue: FairQueue, client: Any) -> int:
        admit(queue, client)
        return 0

    replace(FairQueue, "admit", admit_without_turn)


@bug
def large_requests_run_with_others(replace: Replace) -> None:
    """Requests wait until a worker has decoded the large inputs of another request."""
    replace(Batcher, "_divide", lambda queue, tasks: tasks)


@bug
def priorities_are_reversed(replace: Replace) -> None:
    """The lowest priority goes first."""
    insert = TaskQueue.insert

    def insert_reversed(line: TaskQueue, task: Task) -> None:
        request = task.dag_run.request
        priority, request.priority = request.priority, -request.priority
        insert(line, task)
        request.priority = priority

    replace(TaskQueue, "insert", insert_reversed)


@bug
def clients_that_leave_count_for_good(replace: Replace) -> None:
    """A request whose client left is still counted as pending."""
    ended = Scheduler._ended

    def ended_uncounted(scheduler: Scheduler, dag_run: DagRun, answer: Any) -> None:
        ended(scheduler, dag_run, answer)
        if answer is None:
            scheduler._pending += 1

    replace(Scheduler, "_ended", ended_uncounted)


@bug
def later_deadlines_are_forgotten(replace: Replace) -> None:
    """After one deadline has passed, no timer is set for the next."""
    expire, arm = Deadlines._expire, Deadlines._arm

    def expire_once(deadlines: Deadlines) -> None:
        with mock.patch.object(Deadlines, "_arm", lambda self, key: None):
            expire(deadlines)
        deadlines._timer_key = math.inf  # type: ignore[assignment]

    assert arm
    replace(Deadlines, "_expire", expire_once)


@bug
def ready_instances_are_not_noticed(replace: Replace) -> None:
    """Requests that wait for a worker's start are not sent to it when it is ready."""
    became_ready = WorkerPool.became_ready

    def became_ready_unnoticed(pool: WorkerPool, process: WorkerProcess) -> None:
        callbacks = pool._callbacks
        pool._callbacks = callbacks._replace(dispatch_soon=lambda: None)
        became_ready(pool, process)
        pool._callbacks = callbacks

    replace(WorkerPool, "became_ready", became_ready_unnoticed)


# Of workers:


@bug
def reserved_processes_stay_reserved(replace: Replace) -> None:
    """A process that ran a suspect is given nothing else any more."""

    class Reserved:
        def __get__(self, process: Any, owner: Any) -> bool:
            return bool(process.__dict__.get("reserved"))

        def __set__(self, process: Any, reserved: bool) -> None:
            process.__dict__["reserved"] = reserved or process.__dict__.get("reserved", False)

    stack_owner: Any = WorkerProcess
    stack_owner.reserved = False
    replace(WorkerProcess, "reserved", Reserved())


@bug
def failed_starts_are_final(replace: Replace) -> None:
    """A worker that dies in its start has no successor."""
    replace(WorkerPool, "_may_try_again", lambda pool, process, why: False)


@bug
def starts_make_no_room(replace: Replace) -> None:
    """A start that is over still counts as one under way."""
    replace(Starts, "_make_room", lambda starts, process: None)


@bug
def pauses_between_starts_have_no_end(replace: Replace) -> None:
    """After a few deaths the next start is hours away."""
    replace(BackOff, "pause_s", lambda back_off, process: 0.0 if process.served else 10_000.0)


@bug
def hanging_probes_are_not_noticed(replace: Replace) -> None:
    """An idle worker that does not answer a probe is kept."""

    def probe_instance(upkeep: Upkeep, instance: Instance, now: float) -> None:
        if not instance.probed_at and upkeep._is_due(instance, now):
            instance.probe()

    replace(Upkeep, "_probe_instance", probe_instance)


@bug
def late_runs_are_not_ended(replace: Replace) -> None:
    """A worker that hangs in a run is never killed."""
    replace(Instance, "_kill_at", lambda instance, dispatch: math.inf)


@bug
def workers_that_do_not_leave_stay(replace: Replace) -> None:
    """A stop waits for workers that hang."""

    async def stop(pool: WorkerPool, grace_s: float) -> None:
        pool._stopping = True
        for process in pool._alive():
            process.stop()
        while pool._alive():
            await asyncio.sleep(1.0)

    replace(WorkerPool, "stop", stop)


# Of sequences:


@bug
def failed_requests_change_the_state(replace: Replace) -> None:
    """A request that fails, or whose client has left, keeps the state that a worker has sent."""
    end_turn = Sequences.end_turn
    replace(Sequences, "end_turn", lambda self, *turn, succeeded: end_turn(self, *turn, succeeded=True))


@bug
def requests_of_a_sequence_run_together(replace: Replace) -> None:
    """A request does not wait for the one before it in its sequence."""
    replace(Turn, "admit", lambda self, task: True)


@bug
def the_timer_of_expiry_stays(replace: Replace) -> None:
    """Nobody stops the timer that ends idle sequences when the service stops."""
    replace(Sequences, "stop", lambda self: None)


OF_SEQUENCES = (
    "failed_requests_change_the_state",
    "requests_of_a_sequence_run_together",
    "the_timer_of_expiry_stays",
)
