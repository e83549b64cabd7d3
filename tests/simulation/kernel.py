"""Simulated operating system: processes, sockets, pidfds and clocks, as the worker pool meets them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, Protocol
from unittest import mock

from pipeline.front.pool import worker_process
from pipeline.front.scheduler import scheduler
from pipeline.messages.frames import Arena
from pipeline.process import isolation
from pipeline.process.processes import Activity
from tests.simulation.loop import Clock

FIRST_FD = 1_000_000  # simulated descriptors are above the real ones
FIRST_PID = 40_000


class Program(Protocol):
    """The program that a process runs."""

    def killed(self) -> None:
        """Note that nothing of the program runs any more."""
        ...

    def resumed(self) -> None:
        """Go on after a stop."""
        ...

    def activity(self, thread_id: int) -> Activity:
        """Return the state and the CPU time of the process, or of a thread."""
        ...


class Socket:
    """One end of a socketpair. It is closed when the last process that has it closes it."""

    def __init__(self, kernel: Kernel, capacity: int) -> None:
        """capacity: bytes that wait here until they are read."""
        self._kernel = kernel
        self._capacity = capacity
        self._inbox = bytearray()
        self._peer_ref: weakref.ref[Socket] | None = None
        self._end_of_file = False
        self._reset = False
        self.holders = 1  # processes that have this end
        self.number = kernel.open(self)
        self.on_readable: Callable[[], None] | None = None
        self.on_writable: Callable[[], None] | None = None

    def connect(self, peer: Socket) -> None:
        self._peer_ref, peer._peer_ref = weakref.ref(peer), weakref.ref(self)

    @property
    def _peer(self) -> Socket | None:
        return None if self._peer_ref is None else self._peer_ref()

    def __del__(self) -> None:
        """Close it when nobody has it any more, as Python's own sockets do."""
        self.holders = min(1, self.holders)
        self.close()

    def __enter__(self) -> Socket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self.number if self.holders else -1

    def setblocking(self, flag: bool) -> None:
        assert not flag, "the front must never wait for a socket"

    @property
    def readable(self) -> bool:
        return bool(self._inbox) or self._end_of_file or self._reset

    @property
    def writable(self) -> bool:
        return (peer := self._peer) is None or len(peer._inbox) < peer._capacity

    def send(self, data: memoryview | bytes) -> int:
        self._check_open()
        if (peer := self._peer) is None:
            raise BrokenPipeError
        room = peer._capacity - len(peer._inbox)
        if room <= 0:
            raise BlockingIOError
        sent = min(room, len(data))
        peer._inbox += data[:sent]
        peer._notify()
        return sent

    def recv(self, size: int, flags: int = 0) -> bytes:
        self._check_open()
        if self._inbox:
            data = bytes(self._inbox[: self._kernel.read_size(min(size, len(self._inbox)))])
            if not flags & socket.MSG_PEEK:
                del self._inbox[: len(data)]
                if (peer := self._peer) is not None and peer.on_writable is not None:
                    peer.on_writable()
            return data
        if self._reset:
            self._reset = False
            raise ConnectionResetError
        if self._end_of_file:
            return b""
        raise BlockingIOError

    def shutdown(self, how: int) -> None:
        self._check_open()
        assert how == socket.SHUT_WR
        self._end_peer()

    def close(self) -> None:
        """Close this end in one of the processes that have it."""
        if not self.holders:
            return
        self.holders -= 1
        if self.holders:
            return
        self._kernel.close(self.number)
        self._end_peer()
        if (peer := self._peer) is not None:
            peer._reset = bool(self._inbox)  # as Linux does when bytes were not read
            peer._peer_ref = self._peer_ref = None

    def _end_peer(self) -> None:
        if (peer := self._peer) is not None:
            peer._end_of_file = True
            peer._notify()

    def _notify(self) -> None:
        if self.on_readable is not None:
            self.on_readable()

    def _check_open(self) -> None:
        if not self.holders:
            raise OSError("the socket is closed")


class PidFd:
    """Descriptor that becomes readable when its process has ended."""

    writable = False

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def readable(self) -> bool:
        return self._process.ended


class Process:
    """A process of the simulated system, with the interface of `subprocess.Popen` that the front calls."""

    def __init__(
        self, kernel: Kernel, pid: int, lifeline: Socket, sockets: list[Socket], arenas: list[Arena]
    ) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.lifeline = lifeline
        self.sockets = sockets
        self.arenas = arenas
        self.dying = False
        self.ended = False
        self.stopped = False
        self.stopped_at = 0.0  # instant of the latest SIGSTOP
        self.program: Program | None = None
        self._kernel = kernel
        self.code = 0
        self._deferred: list[Callable[[], None]] = []

    def kill(self) -> None:
        """Send SIGKILL, as the front does."""
        self.die(-signal.SIGKILL)

    def wait(self) -> int:
        assert self.ended, "the front waits for a process that has not ended"
        self.returncode = self.code
        return self.code

    def later(self, delay_s: float, action: Callable[[], None]) -> None:
        """Run an action of the process's program after a delay, unless the process is dead by then."""
        asyncio.get_running_loop().call_later(delay_s, self._run, action)

    def stop(self) -> None:
        """SIGSTOP: nothing of the process runs until `resume`."""
        self.stopped = True
        self.stopped_at = asyncio.get_running_loop().time()
        self._kernel.stops += 1

    def resume(self) -> None:
        """SIGCONT."""
        self.stopped = False
        deferred, self._deferred = self._deferred, []
        for action in deferred:
            self._run(action)
        if self.program is not None:
            self.program.resumed()

    def die(self, code: int) -> None:
        """End the process with a return code as of `Popen`: its descriptors close, then its pidfd tells."""
        if self.dying:
            return
        self.dying = True
        self.code = code
        if self.program is not None:
            self.program.killed()
        rng, loop = self._kernel.rng, asyncio.get_running_loop()
        ends = [self.lifeline, *self.sockets]
        rng.shuffle(ends)
        spread_s = rng.choice((0.0, 0.0, 0.002, 0.05))
        for index, end in enumerate(ends):
            loop.call_later(index * spread_s, end.close)
        loop.call_later(len(ends) * spread_s + rng.choice((0.0, 0.001, 0.01, 0.5)), self._end)

    def _run(self, action: Callable[[], None]) -> None:
        if self.dying:
            return
        if self.stopped:
            self._deferred.append(action)
        else:
            action()

    def _end(self) -> None:
        for arena in self.arenas:
            arena.close()
        self.ended = True


class Output:
    """Descriptors 1 and 2 of a process."""

    write_ends = (1, 2)

    def close_write_ends(self) -> None:
        """Have nothing to close: these are no descriptors of the system's."""


class Outputs:
    """Outputs of processes, as the pool opens and closes them."""

    log_fd = 1

    def __init__(self) -> None:
        self.open_outputs: list[Output] = []

    def open(self, name: str) -> Output:
        output = Output()
        self.open_outputs.append(output)
        return output

    def set_group(self, output: Output, group: int) -> None:
        """Have nothing to kill: simulated processes start no others."""

    def forget(self, output: Output) -> None:
        self.open_outputs.remove(output)

    def watched(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class Kernel:
    """The system that a run's processes, sockets and clocks belong to.

    spawned: called with each new process, the command's Op not known yet. fail_spawn: whether the next spawn
    raises OSError. capacity: bytes that a socket holds.
    """

    def __init__(self, rng: random.Random, clock: Clock, cores: int, capacity: int) -> None:
        self.rng = rng
        self.clock = clock
        self.cores = cores
        self.processes: list[Process] = []
        self.stops = 0  # by SIGSTOP, of all processes
        self._descriptors: dict[int, weakref.ref[Socket] | PidFd] = {}
        self.spawned: Callable[[Process], None] = lambda process: None
        self.fail_spawn: Callable[[], bool] = lambda: False
        self._capacity = capacity

    def open(self, descriptor: Socket | PidFd) -> int:
        """Give a descriptor the lowest free number, as the system does."""
        number = FIRST_FD
        while number in self._descriptors:
            number += 1
        self._descriptors[number] = weakref.ref(descriptor) if isinstance(descriptor, Socket) else descriptor
        return number

    def close(self, number: int) -> None:
        if number >= FIRST_FD:
            del self._descriptors[number]
        else:
            os.close(number)

    def find(self, number: int) -> Socket | PidFd | None:
        descriptor = self._descriptors.get(number)
        return descriptor() if isinstance(descriptor, weakref.ref) else descriptor

    def descriptors(self) -> list[int]:
        """Return the numbers of the open descriptors."""
        return list(self._descriptors)

    def read_size(self, available: int) -> int:
        """Return how many of the available bytes a read gets: sometimes only a few."""
        return min(available, self.rng.randint(1, 40)) if self.rng.random() < 0.1 else available

    def socketpair(self) -> tuple[Socket, Socket]:
        ours, theirs = Socket(self, self._capacity), Socket(self, self._capacity)
        ours.connect(theirs)
        return ours, theirs

    def spawn(self, command: Sequence[str], pass_fds: Sequence[int], **_: Any) -> Process:
        """Start a worker process: `Popen`. Raises OSError."""
        if self.fail_spawn():
            raise BlockingIOError("Resource temporarily unavailable")
        _, lifeline, *ends = pass_fds
        inherited = [self.find(number) for number in (lifeline, *ends[::2])]
        for end in inherited:
            assert isinstance(end, Socket)
            end.holders += 1
        pid = FIRST_PID + len(self.processes)
        process = Process(self, pid, inherited[0], inherited[1:], [Arena(fd) for fd in ends[1::2]])
        self.processes.append(process)
        self.spawned(process)
        return process

    def pidfd_open(self, pid: int) -> int:
        return self.open(PidFd(self.processes[pid - FIRST_PID]))

    def read_activity(self, pid: int, thread_id: int) -> Activity | None:
        """Return what /proc says of a process or thread: None when it has ended."""
        process = self.processes[pid - FIRST_PID]
        return None if process.dying or process.program is None else process.program.activity(thread_id)

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Have the front's modules call this system in place of the real one."""
        system = SimpleNamespace(
            pidfd_open=self.pidfd_open, close=self.close, getpid=lambda: FIRST_PID - 1, environ={}
        )
        sockets = SimpleNamespace(
            socketpair=self.socketpair, socket=Socket, SHUT_WR=socket.SHUT_WR, MSG_PEEK=socket.MSG_PEEK
        )
        spawning = SimpleNamespace(Popen=self.spawn, DEVNULL=subprocess.DEVNULL)
        replaced: list[tuple[Any, str, Any]] = [
            (worker_process, "os", system), (worker_process, "socket", sockets),
            (worker_process, "subprocess", spawning), (worker_process, "resident_bytes", lambda pid: 1e8),
            (worker_process, "oom_kills", lambda: 0), (worker_process, "read_activity", self.read_activity),
            (worker_process, "kill_groups", lambda groups: None),
            (scheduler, "usable_cores", lambda: self.cores),
            (isolation, "time", self.clock), (isolation, "_logged_at", {}),
        ]  # fmt: skip
        replaced += [
            (module, "time", self.clock)
            for name, module in list(sys.modules.items())
            if name.startswith("pipeline.front.") and getattr(module, "time", None) is time
        ]
        with contextlib.ExitStack() as stack:
            for module, name, value in replaced:
                stack.enter_context(mock.patch.object(module, name, value))
            yield

    def unwaited(self) -> list[int]:
        """Return the processes whose end the front has not noticed."""
        return [process.pid for process in self.processes if process.returncode is None]
