"""Instance: the connection to one copy of an Op: what is sent, under way, read, and late."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import NamedTuple, Protocol

import msgspec

from pipeline.errors import ServingError
from pipeline.messages.frames import (
    DISPATCHES_IN_FLIGHT,
    Arena,
    FrameReader,
    Tail,
    create_arena_fd,
    frame,
    request_region,
)
from pipeline.messages.messages import (
    CallMessage,
    DispatchMessage,
    Failed,
    Message,
    Outcome,
    OwnFamilies,
    OwnFamily,
    Probe,
    Probed,
    Ready,
    Reply,
    Settled,
)
from pipeline.messages.values import Part
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import Activity

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
HANG_GRACE_S = 5.0  # after the latest deadline of a dispatch its worker is taken for stuck
STOPPED_S = 5.0  # in a frame without a byte; one call of the system's sends it on without any work in between
LARGE_BYTES = 256 * 1024  # copying and sending this takes the front about half a millisecond


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


_READY = State.READY  # looking a member up costs as much as a short loop
_ERROR = Outcome.ERROR


class Task(Protocol):
    """One Op's share of a request, as the pool sees it: receives the result."""

    @property
    def rows(self) -> int: ...
    def complete(self, outcome: Outcome, parts: list[Part]) -> None: ...
    def fail(self, error: ServingError) -> None: ...


class Dispatch(msgspec.Struct, eq=False):
    """A dispatch under way: tasks that were sent to a worker together.

    Instants are of time.monotonic().
    """

    id: int
    tasks: list[Task | None]  # None in place of a settled task
    deadline: float  # the latest of its requests
    began: float  # when the worker could begin with it
    run_began: float  # when its present run could begin, where it takes several runs
    rows: int  # of all its requests
    # No request waits for it: it is over its Op's timeout, was taken back, or runs elsewhere
    abandoned: bool = False
    recalled: bool = False  # the front wants it back, so the worker may decline it
    preprocess_ns: int = 0  # of the latest reply that has it, for `DispatchEvents.replying`
    runs: int = 0  # runs of the model in the replies so far

    def open_tasks(self) -> list[Task]:
        """The tasks that are not settled."""
        return [task for task in self.tasks if task is not None]


class Host(Protocol):
    """The process that an instance lives in, as the instance knows it. See `WorkerProcess`."""

    version: str
    reserved: bool
    failure: Failed | None
    ready_at: float
    own_metrics: Sequence[OwnFamily]

    @property
    def name(self) -> str: ...
    @property
    def pid(self) -> int: ...
    def became_ready(self, ready: Ready) -> None: ...
    def kill(self, because: str) -> None: ...
    def read_activity(self, thread_id: int) -> Activity | None: ...


class DispatchEvents(Protocol):
    """Callbacks of an instance about its dispatches.

    profiles: whether the instance calls `replying`.
    """

    profiles: bool

    def replying(self, dispatch: Dispatch, reply: Reply) -> None:
        """A reply is there, of which nothing is settled yet."""
        ...

    def replied(self, instance: Instance, dispatch: Dispatch, reply: Reply) -> None:
        """Note that all requests of the reply are settled."""
        ...

    def timed_out(self, instance: Instance, dispatch: Dispatch) -> None:
        """A call is over the Op's timeout; it is abandoned."""
        ...

    def declined(self, tasks: Sequence[Task]) -> None:
        """The worker has not begun with these tasks, for their dispatch was taken back."""
        ...


class TimeLimits(NamedTuple):
    """Time limits of an Op's runs, in seconds; infinite for none."""

    call_s: float  # then no request waits for a run any more
    # of a dispatch: then the worker is killed; without it HANG_GRACE_S after `call_s` or the deadline
    kill_s: float


class Outbox:
    """Sends to a socket in order, and never waits: it keeps bytes that the socket does not take yet."""

    def __init__(self, to: socket.socket) -> None:
        self._socket = to
        self._loop = asyncio.get_running_loop()
        self._unsent: deque[memoryview] = deque()
        self._ending = False

    def send(self, buffers: Sequence[Part]) -> None:
        """Send them behind what was sent before."""
        for buffer in buffers:
            view = memoryview(buffer)
            if not self._unsent:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    pass
                except OSError:  # the worker is dying; its pidfd will say so
                    return
            if len(view):
                self._unsent.append(view)
        if self._unsent:
            self._loop.add_writer(self._socket, self._send_on)

    def end(self) -> None:
        """Close our end once all is sent."""
        self._ending = True
        if not self._unsent:
            self._close_our_end()

    def give_up(self) -> None:
        """Send nothing more; to be called before the socket is closed."""
        self._loop.remove_writer(self._socket)

    def _send_on(self) -> None:
        while self._unsent:
            view = self._unsent[0]
            try:
                sent = self._socket.send(view)
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                break
            if sent < len(view):
                self._unsent[0] = view[sent:]
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._socket)
        if self._ending:
            self._close_our_end()

    def _close_our_end(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)


class Instance:
    """One copy of an Op: a thread of its worker process, with a connection and memory of its own.

    abandoned: done when the call ends that was over its time limit or seemed to hang, never where the worker
    dies in it; None while there is none. The instance is given nothing meanwhile.
    hangs: whether its run seems to hang.
    """

    def __init__(
        self, op: str, number: int, process: Host, events: DispatchEvents, limits: TimeLimits
    ) -> None:
        self.op = op
        self.number = number
        self.process = process
        self.state = State.STARTING
        self.in_flight: deque[Dispatch] = deque()
        self.idle_since = 0.0  # when its last dispatch ended, time.monotonic
        self.answered = 0  # requests in that dispatch
        self.served = 0  # requests since the start
        self.probed_at = 0.0  # when it was sent a probe that it has not answered yet, time.monotonic
        self._events = events
        self._dispatches = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._rest_timer: asyncio.TimerHandle | None = None  # set within a frame, for the rest of it
        self.abandoned: asyncio.Future[None] | None = None
        self.hangs = False
        self._limits = limits
        self._settling: Iterator[None] = iter(())
        self._paused: asyncio.Handle | None = None  # goes on with `_settling`

    def connect(self, until_spawned: contextlib.ExitStack) -> tuple[int, int]:
        """Make the connection. The worker's ends of it, a socket and a memfd, close with the stack."""
        arena_fd = create_arena_fd()
        until_spawned.callback(os.close, arena_fd)
        self._arena = Arena(arena_fd)
        self._reader = FrameReader(self._arena, writable=False)
        self._socket, worker_end = socket.socketpair()
        until_spawned.enter_context(worker_end)
        self._socket.setblocking(False)
        self._outbox = Outbox(self._socket)
        return worker_end.fileno(), arena_fd

    def listen(self) -> None:
        """Read what the worker says from now on."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    @property
    def has_place(self) -> bool:
        return (
            self.state is _READY
            and len(self.in_flight) < DISPATCHES_IN_FLIGHT
            and self.abandoned is None
            and not self.process.reserved
        )

    def send(self, message: Message) -> None:
        self._outbox.send(frame(message))

    def dispatch(self, tasks: Sequence[Task], calls: list[CallMessage], tail: Sequence[Part]) -> None:
        """Send tasks to the worker, which is killed when it has them for too long.

        calls: the message of each task. tail: large parts of the calls.
        """
        now, deadline = time.monotonic(), max([call.deadline for call in calls])
        dispatch = Dispatch(
            self._dispatches, list(tasks), deadline, now, now, sum([task.rows for task in tasks])
        )
        region = request_region(dispatch.id) if tail else None
        # First of all: what can't be encoded is not under way, and nothing may wait behind it.
        buffers = frame(DispatchMessage(dispatch.id, calls), tail, self._arena, region)
        self._dispatches += 1
        self.in_flight.append(dispatch)
        self._outbox.send(buffers)
        self._watch(dispatch)

    @property
    def is_running(self) -> bool:
        """Whether the worker has begun with a request of the oldest dispatch."""
        return self._arena.begun_requests(self.in_flight[0].id) > 0

    def read_activity(self) -> Activity | None:
        """Return the activity of the instance; None when its process has ended."""
        return self.process.read_activity(self._arena.thread_id)

    def take_back(self) -> list[Task]:
        """Take back the tasks that the worker has not begun with; it will not begin with them."""
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
        """Give the instance nothing more until its run ends."""
        if self.abandoned is None:
            self.abandoned = self._loop.create_future()

    def probe(self) -> None:
        """Have the idle worker run its model once; one that fails is killed."""
        self.probed_at = time.monotonic()
        self.send(Probe())

    def stop(self) -> None:
        """Close our end: the worker's thread leaves after the dispatches that it has."""
        self.state = State.STOPPING
        self._outbox.end()

    def began(self, dispatch: Dispatch) -> bool:
        """Whether the worker, which has died, had begun with a dispatch."""
        return self._arena.begun(dispatch.id)

    def begun_tasks(self, dispatch: Dispatch) -> list[Task]:
        """Return the open tasks of a dispatch that the worker, which has died, had begun.

        Before its first request the worker reads the inputs of all.
        """
        begun = self._arena.begun_requests(dispatch.id) or len(dispatch.tasks)
        return [task for task in dispatch.tasks[:begun] if task is not None]

    def _watch(self, dispatch: Dispatch) -> None:
        """See to it that `_check_late` runs when the dispatch is late, if it is the oldest by then."""
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
        if self._limits.kill_s < math.inf:
            return dispatch.began + self._limits.kill_s
        return min(dispatch.deadline, dispatch.run_began + self._limits.call_s) + HANG_GRACE_S

    def _check_late(self) -> None:
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
            run_isolated(self._events.timed_out, self, dispatch)
        self._watch(dispatch)

    def _readable(self) -> None:
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)  # the pidfd tells the rest
            return
        self._settling = self._settle_all(data)
        self._settle_on()

    def _settle_on(self) -> None:
        """Settle what has arrived; after a large answer the loop has other work first, health included."""
        if self._drain_settling(self._settling, at_once=False):
            self._watch_rest()
            if self._paused is not None:
                self._paused = None
                self._loop.add_reader(self._socket, self._readable)
            return
        self._loop.remove_reader(self._socket)
        self._paused = self._loop.call_soon(self._settle_on)

    def _drain_settling(self, settling: Iterator[None], at_once: bool = True) -> bool:
        """Settle to the end, or to the next large answer; whether it was the end."""
        try:
            for _ in settling:
                if not at_once:
                    return False
        except Exception:
            log.exception("Op %s: instance %d sent what is no frame", self.op, self.number)
            self.process.kill("it sent what is no frame")
        return True

    def _watch_rest(self) -> None:
        """See to it that `_check_rest` runs when the rest of a frame does not come."""
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None
        if self._reader.halfway:
            self._rest_timer = self._loop.call_later(STOPPED_S, self._check_rest)

    def _check_rest(self) -> None:
        self._rest_timer = None
        with contextlib.suppress(BlockingIOError):
            self._socket.recv(1, socket.MSG_PEEK)
            return  # it is here, and the loop was late
        self.process.kill("it stopped in the middle of a frame")

    def _settle_all(self, data: bytes) -> Iterator[None]:
        """Take the frames that these bytes complete. Yields after each large answer."""
        for message, tail in self._reader.feed(data):
            if type(message) is Reply:
                yield from self._take_reply(message, tail)
            elif isinstance(message, Ready):
                self.process.became_ready(message)
            elif isinstance(message, Probed):
                self._take_probe(message.failure)
            elif isinstance(message, OwnFamilies):
                self.process.own_metrics = message.families
            elif isinstance(message, Failed):
                self.process.failure = message

    def _take_probe(self, failure: str) -> None:
        self.probed_at = 0.0
        self.idle_since = time.monotonic()
        self.answered = 0  # so that the next client need not wait for others
        if failure:
            self.process.kill(f"idle, it failed a probe: {failure}")

    def _take_reply(self, reply: Reply, tail: Tail) -> Iterator[None]:
        dispatch = self.in_flight[0]
        if dispatch.id != reply.dispatch:
            raise RuntimeError(f"reply to dispatch {reply.dispatch}, expected {dispatch.id}")
        if self._events.profiles:
            run_isolated(self._events.replying, dispatch, reply)
        tasks = dispatch.tasks
        has_large = tail.size > LARGE_BYTES
        for settled in reply.settled:
            task = tasks[settled.index]
            tasks[settled.index] = None
            if task is None:
                continue
            if settled.outcome is _ERROR:
                run_isolated(task.fail, _get_error(settled))
                continue
            parts = tail.unstow(settled.parts)
            run_isolated(task.complete, settled.outcome, parts)
            if has_large and sum(map(len, parts)) > LARGE_BYTES:
                yield
        if reply.last:
            unanswered = dispatch.open_tasks()
            if unanswered and not dispatch.recalled:  # tried again they are answered
                raise RuntimeError(f"the last reply to dispatch {dispatch.id} leaves requests unanswered")
            self.in_flight.popleft()
            if unanswered:  # they were taken back in the moment in which they began
                dispatch.abandoned = True
                run_isolated(self._events.declined, unanswered)
            self.process.reserved = False  # it can only have been for this one
            self._end_abandonment()
        run_isolated(self._events.replied, self, dispatch, reply)
        if not reply.last:
            dispatch.run_began = time.monotonic()
        elif self.in_flight:
            self.in_flight[0].began = self.in_flight[0].run_began = time.monotonic()
            self._watch(self.in_flight[0])

    def _end_abandonment(self) -> None:
        self.hangs = False
        if self.abandoned is not None:
            self.abandoned.set_result(None)
            self.abandoned = None

    def disconnect(self) -> None:
        """Read the last replies of a dying process, and close the connection. Its other requests are lost."""
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
        self._outbox.give_up()
        self._socket.close()

    def forget(self) -> None:
        """Release the shared memory, and the reference to the process, which refers to the instance."""
        self._arena.close()
        del self.process

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _get_error(settled: Settled) -> ServingError:
    if settled.refusal is None:
        raise RuntimeError("a reply refuses a request without saying why")
    return settled.refusal.error()
