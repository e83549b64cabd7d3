"""DagRun: the run of one request through the DAG. Its tasks, one for each node, and their queues."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import astuple

from pipeline.api.dag import Dag
from pipeline.api.op import REQUEST_OP, RESPONSE_OP
from pipeline.api.request_options import LogId, RequestOptions
from pipeline.errors import DeadlineExceeded, HookFailed, ServingError, get_error_text
from pipeline.front.metrics.metrics import Failures, RequestFigures, RequestTimings
from pipeline.messages.frames import Part, encode, stow
from pipeline.messages.messages import REFUSAL, CallMessage, Outcome, Refusal
from pipeline.process.isolation import log_fault, run_isolated


class Finish(Protocol):
    """Extra work at the beginning and end of a request, such as writing outputs into shared memory."""

    def begin(self) -> None:
        """Called once, when the request is admitted. Does not raise."""
        ...

    def end(self, answer: Any) -> Any:
        """Return the response in place of the worker's answer, or of an error.

        answer: None when the client has left. Called once, whatever becomes of the request. Does not raise.
        """
        ...


class Client:
    """Sender of requests, for fairness: a connection, a peer's address, or all users of one API key."""

    __slots__ = ("name", "pending", "turn")

    limited = False  # whether `check` may raise

    def __init__(self, name: str = "") -> None:
        self.name = name  # of its API key; empty without one
        self.pending = 0  # its requests that are admitted and not yet answered
        self.turn = 0  # turn of its last request, see `FairQueue`

    def check(self) -> None:
        """Raise Overloaded if the client exceeds its limits."""


class Request(msgspec.Struct, eq=False):
    """A request, as parsed by a dialect."""

    service: str
    method: str
    inputs: dict[str, Any]  # str, bytes, ndarray or list by name, in the order of the request
    log_id: LogId = 0  # number that the client has set; 0 without one
    client_ip: str = ""
    form: str = ""  # name of the response's form in the dialect
    deadline: float = math.inf  # instant of time.monotonic(); math.inf for none
    priority: int = 0  # smaller values are served first
    timings: RequestTimings | None = None  # for the response; None without dag.use_profile
    model: str = ""  # name of the requested model; empty for the service's first
    rows: int = 1  # rows that statistics count
    version: str = ""  # requested version of the model; empty for the served one
    model_version: str = ""  # version of the worker that gets the request
    wish: Any = None  # options of the form; only the dialect knows their type, which msgpack can encode
    finish: Finish | None = None  # converts the worker's answer to the response
    options: RequestOptions | None = None  # request options for the hooks; None without any
    client: Client | None = None  # set by the listener
    endpoint: str = ""  # name of the protocol and dialect, set by the listener
    turn: int = 0  # place in the queue, see `FairQueue`


class InOrder:
    """Holds the results of tasks until the tasks before them are settled or cancelled."""

    def __init__(self) -> None:
        self._under_way: dict[int, Task] = {}  # by number, in the order of their dispatch
        self._settled: dict[int, Callable[[], None]] = {}

    def sent(self, task: Task) -> None:
        """Record that a worker gets the task. A retried task keeps its place."""
        self._under_way[task.number] = task

    def complete(self, task: Task, go_on: Callable[[], None]) -> None:
        """Call `go_on` once all tasks before this task are settled or cancelled."""
        # The task was refused in the queue, or the try was abandoned and the next try has its place.
        if task.number not in self._under_way or not task.wanted:
            go_on()
            return
        self._settled[task.number] = go_on
        self.advance()

    def advance(self) -> None:
        """Pass on the results that wait for no other task."""
        while self._under_way:
            number, task = next(iter(self._under_way.items()))
            go_on = self._settled.pop(number, None)
            if go_on is None and task.wanted:
                return
            del self._under_way[number]
            if go_on is not None:
                run_isolated(go_on)


_ANSWER, _VALUE, _JUMP = Outcome.ANSWER, Outcome.VALUE, Outcome.JUMP
_data_ids = itertools.count(1)

Answer = list[Part] | ServingError
"""A complete response body, in the parts that the request's form defines, or an error."""

Inputs = list[tuple[str, list[Part]]]
"""Inputs of an Op, with the names of their sources."""


class OpQueue(NamedTuple):
    """The queue before an Op, by its callbacks."""

    enqueue: Callable[[DagRun, str, Inputs], None]  # run this node of the DAG for the request
    record_error: Callable[[ServingError], None]  # count a request that the Op has refused or failed


class Entry(msgspec.Struct, eq=False):
    """State of a served model that the DAG runs of its requests share."""

    model: str  # its key
    dag: Dag  # its steps
    queues: Mapping[str, OpQueue]  # by node, the queue of its Op
    # Called once for each DAG run, with its answer, or None after the client has left.
    on_end: Callable[[DagRun, Answer | None], None]
    max_hops: int
    tries: int  # of a whole request, see dag.retry
    describe_step: Callable[[str], str] | None  # names a node in errors; None where errors name no nodes
    version: str  # of its answers, unless `versioned` names an Op
    versioned: str  # the Op whose version is the version of the answers; empty without one
    requests: RequestFigures | None  # totals of its requests; None where the figures of its Op count them
    failures: Failures  # by reason
    load_hint: str = ""  # tells clients how to load the model again, in the error of an unloaded model
    pending: int = 0  # admitted requests without an answer

    def needs(self, parts: Collection[str]) -> bool:
        """Whether the model or one of its Ops is among these parts."""
        return self.model in parts or any(op in parts for op in self.dag.ops)


class DagRun(msgspec.Struct, eq=False):
    """Runs one request through the DAG: starts a node when all its inputs are available.

    A run ends once: with the answer of the last node, with the first error, or because the client has left.

    With `dag.channel_recv_frist_arrive` a node starts on the first input alone, and later inputs are dropped.
    A failed input then ends the request only if no other input can still come.
    """

    request: Request
    answered: Callable[[Answer], None]  # called with the answer
    began: float  # instant of time.monotonic()
    entry: Entry  # the requested model
    _hops_left: int
    _tries_left: int
    _ended: bool = False
    # Id of the request for the hooks of every Op.
    data_id: int = msgspec.field(default_factory=_data_ids.__next__)
    due_key: int | None = None  # place among the deadlines
    # By node, the inputs of its latest start; empty once the DAG run has ended.
    awaited: dict[str, Inputs] = {}
    # By node: the name under which its consumers see the output, and the output. A jump changes the name.
    _outputs: dict[str, tuple[str, list[Part]]] = {}
    _failed: set[str] = set()

    def begin(self) -> None:
        """Start the first nodes. Raises NotEncodable for an input of a type that no codec supports."""
        source = self.entry.dag.source
        self.deliver(source, source, encode(self.request.inputs, allow_pickle=False))

    def deliver(self, node: str, label: str, parts: list[Part]) -> None:
        """Pass on the output of a node. Start the consumers whose inputs are complete.

        label: the name under which consumers see the output.
        """
        entry, outputs = self.entry, self._outputs
        dag = entry.dag
        outputs[node] = (label, parts)
        for consumer in dag.consumers[node]:
            inputs = self._ready_inputs(consumer, node)
            if inputs is not None:
                inputs_now = self.awaited[consumer] = [outputs[name] for name in inputs]
                entry.queues[consumer].enqueue(self, consumer, inputs_now)
        if dag.first_arrival:
            for name in superfluous(dag, self.awaited):
                self.awaited[name] = []  # no task has these inputs, so a result of the node is dropped

    def _ready_inputs(self, node: str, came: str) -> tuple[str, ...] | None:
        """Return the inputs that a node starts on once `came` is available; None while it waits or runs."""
        dag = self.entry.dag
        if dag.first_arrival:
            return None if node in self.awaited else (came,)
        inputs = dag.inputs[node]
        for name in inputs:
            if name not in self._outputs:
                return None
        return inputs

    def jump(self, node: str, parts: list[Part]) -> None:
        """Pass the output to the consumers of the jump's targets, as the output of the targets."""
        self._hops_left -= 1
        if self._hops_left < 0:
            self.refuse(
                node, HookFailed(f"[{node}] jumped too often: more than dag.max_hops times in one request")
            )
            return
        dag = self.entry.dag
        for target in dag.nodes[node].jumps:
            for stale in dag.descendants(target):
                self._outputs.pop(stale, None)
                self.awaited.pop(stale, None)
                self._failed.discard(stale)
        for target in dag.nodes[node].jumps:
            self.deliver(target, node, parts)

    def unpack(self, parts: list[Part]) -> None:
        """Deliver the inputs that the app has unpacked. The first part is the log_id, in msgpack."""
        self.request.log_id = msgspec.msgpack.decode(parts[0], type=LogId)
        self.deliver(REQUEST_OP, REQUEST_OP, parts[1:])

    def start_anew(self, node: str, inputs: Inputs) -> Inputs:
        """Abandon the current try of a node. Return the inputs of the next try."""
        renewed = self.awaited[node] = list(inputs)
        return renewed

    def time_out(self, node: str, error: ServingError) -> None:
        """Restart the whole request after the last try of an Op, as often as dag.retry allows."""
        if self._goes_on_without(node):
            return
        self._tries_left -= 1
        if self._tries_left <= 0:
            self.refuse(node, error)
            return
        self.awaited.clear()
        self._outputs.clear()
        self._failed.clear()
        self._hops_left = self.entry.max_hops
        self.begin()

    def refuse(self, node: str, error: ServingError) -> None:
        """End the request with the error of an Op. An overridden ResponseOp gets the error first."""
        queues = self.entry.queues
        queues[node].record_error(error)
        describe_step = self.entry.describe_step
        if describe_step is not None:
            self.entry.failures.steps[node, self.entry.dag.nodes[node].op] += 1
            if type(error) is ServingError:
                error.args = (f"{describe_step(node)}: {error.message}",)
        if self._goes_on_without(node):
            return
        if not self.entry.dag.packs or node == RESPONSE_OP:
            self.end(error)
            return
        self.awaited.clear()
        inputs = [(REFUSAL, encode(astuple(Refusal.from_error(error)), allow_pickle=False))]
        self.awaited[RESPONSE_OP] = inputs
        queues[RESPONSE_OP].enqueue(self, RESPONSE_OP, inputs)

    def _goes_on_without(self, node: str) -> bool:
        """Whether the answer can still come without the output of this failed node."""
        dag = self.entry.dag
        if not dag.first_arrival:
            return False
        self._failed.add(node)
        return dag.response not in lost_with(dag, self._failed, self.awaited)

    def expire(self) -> None:
        """End the request because its deadline has passed."""
        self.end(DeadlineExceeded("the request's deadline passed before its answer was there"))

    def leave(self) -> None:
        """Drop the request: its client has left."""
        self.end(None)

    def end(self, answer: Answer | None) -> None:
        """Answer the request, or drop it with None. Later calls have no effect."""
        if not self._ended:
            self._ended = True
            self.awaited.clear()
            self.entry.on_end(self, answer)


class Task(msgspec.Struct, eq=False):
    """The part of a request that one Op computes: a batcher queues it, and a worker's reply settles it."""

    dag_run: DagRun
    node: str  # step of the DAG that the Op runs for
    inputs: Inputs
    number: int  # order among the tasks of one turn
    queued_at: float
    tries_left: int = 1  # within the Op's timeout, this one included
    unseen_deaths: int = 0  # workers that died before they began the task
    lone_deaths: int = 0  # workers that died while they ran only this task
    suspect: bool = False  # a worker died after it had begun the task
    hung: bool = False  # an instance seemed to hang in the task, and another instance runs it
    moved: bool = False  # another instance has a copy, because this one hangs; the first result counts
    left_queue: bool = False  # the task was dispatched at least once
    late: bool = False  # its queue policy has moved it behind all others of its priority
    in_order: InOrder | None = None  # set where the model's responses keep the order of requests
    wait_limit: asyncio.TimerHandle | None = None  # timer of the queue policy, while the task waits
    place: tuple[int, int, int] = (0, 0, 0)  # priority, turn and number, set by the queue

    def next_try(self, now: float) -> Task:
        """Return the task of the next try, after this try has exceeded the Op's timeout."""
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, queued_at=now, tries_left=self.tries_left - 1)

    def delayed(self) -> Task:
        """Return a copy of the task that waits behind the others of its priority."""
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, late=True, wait_limit=None)

    def cancel_wait_limit(self) -> None:
        """Cancel the timer of the queue policy. Until it fires, it would keep the inputs in memory."""
        if self.wait_limit is not None:
            self.wait_limit.cancel()
            self.wait_limit = None

    def second_try(self, *, blamed: bool) -> Task:
        """Return a copy of the task for another instance, because its instance is stuck.

        blamed: the task may be the cause.
        """
        other = msgspec.structs.replace(self, hung=self.hung or blamed)
        self.moved = True
        return other

    @property
    def alone(self) -> bool:
        """Whether the task must run alone: it may have killed a worker, or made a worker hang."""
        return self.suspect or self.hung

    @property
    def rows(self) -> int:
        """Rows of the request, an estimate of its cost."""
        return self.dag_run.request.rows

    @property
    def wanted(self) -> bool:
        """Whether the request still waits for the result; a jump may have started the node again."""
        return self.dag_run.awaited.get(self.node) is self.inputs

    def message(self, index: int, tail: list[Part]) -> CallMessage:
        """Return the task's message for the worker. Adds large parts to `tail`. index: in the dispatch."""
        dag_run = self.dag_run
        request, entry, dag = dag_run.request, dag_run.entry, dag_run.entry.dag
        inputs = [(name, stow(parts, tail)) for name, parts in self.inputs]
        options = request.form, request.wish, request.model_version, request.options, request.deadline
        answers = entry.model if self.node == dag.response else ""
        tensors = dag.tensors.get(self.node)
        axes = dag.batch_axes.get(self.node)
        return CallMessage(index, dag_run.data_id, request.log_id, *options, inputs, answers, tensors, axes)

    def complete(self, outcome: Outcome, parts: list[Part]) -> None:
        """Settle the task with a result of the worker, and go on with the request."""
        if self.in_order is not None:
            # The parts may be views of memory that the next reply is written to.
            copies: list[Part] = [bytes(part) for part in parts]
            self.in_order.complete(self, partial(self._go_on, outcome, copies))
            return
        self._go_on(outcome, parts)

    def _go_on(self, outcome: Outcome, parts: list[Part]) -> None:
        dag_run, node = self.dag_run, self.node
        if dag_run.awaited.get(node) is not self.inputs:  # `wanted`
            return
        try:
            if outcome is _ANSWER:
                dag_run.end(parts)
                return
            dag_run.awaited[node] = []  # results of other tries are dropped from now on
            if outcome is _VALUE:
                dag_run.deliver(node, node, parts)
            elif outcome is _JUMP:
                dag_run.jump(node, parts)
            else:
                dag_run.unpack(parts)
        except Exception as exc:
            self._end_in_fault(exc)

    def fail(self, error: ServingError) -> None:
        """Settle the task with an error: the request ends, or goes on without this node."""
        if self.in_order is not None:
            self.in_order.complete(self, partial(self._end, error))
            return
        self._end(error)

    def _end(self, error: ServingError) -> None:
        if not self.wanted:
            return
        self.dag_run.awaited[self.node] = []
        try:
            if error.err_no == DeadlineExceeded.err_no:
                self.dag_run.time_out(self.node, error)
            else:
                self.dag_run.refuse(self.node, error)
        except Exception as exc:
            self._end_in_fault(exc)

    def _end_in_fault(self, exc: Exception) -> None:
        """End the request with an internal error after a fault in the front."""
        log_fault(self._go_on)
        self.dag_run.end(
            ServingError(f"the request can't go on after node {self.node}: {get_error_text(exc)}")
        )


def superfluous(dag: Dag, started: Container[str]) -> set[str]:
    """Return the nodes whose output is not needed, with `first_arrival`: all their consumers have started."""
    unused: set[str] = set()
    for name in reversed(dag.order):
        takers = dag.consumers[name]
        if name != dag.response and all(taker in started or taker in unused for taker in takers):
            unused.add(name)
    return unused


def lost_with(dag: Dag, failed: Container[str], started: Container[str]) -> set[str]:
    """With `first_arrival`: the nodes that will have no output when these have none."""
    lost: set[str] = set()
    for name in dag.order:
        inputs = dag.inputs[name]
        if name in failed or (name not in started and all(source in lost for source in inputs)):
            lost.add(name)
    return lost


_PLACE = attrgetter("place")
_EMPTY: Any = None  # slot of a served task
_LAST_TURN = sys.maxsize
_SWEPT_FROM = 128  # a queue with fewer tasks is not searched for cancelled tasks


class TaskQueue:
    """Tasks in order of priority, then of turn, then of arrival.

    A cancelled task stays until it reaches either end, or until the queue has doubled. Places are found by
    bisection. Inserting moves the 8-byte references behind the place, but most tasks come last. Serving a
    task leaves an empty slot. The list is compacted when half of its slots are empty.
    """

    def __init__(self) -> None:
        self.rows = 0  # of the queued tasks
        self._tasks: list[Task] = []
        self._served = 0  # empty slots at the beginning of the list
        self._sweep_at = _SWEPT_FROM

    def __len__(self) -> int:
        """Return the number of queued tasks, cancelled tasks included."""
        return len(self._tasks) - self._served

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the queued tasks in order, cancelled tasks included."""
        return itertools.islice(self._tasks, self._served, None)

    def add(self, task: Task) -> None:
        """Queue a task at its place; a late task behind all others of its priority."""
        request, tasks = task.dag_run.request, self._tasks
        place = task.place = request.priority, _LAST_TURN if task.late else request.turn, task.number
        self.rows += task.rows
        if not tasks or tasks[-1].place < place:
            tasks.append(task)
        else:
            insort(tasks, task, lo=self._served, key=_PLACE)
        if len(tasks) >= self._sweep_at:
            self._sweep()

    def first(self) -> Task | None:
        """Return the task that is served next; None without one."""
        tasks = self._tasks
        while len(tasks) > self._served:
            task = tasks[self._served]
            if task.wanted:
                return task
            self._remove_first()
        return None

    def pop_tasks(self, max_tasks: int) -> list[Task]:
        """Remove and return the tasks that are served next."""
        tasks: list[Task] = []
        while len(tasks) < max_tasks and (task := self.first()) is not None:
            tasks.append(task)
            self._remove_first()
        return tasks

    def last(self) -> Task | None:
        """Return the task that is served last; None without one."""
        tasks = self._tasks
        while len(tasks) > self._served:
            task = tasks[-1]
            if task.wanted:
                return task
            tasks.pop()
            self._record_departure(task)
        tasks.clear()  # of empty slots
        self._served = 0
        return None

    def before(self, place: tuple[int, int]) -> int:
        """Return how many tasks are served before this priority and turn, without tasks of the same turn."""
        return bisect_left(self._tasks, place, lo=self._served, key=_PLACE) - self._served

    def rows_before(self, place: tuple[int, int]) -> int:
        """Return the rows of the tasks that are served before this priority and turn."""
        tasks = self.before(place)
        if self.rows == len(self):
            return tasks
        return sum(task.rows for task in self._tasks[self._served : self._served + tasks])

    def count_priority(self, priority: int) -> int:
        """Return how many tasks of this priority are queued."""
        return self.before((priority + 1, -1)) - self.before((priority, -1))

    def clear(self) -> list[Task]:
        """Remove and return all tasks."""
        tasks = list(self)
        self._tasks.clear()
        self._served = 0
        for task in tasks:
            self._record_departure(task)
        return tasks

    def _remove_first(self) -> None:
        self._record_departure(self._tasks[self._served])
        self._tasks[self._served] = _EMPTY
        self._served += 1
        if 2 * self._served >= len(self._tasks):
            del self._tasks[: self._served]
            self._served = 0

    def _record_departure(self, task: Task) -> None:
        self.rows -= task.rows
        task.cancel_wait_limit()

    def _sweep(self) -> None:
        """Remove empty slots and cancelled tasks. The next sweep comes when twice as many tasks wait."""
        tasks, self._tasks = self._tasks[self._served :], []
        for task in tasks:
            if task.wanted:
                self._tasks.append(task)
            else:
                self._record_departure(task)
        self._served = 0
        self._sweep_at = max(_SWEPT_FROM, 2 * len(self._tasks))


class FairQueue:
    """Fair order of requests: while several clients wait, each has one request in every turn.

    A client's next request stands one turn behind its last, and never behind the turn that is being served. A
    client with few requests goes ahead of the queue of a flooding client. A single client is served in order
    of arrival.
    """

    __slots__ = ("clients", "latest", "now")

    def __init__(self) -> None:
        self.now = 0  # turn of the latest dispatch
        self.latest = 0  # turn of the last request in the queue
        self.clients = 0  # with pending requests

    def next(self, client: Client) -> int:
        """Return the turn that the next request of this client gets.

        Turns of requests that were cancelled in the queue do not count once the client has nothing pending.
        """
        return (client.turn if client.pending and client.turn > self.now else self.now) + 1

    def admit(self, client: Client) -> int:
        """Count a pending request of this client. Return its turn."""
        turn = client.turn = self.next(client)
        if turn > self.latest:
            self.latest = turn
        if not client.pending:
            self.clients += 1
        client.pending += 1
        return turn

    def serve(self, turn: int) -> None:
        """Advance to the turn of a dispatched request."""
        if turn > self.now:
            self.now = turn

    def end(self, client: Client) -> None:
        """Count a request of this client that has ended."""
        client.pending -= 1
        if not client.pending:
            self.clients -= 1
