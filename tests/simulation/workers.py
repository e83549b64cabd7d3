"""Simulated worker program: what runs in a worker process in place of `pipeline.worker`.

It speaks the real frames and uses the real shared memory. Each request says how it shall be treated.
"""

from __future__ import annotations

import asyncio
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Any, Protocol

from pipeline.errors import InvalidInput
from pipeline.messages.frames import (
    Arena,
    Frame,
    FrameReader,
    Part,
    decode,
    encode,
    frame,
    reply_region,
    stow,
)
from pipeline.messages.messages import (
    CallMessage,
    DispatchMessage,
    Failed,
    Message,
    Outcome,
    Probe,
    Probed,
    Ready,
    Refusal,
    Reply,
    Settled,
    Start,
    StreamedAnswer,
    Timings,
)
from pipeline.process.processes import Activity
from tests.simulation.kernel import Process, Socket

RECEIVE_BYTES = 256 * 1024
NEVER_S = 1e6
ANSWER_S = 1.0  # between two answers of a stream
REFUSAL = "the simulated Op refuses this request"


class Mode(Enum):
    """How a worker goes through a dispatch: see `pipeline.worker.executor.Executor`."""

    TOGETHER = "together"  # all requests begin at once
    BATCHES = "batches"  # one batch after the other, each with its reply
    HOOKS = "hooks"  # one request after the other, with one reply at the end


@dataclass
class Speed:
    """Times of an Op's workers, in seconds: of a start, of a run, and of each request in it."""

    start_s: tuple[float, float] = (0.2, 2.0)
    run_s: float = 0.005
    request_s: float = 0.001

    def draw_run_s(self, rng: random.Random, requests: int) -> float:
        """Draw the seconds that one run of so many requests takes."""
        return (self.run_s + self.request_s * requests) * rng.uniform(0.8, 1.3)


@dataclass
class StartPlan:
    """How one start of a worker goes: `ready`, `exit`, `raise`, `refuse`, `hang`, or `crash` once ready."""

    kind: str = "ready"
    extra_s: float = 0.0
    code: int = 1


@dataclass
class Quirks:
    """Faults that a process has from some moment on."""

    cut_reply: str = ""  # the next reply ends within its frame: `die` or `stop`
    garbage: bool = False  # the next reply is no frame
    probe: str = ""  # result of the next probe: `fail` or `hang`
    hang_thread: bool = False  # the next run of one of its threads never ends
    slowness: float = 1.0  # factor of all times


class Witness(Protocol):
    """Observer of what workers do."""

    def began(self, worker: Worker, requests: list[int]) -> None: ...
    def died(self, worker: Worker) -> None: ...


@dataclass
class Run:
    """A dispatch under way.

    requests: all of its requests. begun: the number of them that count as begun. calls: those that have not
    run, in the order of their runs. settled, tail: answers that are yet to be sent.
    """

    id: int
    requests: list[int]
    calls: deque[tuple[CallMessage, dict[str, Any]]]
    begun: int = 0
    settled: list[Settled] = field(default_factory=list)
    tail: list[Part] = field(default_factory=list)


class Worker:
    """The program of one process, from its start to its death."""

    def __init__(self, process: Process, world: World) -> None:
        self.process = process
        self.world = world
        self.op = ""
        self.name = ""
        self.ready = False
        self.ready_at = 0.0
        self.hung = False  # no instance answers any more
        self.spins = False  # it uses CPU meanwhile
        self._cpu_s: dict[int, float] = {}  # by thread id; of the process at 0
        self.cause = "killed"  # of its death: `start`, `leave`, `fault`, `request`, or `killed`
        self.quirks = Quirks()
        self.instances = [
            InstanceThread(self, number, *ends)
            for number, ends in enumerate(zip(process.sockets, process.arenas, strict=True))
        ]
        process.program = self
        main = self.instances[0]
        process.later(0.0, main.listen)

    @property
    def healthy(self) -> bool:
        """Whether it serves, and answers what it is sent."""
        return self.ready and not (self.process.dying or self.process.stopped or self.hung)

    def start(self, message: Start) -> None:
        self.op, self.name = message.op, message.name
        plan = self.world.next_start(self.op)
        low, high = self.world.speeds[self.op].start_s
        self.process.later(self.world.rng.uniform(low, high) + plan.extra_s, partial(self._started, plan))

    def _started(self, plan: StartPlan) -> None:
        front = self.instances[0]
        if plan.kind == "hang":
            return
        if plan.kind == "exit":
            self.die("start", plan.code)
        elif plan.kind in ("raise", "refuse"):
            front.send(Failed("the simulated start fails", plan.kind == "refuse"))
            self.process.later(0.001, partial(self.die, "start", 1))
        else:
            front.send(Ready(None, None))
            self.ready = True
            self.ready_at = asyncio.get_running_loop().time()
            for instance in self.instances[1:]:
                instance.listen()
            if plan.kind == "crash":
                self.process.later(
                    self.world.rng.choice((0.0, 0.01, 1.0)), partial(self.die, "fault", plan.code)
                )

    def activity(self, thread_id: int) -> Activity:
        """Return the state and CPU time of the process or of a thread: `Program.activity`."""
        if self.process.stopped:
            return Activity("T", self._cpu_s.get(thread_id, 0.0))
        threads = [self.instances[thread_id - 1]] if thread_id else self.instances
        hung = (self.hung and not self.spins) or all(thread.hung and not thread.spins for thread in threads)
        if not hung:
            self._cpu_s[thread_id] = asyncio.get_running_loop().time()
        return Activity("S" if hung else "R", self._cpu_s.get(thread_id, 0.0))

    def die(self, cause: str, code: int) -> None:
        """End the process with a return code as of `Popen`."""
        if not self.process.dying:
            self.cause = cause
            self.process.die(code)

    def killed(self) -> None:
        """Report the death, whatever its cause: `Program.killed`."""
        self.world.witness.died(self)

    def resumed(self) -> None:
        """Write what could not be written while the process was stopped: `Program.resumed`."""
        for instance in self.instances:
            instance.write_on()

    def begun(self) -> list[tuple[list[int], bool]]:
        """Return the requests that each instance has begun and not answered, and whether each is alone."""
        runs = [requests for instance in self.instances if (requests := instance.unanswered())]
        return [(requests, len(runs) == 1 and len(requests) == 1) for requests in runs]

    def left(self) -> None:
        """Leave when all instances have read the end of file."""
        if all(instance.at_end for instance in self.instances):
            self.die("leave", 0)


class InstanceThread:
    """One instance in a worker: reads frames one at a time, as a thread that blocks on its socket."""

    def __init__(self, worker: Worker, number: int, end: Socket, arena: Arena) -> None:
        self.worker = worker
        self.number = number
        self.at_end = False
        self.run: Run | None = None
        self._end = end
        self._arena = arena
        self._reader = FrameReader(arena)
        self._frames: Iterator[Frame] = iter(())
        self._busy = False
        self._unsent = bytearray()
        end.on_readable = self._wake
        end.on_writable = self.write_on
        self.hung = False  # does not answer any more, whatever the others do
        self.spins = False  # it uses CPU meanwhile
        self._answering: list[int] = []  # requests whose reply is being written
        self._listening = False

    def listen(self) -> None:
        self._arena.name_thread(self.number + 1)
        self._listening = True
        self._wake()

    def _wake(self) -> None:
        if self._listening and not self._busy:
            self._busy = True
            self._later(self.worker.world.rng.choice((0.00001, 0.0001)), self._read)

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self.worker.process.later(delay_s * self.worker.quirks.slowness, action)

    def _read(self) -> None:
        """Handle the next frame, or wait for bytes."""
        while (received := next(self._frames, None)) is None:
            try:
                data = self._end.recv(RECEIVE_BYTES)
            except BlockingIOError:
                self._busy = False
                return
            except ConnectionResetError:
                data = b""
            if not data:
                self.at_end = True
                self._later(0.0005, self.worker.left)
                return
            self._frames = self._reader.feed(data)
        self._handle(received)

    def _handle(self, received: Frame) -> None:
        message = received.message
        if isinstance(message, Start):
            self.worker.start(message)
            self._busy = False
        elif isinstance(message, Probe):
            self._later(0.002, self._probed)
        elif isinstance(message, DispatchMessage):
            self._begin(message, received)
        else:
            self._read()

    def _probed(self) -> None:
        kind, self.worker.quirks.probe = self.worker.quirks.probe, ""
        if kind == "hang":
            self.worker.hung = True
            return
        self.send(Probed("the simulated probe fails" if kind else ""))
        self._read()

    def _begin(self, message: DispatchMessage, received: Frame) -> None:
        if self._arena.taken_back(message.id):
            self.send(Reply(message.id, True, [], Timings()))
            self._read()
            return
        self._arena.note_begin(message.id, 0)
        calls = deque((call, _values(call, received)) for call in message.calls)
        self.run = Run(message.id, [call.log_id for call in message.calls], calls)
        self._answering = []
        self._begin_batch()

    def _begin_batch(self) -> None:
        """Tell the front what begins. The process may lose its core before it looks what is taken back."""
        assert self.run is not None
        world, run = self.worker.world, self.run
        size = 1 if world.mode is Mode.HOOKS else world.batch_sizes[self.worker.op]
        batch = list(run.calls)[:size]
        total = len(run.requests)
        begun = total if world.mode is Mode.TOGETHER else total - len(run.calls) + len(batch)
        if begun == run.begun:
            self._run_batch(batch)
            return
        self._arena.note_begin(run.id, begun)
        requests, run.begun = run.requests[run.begun : begun], begun
        self._later(world.rng.choice(world.stalls_s), partial(self._look, batch, requests))

    def _look(self, batch: list[tuple[CallMessage, dict[str, Any]]], requests: list[int]) -> None:
        """Run a batch, unless the front has taken back what has not begun."""
        assert self.run is not None
        if self._arena.taken_back(self.run.id):
            self._reply(last=True)
            return
        self.worker.world.witness.began(self.worker, requests)
        self._run_batch(batch)

    def _run_batch(self, batch: list[tuple[CallMessage, dict[str, Any]]]) -> None:
        """Run a batch of the dispatch: it takes its time, ends with answers, or kills or hangs us."""
        world, rng = self.worker.world, self.worker.world.rng
        speed = world.speeds[self.worker.op]
        if self.worker.quirks.hang_thread:
            self.worker.quirks.hang_thread = False
            self.hung = True
            return
        took_s = speed.draw_run_s(rng, len(batch))
        for call, values in batch:
            request = first_value(values)
            if request["node"] not in ("", self.worker.op):
                continue
            if request["do"] == "slow":
                took_s += request["s"]
            elif request["do"] == "stream":
                took_s = self._stream(call, took_s, answers=request["size"])
            elif request["do"] == "poison":
                self._later(took_s * rng.random(), partial(self.worker.die, "request", request["code"]))
                return
            elif request["do"] in ("hang", "hang_thread"):
                hung = self if request["do"] == "hang_thread" else self.worker
                hung.hung = True
                hung.spins = rng.random() < 0.3
                return
        self._later(took_s, partial(self._answer, batch))

    def _stream(self, call: CallMessage, first_s: float, answers: int) -> float:
        """Send the answers of a request one by one. Return the seconds until the end of the run."""
        assert self.run is not None
        answer = Settled(call.index, Outcome.ANSWER, [b"1"])
        for number in range(answers):
            message = StreamedAnswer(self.run.id, call.index, number == answers - 1, answer)
            self._later(first_s + number * ANSWER_S, partial(self.send, message))
        return first_s + (answers - 1) * ANSWER_S + 0.001

    def _answer(self, batch: list[tuple[CallMessage, dict[str, Any]]]) -> None:
        assert self.run is not None
        run = self.run
        for call, values in batch:
            run.calls.popleft()
            run.settled.append(self._settle(call, values, run.tail))
        last = not run.calls
        if last or self.worker.world.mode is not Mode.HOOKS:
            self._reply(last=last)
        else:
            self._begin_batch()

    def _reply(self, *, last: bool) -> None:
        """Send the answers that there are, as far as the worker's faults let it."""
        assert self.run is not None
        run, quirks, count = self.run, self.worker.quirks, len(self.run.settled)
        timings = Timings(1000, 2000, 1000, 1, count, count, count, count) if count else Timings()
        reply = Reply(run.id, last, run.settled, timings)
        data = b"".join(map(bytes, frame(reply, run.tail, self._arena, reply_region(run.id))))
        if quirks.garbage:
            quirks.garbage = False
            self.worker.world.garbage.add(self.worker.name)
            self.worker.hung = True
            self._write(b"\xff" * 64 + data)
            return
        if quirks.cut_reply:
            data = data[: self.worker.world.rng.randint(1, len(data) - 1)]
            self.worker.hung = True
            if quirks.cut_reply == "die":
                self._later(0.0002, partial(self.worker.die, "fault", -signal.SIGSEGV))
            self._write(data)
            return
        self._answering = [run.requests[settled.index] for settled in run.settled]
        run.settled, run.tail = [], []
        self._write(data)
        if last:
            self.run = None
            self._read()
        else:
            self._begin_batch()

    def _settle(self, call: CallMessage, values: dict[str, Any], tail: list[Part]) -> Settled:
        """The answer of one request, its value for the next Op, or its refusal."""
        request = first_value(values)
        op = self.worker.op
        if request["do"] == "error" and request["node"] in ("", op):
            return Settled(call.index, Outcome.ERROR, refusal=Refusal.from_error(InvalidInput(REFUSAL)))
        path = f"{op}({','.join(value['path'] for value in values.values())})"
        state: list[Part] = []
        if "history" in request:
            path = history_path(op, request["history"])
            state = encode([*request["history"], request["id"]], allow_pickle=False)
        if call.answers:
            parts: list[Part] = [answer_body(request["id"], path, _fill(request), request["size"])]
            return Settled(call.index, Outcome.ANSWER, stow(parts, tail), state=stow(state, tail))
        value = {**request, "path": path, "data": request["data"]}
        return Settled(call.index, Outcome.VALUE, stow(encode(value, allow_pickle=False), tail))

    def unanswered(self) -> list[int]:
        """Return the requests that it has begun, less those whose reply is with the front."""
        waiting: list[int] = []
        if (run := self.run) is not None:
            waiting = [run.requests[settled.index] for settled in run.settled]
            waiting += run.requests[len(run.requests) - len(run.calls) : run.begun]
        return [*(self._answering if self._unsent else ()), *waiting]

    def send(self, message: Message) -> None:
        self._write(b"".join(map(bytes, frame(message))))

    def _write(self, data: bytes) -> None:
        """Write as `sendall` does, in pieces of any size; the rest goes when the front has read."""
        self._unsent += data
        self.write_on()

    def write_on(self) -> None:
        rng = self.worker.world.rng
        while self._unsent and not (self.worker.process.dying or self.worker.process.stopped):
            piece = rng.randint(1, len(self._unsent)) if rng.random() < 0.2 else len(self._unsent)
            try:
                sent = self._end.send(bytes(self._unsent[:piece]))
            except BlockingIOError:
                return
            except OSError:
                self._unsent.clear()
                return
            del self._unsent[:sent]
            if sent < piece or piece < len(self._unsent) + sent:
                self._later(0.0001, self.write_on)
                return


@dataclass
class World:
    """The plans and records that all workers of a run call.

    mode: how they go through a dispatch. plans: of the next starts, by Op; further ones become ready.
    garbage: names of workers that sent bytes which are no frame. stalls_s: how long a worker may have no core
    when it begins with a batch.
    """

    rng: random.Random
    witness: Witness
    speeds: dict[str, Speed]
    batch_sizes: dict[str, int]
    mode: Mode = Mode.TOGETHER
    plans: dict[str, deque[StartPlan]] = field(default_factory=dict)
    workers: list[Worker] = field(default_factory=list)
    garbage: set[str] = field(default_factory=set)
    stalls_s: Sequence[float] = (0.0, 0.0, 0.00002, 0.02)

    def next_start(self, op: str) -> StartPlan:
        plans = self.plans.get(op)
        return plans.popleft() if plans else StartPlan()

    def spawned(self, process: Process) -> None:
        """Have a new process run a worker."""
        self.workers.append(Worker(process, self))

    def alive(self, op: str = "") -> list[Worker]:
        """Return the workers that are not dead, of one Op or of all."""
        return [w for w in self.workers if not w.process.dying and (not op or w.op == op)]


def answer_body(number: int, path: str, fill: int, size: int) -> bytes:
    """The body that answers a request; no two requests have the same. fill: see `_fill`."""
    return f"{number} {path} {fill} ".encode().ljust(size, b"%d" % (number % 10))


def history_path(op: str, history: Sequence[int]) -> str:
    """The way through an Op of sequences, with the requests that have made the state."""
    return f"{op}({'.'.join(map(str, history))})"


def first_value(values: dict[str, Any]) -> dict[str, Any]:
    """The request as the client sent it, which each Op passes on."""
    value: dict[str, Any] = next(iter(values.values()))
    return value


def _fill(request: dict[str, Any]) -> int:
    """The value that fills the request's array; -1 without one, -2 for one that is not as it was sent."""
    array = request["data"]
    if array is None:
        return -1
    return int(array[0]) if bool((array == array[0]).all()) else -2


def _values(call: CallMessage, received: Frame) -> dict[str, Any]:
    inputs = {name: decode(received.tail.unstow(stowed), allow_pickle=False) for name, stowed in call.inputs}
    if call.options is not None and call.options.correlation_id:
        state = None if call.state is None else decode(received.tail.unstow(call.state), allow_pickle=False)
        first_value(inputs)["history"] = state or []
    return inputs
