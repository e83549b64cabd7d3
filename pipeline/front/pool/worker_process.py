"""Parent side of a worker process: `WorkerProcess` starts and ends it, `Instance` sends it tasks."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from functools import partial
from typing import NamedTuple

import msgspec

from pipeline.api.app import App
from pipeline.config.config_file import OpConfig
from pipeline.front.dag_run import Task
from pipeline.front.pool.answer_streams import AnswerStreams, get_error
from pipeline.front.pool.outputs import Output, Outputs
from pipeline.front.pool.plan import shares_process
from pipeline.front.pool.shards import Shards
from pipeline.messages.frames import (
    DISPATCHES_IN_FLIGHT,
    NODE_LOST,
    OTHER_VERSION,
    PACKAGE_CHANGED,
    PLAIN,
    PROTOCOL_VERSION,
    SHARD,
    Arena,
    FrameReader,
    Outbox,
    Part,
    Tail,
    create_arena_fd,
    frame,
    request_region,
)
from pipeline.messages.messages import (
    CallMessage,
    CancelCall,
    DispatchMessage,
    Failed,
    Message,
    ModelReadiness,
    Outcome,
    OwnFamilies,
    OwnFamily,
    Probe,
    Probed,
    Ready,
    Reply,
    Start,
    StreamedAnswer,
)
from pipeline.process.environment import MODEL_PROCESS, oom_kills
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import (
    WORKER,
    WORKER_PROXY,
    Activity,
    kill_groups,
    python_module,
    read_activity,
    resident_bytes,
    signal_name,
)

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
HANG_GRACE_S = 5.0  # a worker is stuck if it still runs a dispatch so long after its latest deadline
STOPPED_S = 5.0  # without a byte within a frame, which a worker sends without any work in between
LARGE_BYTES = 256 * 1024  # copying and sending this takes the front about half a millisecond


class State(Enum):
    """Life cycle of a worker instance: starting, ready, stopping, dead."""

    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


_READY = State.READY  # looking a member up costs as much as a short loop
_ERROR, _STREAM, _RESCHEDULE = Outcome.ERROR, Outcome.STREAM, Outcome.RESCHEDULE


class Dispatch(msgspec.Struct, eq=False):
    """A group of tasks (requests for one Op) that was sent to a worker instance and is not fully answered.

    Instants are of time.monotonic().
    """

    id: int
    tasks: list[Task | None]  # None in place of a settled task
    deadline: float  # latest deadline of the requests
    began: float  # when the worker could begin with the dispatch
    run_began: float  # when the current run of the model could begin; a dispatch may have several
    rows: int  # of all requests
    # No request waits for the dispatch: its call exceeded the Op's timeout, or other instances run its tasks.
    abandoned: bool = False
    recalled: bool = False  # the front has taken it back, so the worker may decline it
    preprocess_ns: int = 0  # of the latest reply with this timing, for `DispatchCallbacks.replying`
    runs: int = 0  # runs of the model in the replies so far
    queued_at: float = 0.0  # when its first task was queued
    is_lone: bool = False  # its only request has so many input bytes that no other is to wait for it
    streamed_s: float = 0.0  # from the first answers of its requests to their latest answers

    def open_tasks(self) -> list[Task]:
        """Return the tasks that have neither a result nor an error yet."""
        return [task for task in self.tasks if task is not None]


class DispatchCallbacks(NamedTuple):
    """Functions of the batcher that are called on replies, timeouts and deaths of worker instances.

    A dying process has two callbacks: first `requeue_lost`; then `refuse_blamed`, when the cause is known.
    """

    # Before the tasks of a reply are settled; None unless requests record their timings.
    replying: Callable[[Instance, Dispatch, Reply], None] | None
    replied: Callable[[Instance, Dispatch, Reply], None]  # after the tasks of a reply are settled
    timed_out: Callable[[Instance, Dispatch], None]  # a call exceeded the Op's timeout and is abandoned
    declined: Callable[[Sequence[Task]], None]  # the worker has not begun with these recalled tasks
    dispatch_soon: Callable[[], None]  # the instances that accept dispatches have changed
    requeue_lost: Callable[[WorkerProcess], None]  # queue the tasks of a dying process again
    refuse_blamed: Callable[[WorkerProcess], None]  # refuse the tasks that may have killed the process


class TimeLimits(NamedTuple):
    """Time limits of a pipeline step (Op) in seconds: of one model run, and of one dispatch."""

    call_s: float  # of a model run, after which no request waits for it; infinite: no limit
    # Of a dispatch, after which its worker is killed. Infinite: HANG_GRACE_S after `call_s` or the deadline.
    kill_s: float


class Instance:
    """One copy of a pipeline step (Op) in a worker process, as the front-end process sees it.

    Holds the connection and the open tasks. In the worker it is a thread with its own socket and shared
    memory.
    """

    def __init__(
        self, op: str, number: int, process: WorkerProcess, callbacks: DispatchCallbacks, limits: TimeLimits
    ) -> None:
        self.op = op
        self.number = number
        self.process = process
        self.state = State.STARTING
        self.in_flight: deque[Dispatch] = deque()
        self.streams = AnswerStreams()
        self.idle_since = 0.0  # end of its last dispatch, time.monotonic()
        self.answered = 0  # requests in its last dispatch
        self.served = 0  # requests since the start
        self.probed_at = 0.0  # start of a pending probe, time.monotonic(); 0 without one
        self._callbacks = callbacks
        self._dispatches = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._rest_timer: asyncio.TimerHandle | None = None  # limits the wait for the rest of a frame
        # Set while a call is abandoned: the instance gets no dispatch until the call ends, which completes
        # the future. It never completes if the worker dies in the call.
        self.abandoned: asyncio.Future[None] | None = None
        self.hangs = False  # whether its run seems to hang
        self._limits = limits
        self._settling: Iterator[None] = iter(())
        self._paused: asyncio.Handle | None = None  # continues `_settling`

    def connect(self, until_spawned: contextlib.ExitStack) -> tuple[int, int]:
        """Create the socket pair and the shared memory. Return the worker's two descriptors for the child.

        until_spawned: closes the worker's descriptors in this process.
        """
        arena_fd = create_arena_fd()
        until_spawned.callback(os.close, arena_fd)
        self._arena = Arena(arena_fd)
        self._reader = FrameReader(self._arena, writable=False)
        self._socket, worker_end = socket.socketpair()
        until_spawned.enter_context(worker_end)
        self._socket.setblocking(False)
        self._outbox = Outbox(self._socket, asyncio.get_running_loop())
        return worker_end.fileno(), arena_fd

    def listen(self) -> None:
        """Start to receive messages from the worker, in the event loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    @property
    def has_place(self) -> bool:
        """Whether the worker instance accepts one more dispatch (group of tasks) now."""
        return (
            self.state is _READY
            and len(self.in_flight) < DISPATCHES_IN_FLIGHT
            and self.abandoned is None
            and not self.process.reserved
        )

    def send(self, message: Message) -> None:
        """Send a message to the worker, without waiting."""
        if self.state is not State.DEAD:
            self._outbox.send(frame(message))

    def dispatch(
        self, tasks: Sequence[Task], calls: list[CallMessage], tail: Sequence[Part], batch_limit: int = 0
    ) -> None:
        """Send tasks to the worker, without waiting. The worker is killed if it exceeds the time limit.

        calls: the message of each task. tail: large parts of the messages. batch_limit: maximum number of
        requests in a predictor batch; 0 for the limit of config.yml.
        """
        dispatch = self._create_dispatch(tasks, calls)
        region = request_region(dispatch.id) if tail else None
        # Encode first: a dispatch that can't be encoded must not be in flight.
        buffers = frame(DispatchMessage(dispatch.id, calls, batch_limit), tail, self._arena, region)
        self._enter_flight(dispatch)
        self._outbox.send(buffers)

    def _create_dispatch(self, tasks: Sequence[Task], calls: list[CallMessage]) -> Dispatch:
        now, deadline = time.monotonic(), max([call.deadline for call in calls])
        rows = sum([task.rows for task in tasks])
        return Dispatch(self._dispatches, list(tasks), deadline, now, now, rows)

    def _enter_flight(self, dispatch: Dispatch) -> None:
        """Count a dispatch as sent, and watch its time limit."""
        self._dispatches += 1
        self.in_flight.append(dispatch)
        if self.process.streams:
            for index, task in enumerate(dispatch.open_tasks()):
                task.dag_run.cancels.append(partial(self._cancel, dispatch, index))
        self._watch(dispatch)

    @property
    def is_running(self) -> bool:
        """Whether the worker has begun a request of its oldest dispatch."""
        return self._arena.begun_requests(self.in_flight[0].id) > 0

    @property
    def remote_bytes(self) -> int:
        """Resident memory of a worker on another node, in bytes."""
        return self._arena.resident_bytes

    def read_activity(self) -> Activity | None:
        """Return CPU time and state of the instance's process or thread; None when the process has ended."""
        if self.process.is_remote:
            return self._arena.activity
        return self.process.read_activity(self._arena.thread_id)

    def take_back(self) -> list[Task]:
        """Recall the tasks that the worker has not begun, and return them for another instance.

        A worker on another node may get the recall too late and run a task twice. Without `crash_retry`, its
        tasks are not recalled.
        """
        if self.process.is_remote and not self.process.may_run_twice:
            return []
        if all(dispatch.recalled for dispatch in self.in_flight):
            return []
        self._arena.take_back(self.in_flight[-1].id)
        tasks: list[Task] = []
        for dispatch in self.in_flight:
            dispatch.recalled = True
            begun = self._arena.begun_requests(dispatch.id)
            tasks += [task for task in dispatch.tasks[begun:] if task is not None]
            dispatch.tasks[begun:] = [None] * len(dispatch.tasks[begun:])
            dispatch.abandoned = dispatch.abandoned or not begun
        return tasks

    def abandon(self) -> None:
        """Mark the current model run as abandoned: the worker gets no more tasks until the run ends."""
        if self.abandoned is None:
            self.abandoned = self._loop.create_future()

    def probe(self) -> None:
        """Let the idle worker run its model once, to prove that it works.

        A worker that fails the probe is killed.
        """
        self.probed_at = time.monotonic()
        self.send(Probe())

    def stop(self) -> None:
        """Ask the worker's thread to end after its pending tasks, by shutting down the connection.

        If requests still stream their answers, the connection is shut down after their last answers.
        """
        self.state = State.STOPPING
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self.streams and not (self.process.streams and self.in_flight):
            self._outbox.finish()

    def _cancel(self, dispatch: Dispatch, index: int) -> None:
        """Tell the worker that nobody waits for a request's answers any more.

        Does nothing if all have been sent.
        """
        if dispatch.tasks[index] is not None or (dispatch.id, index) in self.streams:
            self.send(CancelCall(dispatch.id, index))

    def began(self, dispatch: Dispatch) -> bool:
        """Return whether the worker had begun this dispatch (group of tasks) when it died."""
        return self._arena.begun(dispatch.id)

    def begun_tasks(self, dispatch: Dispatch) -> list[Task]:
        """Return the unanswered tasks of a dispatch that the dead worker had begun.

        If it had begun none, returns all tasks, because a worker decodes the inputs of all requests before
        the first.
        """
        begun = self._arena.begun_requests(dispatch.id) or len(dispatch.tasks)
        return [task for task in dispatch.tasks[:begun] if task is not None]

    def _watch(self, dispatch: Dispatch) -> None:
        """Set the timer for `_check_late`, if the dispatch is the oldest of the worker instance."""
        if dispatch is not self.in_flight[0]:
            return
        late_at = self._kill_at(dispatch)
        if not dispatch.abandoned:
            late_at = min(late_at, dispatch.run_began + self._limits.call_s)
        if late_at == math.inf or (self._timer is not None and self._timer_at <= late_at):
            return
        self._cancel_timer()
        self._timer_at = late_at
        self._timer = self._loop.call_later(max(0.0, self._timer_at - time.monotonic()), self._check_late)

    def _kill_at(self, dispatch: Dispatch) -> float:
        """Return the instant at which a worker with this dispatch is killed."""
        if self._limits.kill_s < math.inf:
            return dispatch.began + self._limits.kill_s
        return min(dispatch.deadline, dispatch.run_began + self._limits.call_s) + HANG_GRACE_S

    def _check_late(self) -> None:
        """Kill a worker that exceeds its time limit, or abandon a model run that exceeds the Op's timeout."""
        self._timer = None
        if not self.in_flight:
            return
        dispatch, now = self.in_flight[0], time.monotonic()
        if self._kill_at(dispatch) <= now:
            self.process.kill("its run was over its time limit")
            return
        if not dispatch.abandoned and dispatch.run_began + self._limits.call_s <= now:
            dispatch.abandoned = True
            self.abandon()
            run_isolated(self._callbacks.timed_out, self, dispatch)
        self._watch(dispatch)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)  # the pidfd reports the death
            return
        self._settling = self._settle_all(data)
        self._settle_on()

    def _settle_on(self) -> None:
        """Process received replies. After a large answer, let the event loop do other work first."""
        if self._drain_settling(self._settling, at_once=False):
            self._watch_rest()
            if self._paused is not None:
                self._paused = None
                self._loop.add_reader(self._socket, self._readable)
            return
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_soon(self._settle_on)

    def _drain_settling(self, settling: Iterator[None], at_once: bool = True) -> bool:
        """Process replies until all are done or a large answer was processed. Return whether all are done.

        at_once: whether to continue after large answers.
        """
        try:
            for _ in settling:
                if not at_once:
                    return False
        except Exception:
            log.exception("Op %s: instance %d sent what is no frame", self.op, self.number)
            self.process.kill("it sent what is no frame")
        return True

    def _watch_rest(self) -> None:
        """Set the timer for `_check_rest` while a received message is incomplete."""
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        if self._reader.halfway:
            self._rest_timer = self._loop.call_later(STOPPED_S, self._check_rest)

    def _check_rest(self) -> None:
        """Kill a worker that has stopped sending in the middle of a message."""
        self._rest_timer = None
        with contextlib.suppress(BlockingIOError):
            self._socket.recv(1, socket.MSG_PEEK)
            return  # the bytes are here, and the event loop was late
        self.process.kill("it stopped in the middle of a frame")

    def _settle_all(self, data: bytes) -> Iterator[None]:
        """Process the messages that the received data completes. Yield after each large answer."""
        for message, tail in self._reader.feed(data):
            if type(message) is Reply:
                yield from self._take_reply(message, tail)
            elif type(message) is StreamedAnswer:
                self._take_answer(message, tail)
            elif isinstance(message, Ready):
                self.process.became_ready(message)
            elif isinstance(message, Probed):
                self._take_probe(message.failure)
            elif isinstance(message, OwnFamilies):
                self.process.own_metrics = message.families
            elif isinstance(message, ModelReadiness):
                self.process.is_model_ready = message.is_ready
            elif isinstance(message, Failed):
                self.process.failure = message

    def _take_probe(self, failure: str) -> None:
        """Process the result of a probe. failure: the error of the model run; empty if it worked."""
        self.probed_at = 0.0
        self.idle_since = time.monotonic()
        self.answered = 0  # so that the next request need not wait for others
        if failure:
            self.process.kill(f"idle, it failed a probe: {failure}")

    def _take_answer(self, message: StreamedAnswer, tail: Tail) -> None:
        """Pass on one of several answers to a request, and extend the deadline of the sending model run."""
        dispatch = next((each for each in self.in_flight if each.id == message.dispatch), None)
        task = None if dispatch is None else dispatch.tasks[message.index]
        if dispatch is not None:
            now = time.monotonic()
            passed_s = now - dispatch.run_began
            dispatch.deadline += passed_s
            if task is not None and task.streaming:
                dispatch.streamed_s += passed_s
            dispatch.run_began = now
        if dispatch is not None and message.last:
            dispatch.tasks[message.index] = None
        self.streams.take(message, tail, task, self.send)
        if self.state is State.STOPPING:
            self._finish_if_done()

    def _take_reply(self, reply: Reply, tail: Tail) -> Iterator[None]:
        """Complete or fail the tasks of a worker's reply. Yield after each large answer."""
        dispatch = self.in_flight[0]
        if dispatch.id != reply.dispatch:
            raise RuntimeError(f"reply to dispatch {reply.dispatch}, expected {dispatch.id}")
        if (replying := self._callbacks.replying) is not None:
            run_isolated(replying, self, dispatch, reply)
        tasks = dispatch.tasks
        has_large = tail.size > LARGE_BYTES
        for settled in reply.settled:
            # Also for a task that is not open any more: the parts lie one behind the other.
            parts = tail.unstow(settled.parts)
            state = tail.unstow(settled.state) if settled.state else ()
            task = tasks[settled.index]
            tasks[settled.index] = None
            if task is None:
                continue
            if settled.outcome is _STREAM:
                self.streams.add(reply.dispatch, settled.index, task)
                continue
            if task.streaming or settled.outcome is _RESCHEDULE:
                self.streams.discard(reply.dispatch, settled.index)
            if settled.outcome is _RESCHEDULE:
                _remove_cancel(task, dispatch, settled.index)
            if settled.outcome is _ERROR:
                run_isolated(task.fail, get_error(settled))
                continue
            run_isolated(task.complete, settled.outcome, parts, state)
            if has_large and sum(map(len, parts)) > LARGE_BYTES:
                yield
        if reply.last:
            unanswered = dispatch.open_tasks()
            if unanswered and not dispatch.recalled:  # recalled tasks are retried
                raise RuntimeError(f"the last reply to dispatch {dispatch.id} leaves requests unanswered")
            self.in_flight.popleft()
            if unanswered:  # they were recalled at the moment when they began
                dispatch.abandoned = True
                run_isolated(self._callbacks.declined, unanswered)
            self.process.reserved = False  # only this dispatch can have reserved it
            if self.hangs or self.abandoned is not None:
                self._end_abandonment()
        run_isolated(self._callbacks.replied, self, dispatch, reply)
        if not reply.last:
            dispatch.run_began = time.monotonic()
        elif self.state is State.STOPPING:
            self._finish_if_done()
        if reply.last and self.in_flight:
            self.in_flight[0].began = self.in_flight[0].run_began = time.monotonic()
            self._watch(self.in_flight[0])

    def _end_abandonment(self) -> None:
        """Accept dispatches again, because the abandoned model run has ended."""
        self.hangs = False
        if self.abandoned is not None:
            self.abandoned.set_result(None)
            self.abandoned = None

    def disconnect(self) -> None:
        """Process the last replies of a dying process, and close the connection."""
        if self._paused is not None:
            self._paused.cancel()
        try:
            with contextlib.suppress(BlockingIOError, OSError):
                self._drain_settling(self._settling)
                while data := self._socket.recv(_RECEIVE_BYTES):
                    self._drain_settling(self._settle_all(data))
        finally:
            self._close()

    def _close(self) -> None:
        self.state = State.DEAD
        self._cancel_timer()
        if self._rest_timer is not None:
            self._rest_timer.cancel()
        self._loop.remove_reader(self._socket)
        self._outbox.stop()
        self._socket.close()

    def forget(self) -> None:
        """Release the shared memory of a dead instance, and break its reference cycle with the process."""
        self._arena.close()
        del self.process

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


OUT_OF_MEMORY = " when memory ran out: give the service more, fewer instances, or a max_worker_rss"


class ProcessCallbacks(NamedTuple):
    """Functions of the worker pool that a worker process calls when it is ready, lost or dead."""

    became_ready: Callable[[WorkerProcess], None]  # its instances accept dispatches from now on
    lost: Callable[[WorkerProcess], None]  # the process is dying: its instances send no more replies
    died: Callable[[WorkerProcess], None]  # the process has ended, and the cause is known


class WorkerProcess:
    """A worker process, as the front-end process sees it. Its instances of a pipeline step (Op) die together.

    `start` spawns the process, once. `stop` or its death ends it.
    """

    instance_type = Instance

    def __init__(
        self,
        app: App,
        op: str,
        numbers: range,
        version: str,
        owner: ProcessCallbacks,
        callbacks: DispatchCallbacks,
        outputs: Outputs,
        shards: Shards | None = None,
    ) -> None:
        """Store the settings; `start` spawns the process.

        numbers: numbers of its instances. version: version of its model. owner: callbacks to the pool.
        callbacks: callbacks to the batcher. shards: the shards of the service, if this process is one of
        them.
        """
        self.op = op
        self.numbers = numbers
        self.version = version  # of its model; empty for an Op without one
        limits = time_limits(app.config.op[op])
        create_instance = self.instance_type
        self.instances = [create_instance(op, number, self, callbacks, limits) for number in numbers]
        self.reserved = False  # a suspect runs alone: other instances of the process get no dispatch
        self.failure: Failed | None = None  # set when the start has failed
        self.own_metrics: Sequence[OwnFamily] = ()  # metrics that its model counts itself
        self.is_model_ready = True  # what `is_ready` of a Python model says
        self.refused: list[Task] = []  # tasks to refuse once the cause of the death is known
        self.started_at = 0.0  # time.monotonic; 0 before
        self.ready_at = 0.0  # time.monotonic; 0 before
        self.ready_bytes = 0.0  # resident memory when it became ready
        self.ready_message: Ready | None = None  # describes the model; None before the process is ready
        self.streams = False  # whether a request may have several answers
        self.is_remote = app.config.nodes is not None  # the worker is on another node, behind a proxy
        self.may_run_twice = app.config.op[op].crash_retry
        self._app = app
        self._owner = owner
        self._outputs = outputs
        self._killed_because = ""
        self._oom_kills = oom_kills()
        self._ran_out_of_memory = False
        self._start_timer: asyncio.TimerHandle | None = None
        self._output: Output | None = None
        self.shard = None if shards is None else shards.link(self.name, self.kill, self.read_activity)

    def start(self) -> None:
        """Spawn the worker process, without waiting until it is ready.

        Raises OSError if the system lacks resources.
        """
        loop = asyncio.get_running_loop()
        self.started_at = time.monotonic()
        with contextlib.ExitStack() as unless_started:
            unless_started.callback(self.instances.clear)  # releases their sockets and memory
            self._process = self._spawn(unless_started)
            unless_started.callback(self._process.wait)
            unless_started.callback(self._process.kill)
            self._pidfd = os.pidfd_open(self._process.pid)
            if self._output is not None:
                self._outputs.set_group(self._output, self._process.pid)
            unless_started.pop_all()
        loop.add_reader(self._pidfd, self._ended)
        loop.add_reader(self._lifeline, self._lost)
        for instance in self.instances:
            instance.listen()
        shares = shares_process(self._app, self.op)
        self.instances[0].send(
            Start(self._app.to_json(), self.op, self.name, self.numbers[0], shares, self.version)
        )
        timeout_s = self._app.config.op[self.op].start_timeout
        self._start_timer = loop.call_later(timeout_s, self.kill, f"it did not start within {timeout_s:g} s")

    def _spawn(self, unless_started: contextlib.ExitStack) -> subprocess.Popen[bytes]:
        """Create the connections and start the child process.

        unless_started: undoes the preparations if the start fails.
        """
        with contextlib.ExitStack() as until_spawned:
            self._lifeline, worker_end = socket.socketpair()
            unless_started.enter_context(self._lifeline)  # close it even if a traceback keeps this object
            until_spawned.enter_context(worker_end)
            ends = [instance.connect(until_spawned) for instance in self.instances]
            if self.shard is not None:
                ends.insert(0, self.shard.connect(until_spawned, unless_started))
            fds = (self._outputs.log_fd, worker_end.fileno(), *itertools.chain.from_iterable(ends))
            self._output = self._outputs.open(self.name)
            unless_started.callback(self._outputs.forget, self._output)
            until_spawned.callback(self._output.close_write_ends)
            stdout, stderr = self._output.write_ends
            kind = PLAIN if self.shard is None else SHARD
            module = WORKER_PROXY if self.is_remote else WORKER
            return subprocess.Popen(
                [*python_module(module), PROTOCOL_VERSION, str(os.getpid()), kind, *map(str, fds)],
                pass_fds=fds,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env={**MODEL_PROCESS, **os.environ},
                process_group=0,  # a Ctrl-C in the terminal is for the front alone
            )

    @property
    def name(self) -> str:
        """Name for logs: the Op with the numbers of the worker instances, as in "bert.0" or "bert.0-3"."""
        first, last = self.numbers[0], self.numbers[-1]
        return f"{self.op}.{first}" if first == last else f"{self.op}.{first}-{last}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def served(self) -> int:
        """Number of requests that the process has answered or refused since its start."""
        answered = 0 if self.shard is None else self.shard.answered
        return answered + sum(instance.served for instance in self.instances)

    @property
    def idle(self) -> bool:
        """Whether the worker process is ready, and no instance has work."""
        return all(i.state is State.READY and not i.in_flight and not i.streams for i in self.instances)

    @property
    def abandoned(self) -> bool:
        """Whether an instance is busy with an abandoned model run, which hangs or exceeds its timeout."""
        return any(instance.abandoned is not None for instance in self.instances)

    @property
    def hangs(self) -> bool:
        """Whether the run of a worker instance seems to hang."""
        return any(instance.hangs for instance in self.instances)

    async def abandoned_calls_end(self) -> None:
        """Wait for the end of all abandoned model runs. Never returns if the process dies in one."""
        while calls := [i.abandoned for i in self.instances if i.abandoned is not None]:
            await asyncio.wait(calls)

    def became_ready(self, ready: Ready) -> None:
        """Mark the process as ready, and report it to the pool.

        ready: the worker's message about its model.
        """
        self.ready_message = ready
        self.streams = ready.streams
        self._cancel_start_timer()
        self.ready_at = time.monotonic()
        self.ready_bytes = self.resident_bytes
        for instance in self.instances:
            instance.state = State.READY
        self._owner.became_ready(self)

    @property
    def resident_bytes(self) -> float:
        """Resident memory of the worker in bytes, also for a worker on another node; 0 if it has ended."""
        if self.is_remote:
            return float(max((instance.remote_bytes for instance in self.instances), default=0))
        return resident_bytes(self.pid)

    def begin_service(self) -> None:
        """Log that the process serves from now on. If it is a shard, let it get connections."""
        log.info("Worker %s is ready (pid %d)", self.name, self.pid)
        if self.shard is not None and not self.streams:
            self.shard.open()
        elif self.shard is not None:
            log.warning("Worker %s serves no connections: its Op streams answers", self.name)

    def read_activity(self, thread_id: int) -> Activity | None:
        """Return the CPU time and the state of the process, or of one thread if it has several instances.

        A single instance may compute in threads of its engine, so the whole process counts. None if the
        process has ended.
        """
        return read_activity(self.pid, thread_id if len(self.instances) > 1 else 0)

    def kill(self, because: str) -> None:
        """Kill the worker process with SIGKILL. because: the reason, for logs and errors.

        The callback `ProcessCallbacks.died` is called later.
        """
        self._killed_because = because
        self._process.kill()

    def stop(self) -> None:
        """Tell the process to end after the pending tasks of its instances, without waiting for its end."""
        if self.shard is not None:
            self.shard.close()
        for instance in self.instances:
            instance.stop()

    def describe_death(self) -> str:
        """Return the cause of the worker process's death as text, for a log line or an error."""
        if self._killed_because:
            return self._killed_because
        code = self._process.returncode
        if code == OTHER_VERSION and not self.ready_at:
            return PACKAGE_CHANGED
        if code == NODE_LOST and self.is_remote:
            return "the connection to its node was lost"
        if code is None or code >= 0:
            return f"exited with {code}"
        return f"killed by {signal_name(-code)}{OUT_OF_MEMORY if self._ran_out_of_memory else ''}"

    def _lost(self) -> None:
        """Process the last messages of the dying process, and report the loss to the pool."""
        asyncio.get_running_loop().remove_reader(self._lifeline)
        self._lifeline.close()
        self._process.kill()  # the process may only have closed the connection
        self._cancel_start_timer()
        for instance in self.instances:
            run_isolated(instance.disconnect)
        if self.shard is not None:
            run_isolated(self.shard.disconnect)
        self._owner.lost(self)

    def _ended(self) -> None:
        """Reap the dead process, release its resources, and report its death to the pool."""
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        run_isolated(kill_groups, [self.pid])  # before the process is reaped, because its pid is still valid
        run_isolated(self._reap)
        if self._lifeline.fileno() >= 0:
            run_isolated(self._lost)
        run_isolated(self._owner.died, self)
        for instance in self.instances:
            run_isolated(instance.forget)

    def _reap(self) -> None:
        """Read the exit status, and find out whether the kernel killed the process for lack of memory."""
        killed = self._process.wait() == -signal.SIGKILL
        self._ran_out_of_memory = killed and oom_kills() > self._oom_kills
        if self._output is not None:
            self._outputs.forget(self._output)

    def _cancel_start_timer(self) -> None:
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None


def _remove_cancel(task: Task, dispatch: Dispatch, index: int) -> None:
    """Remove one cancel callback of a rescheduled request: each of its many runs adds another callback."""
    cancels = task.dag_run.cancels
    cancels[:] = [cancel for cancel in cancels if getattr(cancel, "args", ()) != (dispatch, index)]


def time_limits(config: OpConfig) -> TimeLimits:
    """Return the time limits for the model runs of a pipeline step (Op), from its section of config.yml.

    The settings are `timeout` and `run_timeout`. A remote Op has no `timeout` here: its worker limits and
    retries the calls.
    """
    timeout_ms = 0 if config.server_endpoints else max(0, config.timeout)
    return TimeLimits(timeout_ms / 1000 or math.inf, config.run_timeout or math.inf)
