"""Instance: one worker process as the front sees it: its start, its hand-overs, its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, Protocol

from pipeline.app import App
from pipeline.environment import MODEL_PROCESS
from pipeline.errors import ServingError
from pipeline.processes import WORKER, python_module
from pipeline.server.job import Job
from pipeline.values import Part
from pipeline.wire import (
    HANDOVERS_IN_FLIGHT,
    Arena,
    Frame,
    FrameReader,
    Kind,
    Outcome,
    create_arena_fd,
    frame,
    request_region,
)

log = logging.getLogger(__name__)

_RECEIVE_BYTES = 256 * 1024


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DEAD = "dead"


class Handover:
    """Jobs that travel to a worker together; a settled one leaves a None."""

    __slots__ = ("began", "id", "jobs", "kill_at", "preprocess_ns")

    def __init__(self, number: int, jobs: Sequence[Job], kill_at: float) -> None:
        self.id = number
        self.jobs: list[Job | None] = list(jobs)
        self.began = time.monotonic()  # when the worker could begin with it
        self.kill_at = kill_at  # when the worker is late with it, time.monotonic
        self.preprocess_ns = 0  # as the first reply tells, for `Events.replying`

    def open_jobs(self) -> list[Job]:
        return [job for job in self.jobs if job is not None]


class Events(Protocol):
    """What an instance reports to whoever keeps it. profiles: whether `replying` is to be called."""

    profiles: bool

    def became_ready(self, instance: Instance) -> None: ...
    def replying(self, handover: Handover, rows: Sequence[list[Any]], timings: Sequence[int]) -> None: ...
    def replied(self, instance: Instance, handover: Handover, last: bool, timings: Sequence[int]) -> None: ...
    def died(self, instance: Instance) -> None: ...


class Instance:
    """A worker process for one Op. `start` spawns it; `stop` and death end it; it is not started twice."""

    def __init__(self, app: App, op: str, number: int, events: Events) -> None:
        self.op = op
        self.number = number
        self.state = State.STARTING
        self.in_flight: deque[Handover] = deque()
        self.failure: tuple[str, bool] | None = None  # why it could not start; whether another try is useless
        self.killed_because = ""
        self.stopping = False
        self.ready_at = 0.0
        self.idle_since = 0.0  # when its last hand-over ended, time.monotonic
        self.answered = 0  # requests in that hand-over
        self._app = app
        self._events = events
        self._handovers = 0
        self._unsent: deque[memoryview] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._run_timeout_s = app.config.op[op].run_timeout or None

    def start(self) -> None:
        """Spawn the process. Raises OSError when the system has no room for it."""
        self._loop = asyncio.get_running_loop()
        arena_fd = create_arena_fd()
        self._socket, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(os.close, arena_fd)
            self._arena = Arena(arena_fd)
            self._process = subprocess.Popen(
                [*python_module(WORKER), str(theirs.fileno()), str(arena_fd), str(os.getpid())],
                pass_fds=(theirs.fileno(), arena_fd),
                stdin=subprocess.DEVNULL,
                env={**MODEL_PROCESS, **os.environ},
                process_group=0,  # a Ctrl-C in the terminal is for the front alone
            )
        self._reader = FrameReader(self._arena)
        self._socket.setblocking(False)
        self._pidfd = os.pidfd_open(self._process.pid)
        self._loop.add_reader(self._socket, self._readable)
        self._loop.add_reader(self._pidfd, self._ended)
        self._write(frame(Kind.START, [self._app.to_json(), self.op, self.number]))
        timeout_s = self._app.config.op[self.op].start_timeout
        self._timer = self._loop.call_later(timeout_s, self.kill, f"it did not start within {timeout_s:g} s")

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_place(self) -> bool:
        return self.state is State.READY and not self.stopping and len(self.in_flight) < HANDOVERS_IN_FLIGHT

    def hand_over(self, jobs: Sequence[Job], kill_at: float) -> None:
        """Send jobs to the worker, which is killed when it still has them at `kill_at` (time.monotonic)."""
        handover = Handover(self._handovers, jobs, kill_at)
        self._handovers += 1
        tail: list[Part] = []
        rows = [job.row(index, tail) for index, job in enumerate(jobs)]
        self.in_flight.append(handover)
        self._write(frame(Kind.HANDOVER, [handover.id, rows], tail, self._arena, request_region(handover.id)))
        self._watch(handover)

    def kill(self, because: str) -> None:
        """SIGKILL; `Events.died` follows."""
        if self.state is not State.DEAD:
            self.killed_because = because
            self._process.kill()

    def stop(self) -> None:
        """Close our end: the worker leaves after the hand-over it is in."""
        self.stopping = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def began(self, handover: Handover) -> bool:
        """Whether the worker, which has died, had begun with it."""
        return self._arena.begun(handover.id)

    def describe_death(self) -> str:
        """Why the process is gone, for a log line or an error."""
        if self.killed_because:
            return self.killed_because
        code = self._process.returncode
        if code is not None and code < 0:
            return f"killed by {signal.Signals(-code).name}"
        return f"exited with {code}"

    def _watch(self, handover: Handover) -> None:
        """See to it that `_check_late` runs when the hand-over is late, if it is the oldest by then."""
        if handover is not self.in_flight[0]:
            return
        if self._run_timeout_s is not None:
            handover.kill_at = handover.began + self._run_timeout_s
        if handover.kill_at == math.inf or (self._timer is not None and self._timer_at <= handover.kill_at):
            return
        self._cancel_timer()
        self._timer_at = handover.kill_at
        self._timer = self._loop.call_later(max(0.0, self._timer_at - time.monotonic()), self._check_late)

    def _check_late(self) -> None:
        self._timer = None
        if not self.in_flight:
            return
        if self.in_flight[0].kill_at <= time.monotonic():
            self.kill("its run was over its time limit")
        else:
            self._watch(self.in_flight[0])

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
        self._take_frames(data)

    def _take_frames(self, data: bytes) -> None:
        try:
            for received in self._reader.feed(data):
                self._take(received)
        except Exception:
            log.exception("Op %s: instance %d sent what is no frame", self.op, self.number)
            self.kill("it sent what is no frame")

    def _take(self, received: Frame) -> None:
        if received.kind == Kind.REPLY:
            self._take_reply(received)
        elif received.kind == Kind.READY:
            self._cancel_timer()
            self.state = State.READY
            self.ready_at = time.monotonic()
            self._events.became_ready(self)
        elif received.kind == Kind.FAILED:
            reason, final = received.head
            self.failure = (reason, bool(final))

    def _take_reply(self, received: Frame) -> None:
        handover_id, last, rows, timings = received.head
        handover = self.in_flight[0]
        if handover.id != handover_id:
            raise RuntimeError(f"reply to hand-over {handover_id}, expected {handover.id}")
        if self._events.profiles:
            self._events.replying(handover, rows, timings)
        for row in rows:
            job = handover.jobs[row[0]]
            handover.jobs[row[0]] = None
            if job is None:
                continue
            if row[1] == Outcome.ERROR:
                job.fail(_error_from(row))
            else:
                job.settle(Outcome(row[1]), received.tail.unstow(row[2]))
        if last:
            self.in_flight.popleft()
        self._events.replied(self, handover, last, timings)
        if last and self.in_flight:
            self.in_flight[0].began = time.monotonic()
            self._watch(self.in_flight[0])

    def _write(self, buffers: list[Part]) -> None:
        for buffer in buffers:
            view = memoryview(buffer)
            if not self._unsent:
                try:
                    view = view[self._socket.send(view) :]
                except BlockingIOError:
                    pass
                except OSError:  # it is dying; the pidfd will say so
                    return
            if len(view):
                self._unsent.append(view)
        if self._unsent:
            self._loop.add_writer(self._socket, self._writable)

    def _writable(self) -> None:
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

    def _ended(self) -> None:
        """The process is gone: read what it still said, then let go of everything it had."""
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._process.wait()
        with contextlib.suppress(BlockingIOError, OSError):
            while data := self._socket.recv(_RECEIVE_BYTES):
                self._take_frames(data)
        self.state = State.DEAD
        self._cancel_timer()
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._events.died(self)
        self.in_flight.clear()
        self._arena.close()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _error_from(row: list[object]) -> ServingError:
    """The error that a worker described: [index, ERROR, err_no, HTTP status, gRPC code, message]."""
    _, _, err_no, http_status, grpc_code, message = row
    error = ServingError(message)
    error.err_no, error.http_status, error.grpc_code = err_no, http_status, grpc_code  # type: ignore[assignment]
    return error
