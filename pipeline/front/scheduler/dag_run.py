"""DagRun: the way of one request through the DAG, and its jobs: its share of the work of each Op."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import partial
from typing import Any, Protocol, cast

import msgspec
from msgspec.structs import astuple

from pipeline.api.dag import Dag
from pipeline.api.op import REQUEST_OP, RESPONSE_OP
from pipeline.api.request_options import RequestOptions
from pipeline.errors import DeadlineExceeded, HookFailed, ServingError, get_error_text
from pipeline.front.metrics.metrics import Failures, RequestFigures
from pipeline.front.metrics.timings import Timings
from pipeline.front.pool import worker_instance
from pipeline.front.scheduler.admission import Client
from pipeline.messages.frames import stow
from pipeline.messages.messages import REFUSAL, Outcome, Refusal, Share
from pipeline.messages.values import Part, encode
from pipeline.process.isolation import log_fault, run_isolated


class Finish(Protocol):
    """What is to be done around a request besides, such as writing its outputs into shared memory."""

    def begin(self) -> None:
        """Called once, when the request is admitted. Does not raise."""
        ...

    def end(self, answer: Any) -> Any:
        """Returns what is sent in place of the worker's answer, or of an error; given None, the client has
        left. Called once, whatever becomes of the request. Does not raise."""
        ...


class Request(msgspec.Struct, eq=False):
    """A request, as a dialect has read it.

    inputs: str, bytes, ndarray or list by name, in the order given. log_id: the client's own, 0 without.
    deadline: an instant of time.monotonic(), math.inf for none. priority: smaller leaves first.
    timings: where its time goes, kept where the answer shall tell (dag.use_profile). model: the one that is
    asked, by its name; empty for the service's first. rows: what statistics count it for.
    version: the one of the model that the client asks for; empty: the one that is served.
    model_version: the one that makes the answer, known when a worker is given the request.
    form: of the answer, by its name in the dialect. wish: what that form leaves open, known to the dialect
    alone: what msgpack can carry.
    finish: makes what is sent of the worker's answer.
    options: what the client said of it, for the hooks; None when nothing.
    client: who asks, and door: the name of the way it came, for the door to set. turn: its place in line, see
    `pipeline.front.scheduler.admission.FairQueue`.
    """

    service: str
    method: str
    inputs: dict[str, Any]
    log_id: int = 0
    client_ip: str = ""
    form: str = ""
    deadline: float = math.inf
    priority: int = 0
    timings: Timings | None = None
    model: str = ""
    rows: int = 1
    version: str = ""
    model_version: str = ""
    wish: Any = None
    finish: Finish | None = None
    options: RequestOptions | None = None
    client: Client | None = None
    door: str = ""
    turn: int = 0


class Ordered(Protocol):
    """A job, as its order sees it. number: the same in each of its tries."""

    number: int

    @property
    def wanted(self) -> bool: ...


class InOrder:
    """Holds what becomes of a job until those before it are settled, or wanted no more."""

    def __init__(self) -> None:
        self._under_way: dict[int, Ordered] = {}  # by number, in the order in which they were sent
        self._settled: dict[int, Callable[[], None]] = {}

    def sent(self, job: Ordered) -> None:
        """A worker is given the job, perhaps again: then it keeps its place."""
        self._under_way[job.number] = job

    def settle(self, job: Ordered, go_on: Callable[[], None]) -> None:
        """Call `go_on` when it is the job's turn."""
        # It was refused in the queue, or it is an abandoned try, and the next one has its place.
        if job.number not in self._under_way or not job.wanted:
            go_on()
            return
        self._settled[job.number] = go_on
        self.advance()

    def advance(self) -> None:
        """Settle those whose turn has come."""
        while self._under_way:
            number, job = next(iter(self._under_way.items()))
            go_on = self._settled.pop(number, None)
            if go_on is None and job.wanted:
                return
            del self._under_way[number]
            if go_on is not None:
                run_isolated(go_on)


_ANSWER, _VALUE, _JUMP = Outcome.ANSWER, Outcome.VALUE, Outcome.JUMP
_data_ids = itertools.count(1)

Answer = list[Part] | ServingError
"""A complete response body, in one part or in those that the request's form says, or why there is none."""

Inputs = list[tuple[str, list[Part]]]
"""What an Op is started on: by the names of those that it comes from."""


class OpQueue(Protocol):
    """The queue before an Op, as a DAG run sees it."""

    def put(self, dag_run: DagRun, node: str, inputs: Inputs) -> None:
        """Have the Op run this node for the request."""
        ...

    def note_error(self, error: ServingError) -> None:
        """The Op has refused or failed a request."""
        ...


class Entry(msgspec.Struct, eq=False):
    """A model as requests for it enter: what their DAG runs share.

    model: its key. dag: the way through its steps. queues: by node, that of its Op. on_end: called once for
    each DAG run, with its answer; with None when the client left. tries: of a whole request, see dag.retry.
    version: what its answers are of, unless it is that of an Op. versioned: the Op whose version the answer
    is of, the only one that has versions; empty where there is no such one. requests: totals of its requests;
    None where its Op's own figures tell. failures: what they failed of. pending: admitted requests without an
    answer.
    """

    model: str
    dag: Dag
    queues: Mapping[str, OpQueue]
    on_end: Callable[[DagRun, Answer | None], None]
    max_hops: int
    tries: int
    version: str
    versioned: str
    requests: RequestFigures | None
    failures: Failures
    pending: int = 0

    def needs(self, parts: Collection[str]) -> bool:
        """Whether the model has one of these Ops, or is one of these ensembles."""
        return self.model in parts or any(op in parts for op in self.dag.ops)


class DagRun(msgspec.Struct, eq=False):
    """One request on its way: starts a node when all its inputs are there, and ends once, with the last one's
    answer, with the first error, or without either when the client has left.

    With `dag.channel_recv_frist_arrive` a node starts on the first input alone: what comes later is dropped,
    and an input that fails is one that does not come, until there is none left that could.

    entry: of the model that is asked. answered: for the scheduler to call with the answer. began:
    time.monotonic. data_id: what the hooks of every Op know the request by. due_key: its place among the
    deadlines. awaited: by node, what it was last started on; nothing once the DAG run has ended.
    """

    request: Request
    answered: Callable[[Answer], None]
    began: float
    entry: Entry
    _hops_left: int
    _tries_left: int
    _ended: bool = False
    data_id: int = msgspec.field(default_factory=_data_ids.__next__)
    due_key: int | None = None
    awaited: dict[str, Inputs] = {}
    # By node: under which name its consumers see the output, and the output. They differ after a jump.
    _outputs: dict[str, tuple[str, list[Part]]] = {}
    _failed: set[str] = set()

    def begin(self) -> None:
        """Raises NotEncodable for an input of a type that a codec must not let through."""
        source = self.entry.dag.source
        self.deliver(source, source, encode(self.request.inputs, allow_pickle=False))

    def deliver(self, node: str, label: str, parts: list[Part]) -> None:
        """The output of a node is there: start those that have waited for it alone.

        label: the name under which they see it.
        """
        entry, outputs = self.entry, self._outputs
        dag = entry.dag
        outputs[node] = (label, parts)
        for consumer in dag.consumers[node]:
            inputs = self._ready_inputs(consumer, node)
            if inputs is not None:
                given = self.awaited[consumer] = [outputs[name] for name in inputs]
                entry.queues[consumer].put(self, consumer, given)
        if dag.first_arrival:
            for name in superfluous(dag, self.awaited):
                self.awaited[name] = []  # nobody's inputs: whatever it is still doing is not awaited

    def _ready_inputs(self, node: str, came: str) -> tuple[str, ...] | None:
        """What a node starts on now that the output `came` is there; None when it waits or has started."""
        dag = self.entry.dag
        if dag.first_arrival:
            return None if node in self.awaited else (came,)
        inputs = dag.inputs[node]
        for given in inputs:
            if given not in self._outputs:
                return None
        return inputs

    def jump(self, node: str, parts: list[Part]) -> None:
        """The output goes to the consumers of the jump's targets, as if it were the targets' own."""
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
        """The app has made the inputs of the message: its log_id in 8 bytes stands before them."""
        self.request.log_id = int.from_bytes(parts[0], "little", signed=True)
        self.deliver(REQUEST_OP, REQUEST_OP, parts[1:])

    def start_anew(self, node: str, inputs: Inputs) -> Inputs:
        """Forget the try of a node that is under way; returns what the next one is started on."""
        renewed = self.awaited[node] = list(inputs)
        return renewed

    def time_out(self, node: str, error: ServingError) -> None:
        """An Op has used up its tries: begin the whole request anew as often as dag.retry allows."""
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
        """An Op's refusal ends the request, by way of the app's own ResponseOp where it has one."""
        queues = self.entry.queues
        queues[node].note_error(error)
        if self.entry.dag.answer is not None:
            self.entry.failures.steps[node, self.entry.dag.nodes[node].op] += 1
            if type(error) is ServingError:
                error.args = (f"{self._step(node)}: {error.message}",)
        if self._goes_on_without(node):
            return
        if not self.entry.dag.packs or node == RESPONSE_OP:
            self.end(error)
            return
        self.awaited.clear()
        given = [(REFUSAL, encode(astuple(Refusal.from_error(error)), allow_pickle=False))]
        self.awaited[RESPONSE_OP] = given
        queues[RESPONSE_OP].put(self, RESPONSE_OP, given)

    def _step(self, node: str) -> str:
        """What a client of an ensemble is told of where its request has failed."""
        ensemble, _, version = self.entry.model.rpartition(":")
        model, _, of_model = self.entry.dag.nodes[node].op.rpartition(":")
        return (
            f"in ensemble '{ensemble or version}', step {node} ('{model or of_model}'"
            f"{f' version {of_model}' if model else ''})"
        )

    def _goes_on_without(self, node: str) -> bool:
        """Whether the answer may still come from other inputs than this one, which has failed."""
        dag = self.entry.dag
        if not dag.first_arrival:
            return False
        self._failed.add(node)
        return dag.response not in lost_with(dag, self._failed, self.awaited)

    def expire(self) -> None:
        """The request's deadline has passed."""
        self.end(DeadlineExceeded("the request's deadline passed before its answer was there"))

    def leave(self) -> None:
        """The client left: nobody waits for an answer any more."""
        self.end(None)

    def end(self, answer: Answer | None) -> None:
        """Answer the request, or with None drop it; what comes after the first time is of no account."""
        if not self._ended:
            self._ended = True
            self.awaited.clear()
            self.entry.on_end(self, answer)


class Job(msgspec.Struct, eq=False):
    """One Op's share of one request: a batcher queues it, and a worker's reply settles it."""

    dag_run: DagRun
    node: str  # step of the DAG that the Op runs for
    inputs: Inputs
    number: int  # place among the jobs of one turn
    queued_at: float
    tries_left: int = 1  # within the Op's timeout, this one included
    unseen_deaths: int = 0  # workers that died before they began with the job
    lone_deaths: int = 0  # workers that died while they ran the job, and nothing else
    suspect: bool = False  # a worker that died had begun with the job
    hung: bool = False  # an instance seemed to hang in the job, and another one runs it
    moved: bool = False  # another instance has a copy: this one's hangs, and the first answer counts
    left_queue: bool = False  # an instance was given the job at least once
    late: bool = False  # waits behind all others of its priority, as its queue policy says
    in_order: InOrder | None = None  # order of the model's answers; None for any order
    wait_limit: asyncio.TimerHandle | None = None  # timer of the queue policy, while the job waits

    def __lt__(self, other: Job) -> bool:
        """Asked only of two tries with one place in the queue, of which one is not wanted any more."""
        return False

    def next_try(self, now: float) -> Job:
        """What takes this one's place, whose reply is not wanted any more."""
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, queued_at=now, tries_left=self.tries_left - 1)

    def delayed(self) -> Job:
        """What takes this one's place behind the others."""
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, late=True, wait_limit=None)

    def leave_line(self) -> None:
        """Cancel the limit of its wait, whose timer would keep the inputs until it fires."""
        if self.wait_limit is not None:
            self.wait_limit.cancel()
            self.wait_limit = None

    def second_try(self, *, blamed: bool) -> Job:
        """Return the job for another instance, while the one that has it stands still.

        blamed: the job may be the cause.
        """
        other = msgspec.structs.replace(self, hung=self.hung or blamed)
        self.moved = True
        return other

    @property
    def alone(self) -> bool:
        """Whether the job may only run by itself: it may have killed a worker, or made one hang."""
        return self.suspect or self.hung

    @property
    def rows(self) -> int:
        """Rows of its request: what it costs, as far as that is known."""
        return self.dag_run.request.rows

    @property
    def wanted(self) -> bool:
        """Whether anyone still waits for it; a jump may have started its Op anew."""
        return self.dag_run.awaited.get(self.node) is self.inputs

    def share(self, index: int, tail: list[Part]) -> Share:
        """What the worker is told of it; its large parts are added to `tail`. index: in the hand-over."""
        dag_run = self.dag_run
        request, entry, dag = dag_run.request, dag_run.entry, dag_run.entry.dag
        inputs = [(name, stow(parts, tail)) for name, parts in self.inputs]
        told = request.form, request.wish, request.model_version, request.options, request.deadline
        answers = entry.model if self.node == dag.response else ""
        tensors = dag.tensors.get(self.node)
        axes = dag.batch_axes.get(self.node)
        return Share(index, dag_run.data_id, request.log_id, *told, inputs, answers, tensors, axes)

    def settle(self, outcome: Outcome, parts: list[Part]) -> None:
        """Take what the worker made of it, where that is still wanted, and go on."""
        if self.in_order is not None:
            # The parts may be views of memory that the next reply is written to.
            kept: list[Part] = [bytes(part) for part in parts]
            self.in_order.settle(self, partial(self._go_on, outcome, kept))
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
            dag_run.awaited[node] = []  # whatever another try of this job answers is not wanted any more
            if outcome is _VALUE:
                dag_run.deliver(node, node, parts)
            elif outcome is _JUMP:
                dag_run.jump(node, parts)
            else:
                dag_run.unpack(parts)
        except Exception as exc:
            self._end_in_fault(exc)

    def fail(self, error: ServingError) -> None:
        """The Op, its model or its worker refuses it: the request ends, or goes on without."""
        if self.in_order is not None:
            self.in_order.settle(self, partial(self._end, error))
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
        """Answer the request with an error of ours, for a step of its DAG run has raised."""
        log_fault(self._go_on)
        self.dag_run.end(
            ServingError(f"the request can't go on after node {self.node}: {get_error_text(exc)}")
        )


def given_back(jobs: Iterable[worker_instance.Job]) -> Iterable[Job]:
    """Jobs that come back from the pool, which was given those of this module and knows less of them."""
    return cast(Iterable[Job], jobs)


def superfluous(dag: Dag, started: Container[str]) -> set[str]:
    """With `first_arrival`: the nodes whose output nobody takes, for all its takers have started."""
    found: set[str] = set()
    for name in reversed(dag.order):
        takers = dag.consumers[name]
        if name != dag.response and all(taker in started or taker in found for taker in takers):
            found.add(name)
    return found


def lost_with(dag: Dag, failed: Container[str], started: Container[str]) -> set[str]:
    """With `first_arrival`: the nodes that will have no output when these have none."""
    lost: set[str] = set()
    for name in dag.order:
        inputs = dag.inputs[name]
        if name in failed or (name not in started and all(given in lost for given in inputs)):
            lost.add(name)
    return lost
