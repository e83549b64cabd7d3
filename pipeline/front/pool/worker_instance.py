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
    HANDOVERS_IN_FLIGHT,
    Arena,
    FrameReader,
    Tail,
    create_arena_fd,
    frame,
    request_region,
)
from pipeline.messages.messages import (
    Failed,
    HandOver,
    Message,
    Outcome,
    OwnFamilies,
    OwnFamily,
    Probe,
    Probed,
    Ready,
    Reply,
    Settled,
    Share,
)
from pipeline.messages.values import Part
from pipeline.process.isolation import run_isolated
from pipeline.process.processes import Activity

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024
HANG_GRACE_S = 5.0  # after the latest deadline of a hand-over its worker is taken for stuck
STOPPED_S = 5.0  # in a frame without a byte; one call of the system's sends it on without any work in between
LARGE_BYTES = 256 * 1024  # copying and sending this takes the front about half a millisecond


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


_READY = State.READY  # looking a member up costs as much as a short loop
_ERROR = Outcome.ERROR


class Job(Protocol):
    """One Op's share of a request, as the pool sees it: receives the result."""

    @property
    def rows(self) -> int: ...
    def complete(self, outcome: Outcome, parts: list[Part]) -> None: ...
    def fail(self, error: ServingError) -> None: ...


class InFlight(msgspec.Struct, eq=False):
    """A hand-over under way: jobs that were sent to a worker together.

    Instants are of time.monotonic().
    """

    id: int
    jobs: list[Job | None]  # None in place of a settled job
    deadline: float  # the latest of its requests
    began: float  # when the worker could begin with it
    run_began: float  # when its present run could begin, where it takes several runs
    rows: int  # of all its requests
    # No request waits for it: it is over its Op's timeout, was taken back, or runs elsewhere
    abandoned: bool = False
    recalled: bool = False  # the front wants it back, so the worker may decline it
    preprocess_ns: int = 0  # of the latest reply that has it, for `HandOverEvents.replying`
    runs: int = 0  # runs of the model in the replies so far

    def open_jobs(self) -> list[Job]:
        """The jobs that are not settled."""
        return [job for job in self.jobs if job is not None]


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


class HandOverEvents(Protocol):
    """Callbacks of an instance about its hand-overs.

    profiles: whether the instance calls `replying`.
    """

    profiles: bool

    def replying(self, handover: InFlight, reply: Reply) -> None:
        """A reply is there, of which nothing is settled yet."""
        ...

    def replied(self, instance: Instance, handover: InFlight, reply: Reply) -> None:
        """Note that all requests of the reply are settled."""
        ...

    def timed_out(self, instance: Instance, handover: InFlight) -> None:
        """A call is over the Op's timeout; it is abandoned."""
        ...

    def declined(self, jobs: Sequence[Job]) -> None:
        """The worker has not begun with these jobs, for their hand-over was taken back."""
        ...


class TimeLimits(NamedTuple):
    """Time limits of an Op's runs, in seconds; infinite for none."""

    call_s: float  # then no request waits for a run any more
    # of a hand-over: then the worker is killed; without it HANG_GRACE_S after `call_s` or the deadline
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
        self, op: str, number: int, process: Host, events: HandOverEvents, limits: TimeLimits
    ) -> None:
        self.op = op
        self.number = number
        self.process = process
        self.state = State.STARTING
        self.in_flight: deque[InFlight] = deque()
        self.idle_since = 0.0  # when its last hand-over ended, time.monotonic
        self.answered = 0  # requests in that hand-over
        self.served = 0  # requests since the start
        self.probed_at = 0.0  # when it was sent a probe that it has not answered yet, time.monotonic
        self._events = events
        self._handovers = 0
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
            and len(self.in_flight) < HANDOVERS_IN_FLIGHT
            and self.abandoned is None
            and not self.process.reserved
        )

    def send(self, message: Message) -> None:
        self._outbox.send(frame(message))

    def hand_over(self, jobs: Sequence[Job], shares: list[Share], tail: Sequence[Part]) -> None:
        """Send jobs to the worker, which is killed when it has them for too long.

        shares: the message about each job. tail: large parts of the shares.
        """
        now, deadline = time.monotonic(), max([share.deadline for share in shares])
        handover = InFlight(self._handovers, list(jobs), deadline, now, now, sum([job.rows for job in jobs]))
        region = request_region(handover.id) if tail else None
        # First of all: what can't be encoded is not under way, and nothing may wait behind it.
        buffers = frame(HandOver(handover.id, shares), tail, self._arena, region)
        self._handovers += 1
        self.in_flight.append(handover)
        self._outbox.send(buffers)
        self._watch(handover)

    @property
    def is_running(self) -> bool:
        """Whether the worker has begun with a request of the oldest hand-over."""
        return self._arena.begun_requests(self.in_flight[0].id) > 0

    def read_activity(self) -> Activity | None:
        """Return the activity of the instance; None when its process has ended."""
        return self.process.read_activity(self._arena.thread_id)

    def take_back(self) -> list[Job]:
        """Take back the jobs that the worker has not begun with; it will not begin with them."""
        if all(handover.recalled for handover in self.in_flight):
            return []
        self._arena.take_back(self.in_flight[-1].id)
        jobs: list[Job] = []
        for handover in self.in_flight:
            handover.recalled = True
            begun = self._arena.begun_requests(handover.id)
            jobs += [job for job in handover.jobs[begun:] if job is not None]
            handover.jobs[begun:] = [None] * len(handover.jobs[begun:])
            handover.abandoned = handover.abandoned or not begun
        return jobs

    def abandon(self) -> None:
        """Give the instance nothing more until its run ends."""
        if self.abandoned is None:
            self.abandoned = self._loop.create_future()

    def probe(self) -> None:
        """Have the idle worker run its model once; one that fails is killed."""
        self.probed_at = time.monotonic()
        self.send(Probe())

    def stop(self) -> None:
        """Close our end: the worker's thread leaves after the hand-overs that it has."""
        self.state = State.STOPPING
        self._outbox.end()

    def began(self, handover: InFlight) -> bool:
        """Whether the worker, which has died, had begun with a hand-over."""
        return self._arena.begun(handover.id)

    def begun_jobs(self, handover: InFlight) -> list[Job]:
        """Return the open jobs of a hand-over that the worker, which has died, had begun.

        Before its first request the worker reads the inputs of all.
        """
        begun = self._arena.begun_requests(handover.id) or len(handover.jobs)
        return [job for job in handover.jobs[:begun] if job is not None]

    def _watch(self, handover: InFlight) -> None:
        """See to it that `_check_late` runs when the hand-over is late, if it is the oldest by then."""
        if handover is not self.in_flight[0]:
            return
        late_at = self._kill_at(handover)
        if not handover.abandoned:
            late_at = min(late_at, handover.run_began + self._limits.call_s)
        if late_at == math.inf or (self._timer is not None and self._timer_at <= late_at):
            return
        self._cancel_timer()
        self._timer_at = late_at
        self._timer = self._loop.call_later(max(0.0, self._timer_at - time.monotonic()), self._check_late)

    def _kill_at(self, handover: InFlight) -> float:
        if self._limits.kill_s < math.inf:
            return handover.began + self._limits.kill_s
        return min(handover.deadline, handover.run_began + self._limits.call_s) + HANG_GRACE_S

    def _check_late(self) -> None:
        self._timer = None
        if not self.in_flight:
            return
        handover, now = self.in_flight[0], time.monotonic()
        if self._kill_at(handover) <= now:
            self.process.kill("its run was over its time limit")
            return
        if not handover.abandoned and handover.run_began + self._limits.call_s <= now:
            handover.abandoned = True
            self.abandon()
            run_isolated(self._events.timed_out, self, handover)
        self._watch(handover)

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
        handover = self.in_flight[0]
        if handover.id != reply.handover:
            raise RuntimeError(f"reply to hand-over {reply.handover}, expected {handover.id}")
        if self._events.profiles:
            run_isolated(self._events.replying, handover, reply)
        jobs = handover.jobs
        has_large = tail.size > LARGE_BYTES
        for settled in reply.settled:
            job = jobs[settled.index]
            jobs[settled.index] = None
            if job is None:
                continue
            if settled.outcome is _ERROR:
                run_isolated(job.fail, _get_error(settled))
                continue
            parts = tail.unstow(settled.parts)
            run_isolated(job.complete, settled.outcome, parts)
            if has_large and sum(map(len, parts)) > LARGE_BYTES:
                yield
        if reply.last:
            unanswered = handover.open_jobs()
            if unanswered and not handover.recalled:  # tried again they are answered
                raise RuntimeError(f"the last reply to hand-over {handover.id} leaves requests unanswered")
            self.in_flight.popleft()
            if unanswered:  # they were taken back in the moment in which they began
                handover.abandoned = True
                run_isolated(self._events.declined, unanswered)
            self.process.reserved = False  # it can only have been for this one
            self._end_abandonment()
        run_isolated(self._events.replied, self, handover, reply)
        if not reply.last:
            handover.run_began = time.monotonic()
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
