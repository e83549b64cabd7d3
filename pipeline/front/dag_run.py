"""Execution of one request through a model's DAG of steps: `DagRun`, its tasks, and their queues."""

from __future__ import annotations

import asyncio
import itertools
import math
import sys
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec.structs import astuple

from pipeline.api.dag import Dag
from pipeline.api.op import REQUEST_OP, RESPONSE_OP
from pipeline.api.request_options import LogId, RequestOptions
from pipeline.errors import (
    AnswerCount,
    DeadlineExceeded,
    HookFailed,
    ServingError,
    UnprintableAnswer,
    get_error_text,
)
from pipeline.front.metrics.metrics import Distribution, Failures, RequestFigures, RequestTimings
from pipeline.front.tracing.request_trace import RequestTrace
from pipeline.messages.frames import Part, encode, stow
from pipeline.messages.messages import REFUSAL, CallMessage, Outcome, Refusal, TraceContext
from pipeline.process.isolation import log_fault, run_isolated


class Finish(Protocol):
    """Hook that an API such as KServe v2 attaches to a request: prepares it, and converts its result.

    Triton's shared memory extension uses the hook to write outputs into the client's memory region.
    """

    is_cacheable: bool  # whether the worker's response may be shared with identical requests

    def begin(self) -> None:
        """Prepare for the request. Called once, when the request is admitted. Must not raise."""
        ...

    def end(self, answer: Any) -> Any:
        """Return the response to send in place of `answer`, the worker's response or an error.

        answer: None when the client has left. Called once, however the request ends. Must not raise.
        """
        ...


class SequenceTurn(Protocol):
    """The place of one request among the requests of its sequence (Triton's stateful batching) in an Op.

    The tasks of a sequence run in order. Each task gets the state that the previous task has left.
    """

    state: Sequence[Part] | None  # for the next task, as a worker has encoded it; None: the initial state
    options: RequestOptions  # of the next task: the request's, with its place in the sequence

    def admit(self, task: Task) -> bool:
        """Return whether a new task of the request may be queued now; otherwise it is queued later."""
        ...

    def record_state(self, state: Sequence[Part]) -> None:
        """Record that a task of the request has ended.

        state: the new state of the sequence, encoded; empty if the state is unchanged.
        """
        ...

    def reschedule(self, task: Task) -> None:
        """Queue a task again, because its model has asked to run the request again in a later batch."""
        ...

    def bind(self, instance: object, *, is_retry: bool) -> ServingError | None:
        """Bind the sequence to the worker instance that gets the request, if the instance keeps its state.

        Returns an error if another instance keeps the sequence's state, or if the request has run before.
        """
        ...

    def restart(self) -> None:
        """Forget the request's tasks and the states that they produced, because the request runs again."""
        ...

    def find_refusal(self) -> ServingError | None:
        """Return an error if the request's new state can't be kept; otherwise None."""
        ...

    def end(self, *, succeeded: bool) -> None:
        """Let the next request of the sequence run, because this one has ended.

        Keeps the new state if it succeeded.
        """
        ...


class OutputWatcher(Protocol):
    """Receives the output of a request or of a DAG node, for identical requests that wait for the output."""

    def succeed(self, outcome: Outcome, parts: Sequence[Part]) -> None:
        """Receive the encoded output."""
        ...

    def fail(self) -> None:
        """Handle an error of the watched request or node: there will be no output."""
        ...

    def end(self, answer: Answer | None) -> None:
        """Receive the response of the whole request, or its error; None if its client has left."""
        ...


class JoinedSequences(Protocol):
    """The sequences (Triton's stateful batching) of one Op. Each request takes a turn in its sequence."""

    @property
    def op(self) -> str: ...
    def check(self, request: Request) -> None:
        """Raise ServingError for a request that can't join a sequence."""
        ...

    def join(self, request: Request) -> SequenceTurn:
        """Add a request that `check` has accepted to the end of its sequence, and return its turn."""
        ...


class Client:
    """A sender of requests, for fair queueing: a connection, an address, or all users of an API key."""

    __slots__ = ("name", "pending", "turn")

    limited = False  # whether `check` may raise

    def __init__(self, name: str = "") -> None:
        self.name = name  # of its API key; empty without one
        self.pending = 0  # its requests that are admitted and not yet answered
        self.turn = 0  # turn of its last request, see `FairQueue`

    def check(self) -> None:
        """Raise Overloaded (429) if the client exceeds the rate or the pending requests of its API key."""


class Request(msgspec.Struct, eq=False):
    """An inference request, as a dialect (request format such as KServe v2) passes it to the scheduler."""

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
    batch_key: tuple[Any, ...] | None = None  # equal for requests of a delayed batch; None: unknown
    version: str = ""  # requested version of the model; empty for the served one
    model_version: str = ""  # version of the worker that gets the request
    wish: Any = None  # options of the form; only the dialect knows their type, which msgpack can encode
    finish: Finish | None = None  # converts the worker's answer to the response
    options: RequestOptions | None = None  # request options for the hooks; None without any
    client: Client | None = None  # set by the listener
    endpoint: str = ""  # name of the protocol and dialect, set by the listener
    turn: int = 0  # place in the queue, see `FairQueue`
    decoupled: bool = False  # whether the model sends any number of answers
    # Sends an answer that is not the last, and the last may be empty; None for a client of one answer.
    stream: Callable[[Answer, Callable[[], None]], None] | None = None
    trace: RequestTrace | None = None  # set by the listener; None for a request that is not traced


class InOrder:
    """Releases the results of a model's tasks in the order in which the tasks were dispatched.

    A result is held back until each earlier task has a result or is cancelled.
    """

    def __init__(self) -> None:
        self._under_way: dict[int, Task] = {}  # by number, in the order of their dispatch
        self._settled: dict[int, Callable[[], None]] = {}

    def sent(self, task: Task) -> None:
        """Record that a task was dispatched to a worker. A retried task keeps its place in the order."""
        self._under_way[task.number] = task

    def complete(self, task: Task, go_on: Callable[[], None]) -> None:
        """Call `go_on`, which passes on the task's result, once all tasks dispatched earlier have ended.

        Calls `go_on` immediately for a task that was never dispatched, and for a result that is no longer
        wanted.
        """
        # The task was refused in the queue, or the try was abandoned and the next try has its place.
        if task.number not in self._under_way or not task.wanted:
            go_on()
            return
        self._settled[task.number] = go_on
        self.release_results()

    def release_results(self) -> None:
        """Release the held results whose earlier tasks have all ended."""
        while self._under_way:
            number, task = next(iter(self._under_way.items()))
            go_on = self._settled.pop(number, None)
            if go_on is None and task.wanted:
                return
            del self._under_way[number]
            if go_on is not None:
                run_isolated(go_on)


_ANSWER, _VALUE, _JUMP, _RESCHEDULE = Outcome.ANSWER, Outcome.VALUE, Outcome.JUMP, Outcome.RESCHEDULE
# From this on, a rescheduled request waits for its client, as `send` of a worker does.
MAX_UNREAD_ANSWERS = 1024
_MS_PER_S = 1000
_data_ids = itertools.count(1)

Answer = list[Part] | ServingError
"""A complete response body, in the parts that the request's form defines, or an error.

Of a stream the last answer may be an empty list: no further answer follows those before."""

Inputs = list[tuple[str, list[Part]]]
"""Inputs of an Op, with the names of their sources."""


class OpQueue(NamedTuple):
    """Callbacks through which a DAG run uses the queue in front of an Op (a step of the service)."""

    enqueue: Callable[[DagRun, str, Inputs], None]  # run this node of the DAG for the request
    record_error: Callable[[ServingError], None]  # count a request that the Op has refused or failed


class Branching(Protocol):
    """All runs of an ensemble's later steps behind a decoupled step: one run for each answer of that step."""

    def start(self) -> None:
        """Start the runs that have waited for the output of another step, if that output is now available."""
        ...


class Entry(msgspec.Struct, eq=False):
    """State of a served model that its requests share: DAG, queues, limits, version and counters."""

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
    max_answer_bytes: int = sys.maxsize  # of one of several answers to a request
    max_branches: int = 0  # of a request at a time, see `pipeline.front.branches`; 0: the default
    load_hint: str = ""  # tells clients how to load the model again, in the error of an unloaded model
    sequences: tuple[JoinedSequences, ...] = ()  # of the Ops whose requests form sequences
    # Looks a request up in the response cache, and starts it if it is not there; None without the cache.
    begin_cached: Callable[[DagRun], None] | None = None
    joint: Entry | None = (
        None  # used while a worker runs all steps of the ensemble; None without an Op for it
    )
    step_ops: Mapping[str, str] = {}  # by node of an ensemble, its Op
    # Milliseconds to the first response; None unless the model is decoupled and the server has histograms.
    first_response_ms: Distribution | None = None
    pending: int = 0  # admitted requests without an answer

    def needs(self, parts: Collection[str]) -> bool:
        """Return whether the model is in `parts`, or uses an Op in `parts` as a step of its DAG.

        parts: names of Ops, or keys of models.
        """
        return self.model in parts or any(op in parts for op in self.dag.ops)


class DagRun(msgspec.Struct, eq=False):
    """The execution of one request through its model's DAG: starts each node once its inputs are available.

    A DAG run ends once: with the output of the last node, with the first error, or without a response because
    the client has left. With `dag.channel_recv_frist_arrive`, a node starts on its first available input and
    ignores later inputs. A failed input then ends the request only if the node can get no other input.
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
    outputs: dict[str, tuple[str, list[Part]]] = {}
    _failed: set[str] = set()
    # Called when the request ends while workers may still run it.
    cancels: list[Callable[[], None]] = []
    answered_at: float = 0.0  # instant of the latest of several answers; 0 before the first
    _answers: list[Answer] = []  # answers of a model that should send one
    branches: dict[str, Branching] = {}  # by decoupled step of an ensemble with steps behind it
    turns: dict[str, SequenceTurn] = {}  # by Op, its places in sequences
    flights: dict[str, OutputWatcher] = {}  # by node; with an empty name, of the whole request
    is_cached: bool = False  # whether the response comes from the response cache
    is_passed_on: bool = False  # whether another process runs the request, and counts it
    # Called with a failed node and its error. Returns whether the request goes on with another try.
    repeat: Callable[[str, ServingError], bool] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether the request has its response or its error, or its client has left."""
        return self._ended

    def begin(self) -> None:
        """Start the first nodes of the DAG with the request's inputs.

        Raises NotEncodable for an input of a type that no codec supports.
        """
        source = self.entry.dag.source
        self.deliver(source, source, encode(self.request.inputs, allow_pickle=False))

    def deliver(self, node: str, label: str, parts: list[Part]) -> None:
        """Pass the output of a node to the next nodes of the DAG, and enqueue those that have all inputs now.

        label: the name under which the next nodes see the output. parts: the encoded output.
        """
        entry, outputs = self.entry, self.outputs
        dag = entry.dag
        outputs[node] = (label, parts)
        for consumer in dag.consumers[node]:
            inputs = self._ready_inputs(consumer, node)
            if inputs is not None:
                inputs_now = self.awaited[consumer] = [outputs[name] for name in inputs]
                entry.queues[consumer].enqueue(self, consumer, inputs_now)
        for branches in self.branches.values():
            branches.start()
        if dag.first_arrival:
            for name in superfluous(dag, self.awaited):
                self.awaited[name] = []  # no task has these inputs, so a result of the node is dropped

    def _ready_inputs(self, node: str, came: str) -> tuple[str, ...] | None:
        """Return the names of the inputs with which a node can start, now that node `came` has an output.

        Returns None while other inputs are missing. With `dag.channel_recv_frist_arrive`, returns None for a
        node that has already started on its first input.
        """
        dag = self.entry.dag
        if dag.first_arrival:
            return None if node in self.awaited else (came,)
        inputs = dag.inputs[node]
        for name in inputs:
            if name not in self.outputs:
                return None
        return inputs

    def jump(self, node: str, parts: list[Part]) -> None:
        """Handle a jump of a node to other nodes (`jump_to_ops`): the nodes after the jump targets run again.

        The targets' successors get the jumping node's output in place of the targets' outputs. The request
        fails with HookFailed (500) after `dag.max_hops` jumps. parts: the encoded output.
        """
        self._hops_left -= 1
        if self._hops_left < 0:
            self.refuse(
                node, HookFailed(f"[{node}] jumped too often: more than dag.max_hops times in one request")
            )
            return
        dag = self.entry.dag
        for target in dag.nodes[node].jumps:
            self._discard_outputs(dag.descendants(target))
        for target in dag.nodes[node].jumps:
            self.deliver(target, node, parts)

    def _discard_outputs(self, nodes: Iterable[str]) -> None:
        """Forget outputs and errors of these nodes, which will run again."""
        for name in nodes:
            self.outputs.pop(name, None)
            self.awaited.pop(name, None)
            self._failed.discard(name)

    def run_anew(self, node: str, inputs: Inputs) -> Inputs:
        """Prepare another try of a node: forget the outputs of the node and of all nodes after it.

        Returns the inputs of the next try.
        """
        self._discard_outputs((node, *self.entry.dag.descendants(node)))
        return self.start_anew(node, inputs)

    def unpack(self, parts: list[Part]) -> None:
        """Start the DAG with the inputs that the app's own RequestOp has unpacked from the request message.

        parts: the log_id in msgpack, then the encoded inputs.
        """
        self.request.log_id = msgspec.msgpack.decode(parts[0], type=LogId)
        self.deliver(REQUEST_OP, REQUEST_OP, parts[1:])

    def start_anew(self, node: str, inputs: Inputs) -> Inputs:
        """Begin another try of a node. Return a copy of its inputs, whose identity marks the new try.

        The result of the current try is ignored from now on.
        """
        renewed = self.awaited[node] = list(inputs)
        return renewed

    def time_out(self, node: str, error: ServingError) -> None:
        """Handle an Op that timed out in all its tries: run the request again, or end it with the error.

        `dag.retry` limits how often the whole request is run.
        """
        if self._goes_on_without(node):
            return
        self._tries_left -= 1
        if self._tries_left <= 0:
            self.refuse(node, error)
            return
        self.awaited.clear()
        self.outputs.clear()
        self._failed.clear()
        self._hops_left = self.entry.max_hops
        for turn in self.turns.values():
            turn.restart()
        self.begin()

    def refuse(self, node: str, error: ServingError) -> None:
        """Record the error of a node, and end the request with it unless other nodes can still respond.

        In an app with its own ResponseOp, that Op gets the error as its input and builds the error response.
        If the callback `repeat` starts another try of the node, the error is neither counted nor sent.
        """
        if self.repeat is not None and self.repeat(node, error):
            return
        queues, step = self.entry.queues, error.step or node
        queues[step].record_error(error)
        describe_step, op = self.entry.describe_step, self.entry.step_ops.get(step)
        error.op = op or ""
        if describe_step is not None and op is not None:
            self.entry.failures.steps[step, op] += 1
            if type(error) is ServingError:
                error.args = (f"{describe_step(step)}: {error.message}",)
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
        """Record that a node failed. Return whether the request can still get a response without its output.

        Always False unless nodes start on their first input (`dag.channel_recv_frist_arrive`).
        """
        dag = self.entry.dag
        if not dag.first_arrival:
            return False
        self._failed.add(node)
        return dag.response not in lost_with(dag, self._failed, self.awaited)

    def add_answer(self, answer: Answer, acknowledge: Callable[[], None]) -> None:
        """Send one of several answers of a request to the client.

        acknowledge: called once the client's connection accepts more answers. If the protocol of the request
        allows only one answer, the answer is held until the model has sent all; a second answer fails the
        request with AnswerCount.
        """
        now = time.monotonic()
        if not self.answered_at:
            self._record_first_response(answer, now)
        self.answered_at = now
        if isinstance(answer, list) and (size := sum(map(len, answer))) > self.entry.max_answer_bytes:
            self.end(
                UnprintableAnswer(
                    f"an answer has {size} bytes, limits.response_bytes allows {self.entry.max_answer_bytes}"
                )
            )
        elif self.request.stream is not None:
            self.request.stream(answer, acknowledge)
        else:
            self._answers.append(answer)
            acknowledge()
            if len(self._answers) > 1:
                self.end(AnswerCount())

    def _record_first_response(self, answer: Answer, now: float) -> None:
        if isinstance(answer, list) and self.entry.first_response_ms is not None:
            self.entry.first_response_ms.observe((now - self.began) * _MS_PER_S)

    def end_answers(self, answer: Answer | None) -> None:
        """End a request with several answers. answer: the last; None if it was sent before."""
        if answer and not self.answered_at:
            self._record_first_response(answer, time.monotonic())
        last = [] if answer is None else [answer]
        if self.request.stream is not None:
            self.end(answer or [])
        elif len(only := [*self._answers, *last]) == 1:
            self.end(only[0])
        else:
            self.end(AnswerCount())

    def get_deadline(self) -> float:
        """Return the request's deadline. With several answers, the time limit starts again at each answer."""
        if not self.answered_at:
            return self.request.deadline
        return self.answered_at + (self.request.deadline - self.began)

    def expire(self) -> None:
        """End the request with DeadlineExceeded (504), because its deadline has passed."""
        error = DeadlineExceeded("the request's deadline passed before its answer was there")
        running = (node for node, inputs in self.awaited.items() if inputs)
        error.op = self.entry.step_ops.get(next(running, ""), "")
        self.end(error)

    def leave(self) -> None:
        """End the request without a response, because its client has disconnected."""
        self.end(None)

    def end(self, answer: Answer | None) -> None:
        """End the request with its response (the encoded body) or an error; None if the client has left.

        Only the first call has an effect.
        """
        if not self._ended:
            self._ended = True
            self.awaited.clear()
            for cancel in self.cancels:
                run_isolated(cancel)
            self.entry.on_end(self, answer)


class Task(msgspec.Struct, eq=False):
    """The work of one DAG node for one request, such as an inference of one Op.

    A batcher queues the task, and a worker's reply completes it.
    """

    dag_run: DagRun
    node: str  # step of the DAG that the Op runs for
    inputs: Inputs
    number: int  # order among the tasks of one turn
    queued_at: float
    tries_left: int = 1  # within the Op's timeout, this one included
    rows: int = 1  # of the request, as an estimate of its cost
    unseen_deaths: int = 0  # workers that died before they began the task
    lone_deaths: int = 0  # workers that died while they ran only this task
    suspect: bool = False  # a worker died after it had begun the task
    hung: bool = False  # an instance seemed to hang in the task, and another instance runs it
    moved: bool = False  # another instance has a copy, because this one hangs; the first result counts
    left_queue: bool = False  # the task was dispatched at least once
    streaming: bool = False  # an answer of several was sent: a worker's death ends the request
    unread_answers: int = 0  # of several: those that the client's connection has not accepted
    is_held: bool = False  # the task is rescheduled once the client has read answers
    late: bool = False  # its queue policy has moved it behind all others of its priority
    in_order: InOrder | None = None  # set where the model's responses keep the order of requests
    turn: SequenceTurn | None = None  # the request's place in a sequence; None outside of sequences
    wait_limit: asyncio.TimerHandle | None = None  # timer of the queue policy, while the task waits
    place: tuple[int, int, int] = (0, 0, 0)  # priority, turn and number, set by the queue

    def next_try(self, now: float) -> Task:
        """Return a copy of the task for another try, after this try exceeded the Op's timeout.

        now: time.monotonic().
        """
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, queued_at=now, tries_left=self.tries_left - 1)

    def delayed(self) -> Task:
        """Return a copy of the task that waits behind all other tasks of its priority.

        Used when a request has waited longer than its model's queue policy allows (Triton's timeout action
        DELAY).
        """
        inputs = self.dag_run.start_anew(self.node, self.inputs)
        return msgspec.structs.replace(self, inputs=inputs, late=True, wait_limit=None)

    def cancel_wait_limit(self) -> None:
        """Cancel the timer that limits the time in the queue.

        A timer that is not cancelled keeps the task's inputs in memory until it fires.
        """
        if self.wait_limit is not None:
            self.wait_limit.cancel()
            self.wait_limit = None

    def second_try(self, *, blamed: bool) -> Task:
        """Return a copy of the task for another worker instance, because the task's current instance hangs.

        The first result of the two counts. blamed: whether the task may have caused the hang; the copy then
        runs alone.
        """
        other = msgspec.structs.replace(self, hung=self.hung or blamed)
        self.moved = True
        return other

    @property
    def alone(self) -> bool:
        """Whether the task must run alone in its batch: it may have killed a worker, or made one hang."""
        return self.suspect or self.hung

    @property
    def input_bytes(self) -> int:
        """Size of the encoded inputs in bytes."""
        return sum(len(part) for _, parts in self.inputs for part in parts)

    @property
    def is_response(self) -> bool:
        """Whether the output of the node is the response to the client."""
        return self.node == self.dag_run.entry.dag.response

    @property
    def wanted(self) -> bool:
        """Whether the request still needs this result: False after its end, a newer try, or a jump."""
        return self.dag_run.awaited.get(self.node) is self.inputs

    def message(self, index: int, tail: list[Part]) -> CallMessage:
        """Return the message that sends the task to a worker. Large parts of the inputs are added to `tail`.

        index: position of the task in its dispatch (the batch of tasks sent to a worker).
        """
        dag_run = self.dag_run
        request, entry, dag = dag_run.request, dag_run.entry, dag_run.entry.dag
        inputs = [(name, stow(parts, tail)) for name, parts in self.inputs]
        turn = self.turn
        hook_options = request.options if turn is None else turn.options
        options = request.form, request.wish, request.model_version, hook_options, request.deadline
        answers = entry.model if self.node == dag.response else ""
        tensors = dag.tensors.get(self.node)
        axes = dag.batch_axes.get(self.node)
        state = None if turn is None or turn.state is None else stow(turn.state, tail)
        trace = None if request.trace is None else self._get_trace_context(request.trace)
        return CallMessage(
            index, dag_run.data_id, request.log_id, *options, inputs, answers, tensors, axes, state, trace
        )

    def _get_trace_context(self, trace: RequestTrace) -> TraceContext:
        """Return the trace context (W3C traceparent) of the task for the worker. Its span begins now."""
        op = self.dag_run.entry.step_ops.get(self.node)
        span = trace.spans[0] if op is None else trace.find_step(self.node, op, self.queued_at)
        return TraceContext(trace.issue_traceparent(span), trace.with_tensors)

    def add_answer(self, answer: Answer, acknowledge: Callable[[], None]) -> None:
        """Accept one of several answers from a worker. After the first, results of other tries are ignored.

        acknowledge: called once the client's connection accepts more answers.
        """
        if self.claim():
            self.dag_run.add_answer(answer, acknowledge)

    def claim(self) -> bool:
        """Ignore all other tries of the task, because this try has sent an answer.

        Return whether the answer is wanted.
        """
        if not self.wanted:
            return False
        if not self.streaming:
            self.streaming = True
            self.inputs = self.dag_run.start_anew(self.node, self.inputs)
        return True

    def end_answers(self, answer: Answer | None) -> None:
        """Record that the worker has sent all answers.

        answer: the last one, or None if it has been sent already.
        """
        if isinstance(answer, ServingError):
            self.fail(answer)
        elif self.wanted:
            self.dag_run.end_answers(answer)

    def complete(self, outcome: Outcome, parts: list[Part], state: Sequence[Part] = ()) -> None:
        """Accept a worker's result for the task, and continue its request: respond, or start further nodes.

        parts: the encoded result, possibly in memory that the next reply overwrites. state: the next state of
        the request's sequence; empty if it is unchanged.
        """
        if outcome is _RESCHEDULE:
            self._reschedule()
        elif self.in_order is not None:
            # The parts may be views of memory that the next reply is written to.
            copies: list[Part] = [bytes(part) for part in parts]
            self.in_order.complete(self, partial(self._go_on, outcome, copies, state))
        else:
            self._go_on(outcome, parts, state)

    def _reschedule(self) -> None:
        """Queue the task again, so that its model runs its next step.

        Waits first if the client reads too slowly.
        """
        self.is_held = self.unread_answers >= MAX_UNREAD_ANSWERS
        if self.wanted and not self.is_held and self.turn is not None:
            self.queued_at, self.left_queue = time.monotonic(), False
            self.turn.reschedule(self)

    def count_unread(self, answers: int) -> None:
        """Change the number of answers that the client's connection has not accepted yet.

        answers: the change; negative when the connection accepts answers.
        """
        self.unread_answers += answers
        if self.is_held:
            self._reschedule()

    def _go_on(self, outcome: Outcome, parts: list[Part], state: Sequence[Part]) -> None:
        dag_run, node = self.dag_run, self.node
        if dag_run.awaited.get(node) is not self.inputs:  # `wanted`
            return
        try:
            if self.turn is not None:
                self.turn.record_state(state)
            if dag_run.flights and (flight := dag_run.flights.pop(node, None)) is not None:
                flight.succeed(outcome, parts)
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
        """Complete the task with an error: its request ends, or continues without this node's output.

        After DeadlineExceeded, the whole request may run again, as `dag.retry` allows.
        """
        if self.in_order is not None:
            self.in_order.complete(self, partial(self._end, error))
            return
        self._end(error)

    def _end(self, error: ServingError) -> None:
        if not self.wanted:
            return
        if self.turn is not None:
            self.turn.record_state(())
        self.dag_run.awaited[self.node] = []
        try:
            if (flight := self.dag_run.flights.pop(self.node, None)) is not None:
                flight.fail()
            if error.err_no == DeadlineExceeded.err_no and not self.streaming:
                self.dag_run.time_out(self.node, error)
            else:
                self.dag_run.refuse(self.node, error)
        except Exception as exc:
            self._end_in_fault(exc)

    def _end_in_fault(self, exc: Exception) -> None:
        """End the request with an internal error (500) after an exception in the front end's own code."""
        log_fault(self._go_on)
        self.dag_run.end(
            ServingError(f"the request can't go on after node {self.node}: {get_error_text(exc)}")
        )


def superfluous(dag: Dag, started: Container[str]) -> set[str]:
    """Return the nodes whose output nobody needs any more, because all their consumers have started.

    Used for a DAG whose nodes start on their first input. started: names of the nodes that have started.
    """
    unused: set[str] = set()
    for name in reversed(dag.order):
        takers = dag.consumers[name]
        if name != dag.response and all(taker in started or taker in unused for taker in takers):
            unused.add(name)
    return unused


def lost_with(dag: Dag, failed: Container[str], started: Container[str]) -> set[str]:
    """Return the nodes that will have no output: failed nodes, and nodes that depend only on failed nodes.

    Used for a DAG whose nodes start on their first input. started: names of the nodes that have started.
    """
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
    """Queue of tasks in front of an Op (a step of the service), by priority, fairness turn and arrival.

    A cancelled task stays until it reaches the head or tail, or until the queue has doubled. The place of a
    new task is found by bisection. An insertion moves the 8-byte references behind the place, but most tasks
    come last. Serving a task leaves an empty slot. The list is compacted when half of its slots are empty.
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

    def insert(self, task: Task) -> None:
        """Insert a task by priority, fairness turn and arrival.

        A `late` task goes behind all others of its priority.
        """
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
        """Return the next task to serve without removing it; None if no task waits.

        Removes the cancelled tasks in front of it.
        """
        tasks = self._tasks
        while len(tasks) > self._served:
            task = tasks[self._served]
            if task.wanted:
                return task
            self._remove_first()
        return None

    def pop_tasks(self, max_tasks: int) -> list[Task]:
        """Remove and return the next tasks to serve, at most `max_tasks`, without cancelled tasks."""
        tasks: list[Task] = []
        while len(tasks) < max_tasks and (task := self.first()) is not None:
            tasks.append(task)
            self._remove_first()
        return tasks

    def pop_only(self, chosen: Collection[Task]) -> None:
        """Remove the chosen tasks and all cancelled tasks from the queue; the others keep their order."""
        remaining: list[Task] = []
        for task in self:
            if task.wanted and task not in chosen:
                remaining.append(task)
            else:
                self._record_departure(task)
        self._tasks, self._served = remaining, 0

    def last(self) -> Task | None:
        """Return the last task to serve without removing it; None if no task waits.

        Removes the cancelled tasks behind it.
        """
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
        """Return how many queued tasks are ahead of a place, cancelled tasks included.

        place: priority and fairness turn. Tasks of the same priority and turn are not counted.
        """
        return bisect_left(self._tasks, place, lo=self._served, key=_PLACE) - self._served

    def rows_before(self, place: tuple[int, int]) -> int:
        """Return the total rows of the queued tasks ahead of a place. place: priority and fairness turn."""
        tasks = self.before(place)
        if self.rows == len(self):
            return tasks
        return sum(task.rows for task in self._tasks[self._served : self._served + tasks])

    def count_priority(self, priority: int) -> int:
        """Return how many tasks of this priority are queued, cancelled tasks included."""
        return self.before((priority + 1, -1)) - self.before((priority, -1))

    def clear(self) -> list[Task]:
        """Empty the queue. Returns all its tasks, cancelled tasks included."""
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
        if task.wait_limit is not None:
            task.cancel_wait_limit()

    def _sweep(self) -> None:
        """Remove empty slots and cancelled tasks from the queue.

        The next sweep comes when the queue has twice as many tasks.
        """
        tasks, self._tasks = self._tasks[self._served :], []
        for task in tasks:
            if task.wanted:
                self._tasks.append(task)
            else:
                self._record_departure(task)
        self._served = 0
        self._sweep_at = max(_SWEPT_FROM, 2 * len(self._tasks))


class FairQueue:
    """Fair queueing: numbers the requests with turns, so that each turn serves one request of each client.

    A client's next request gets the turn after that of its previous request, but never a turn that has
    passed. A client with few requests thus overtakes a client that floods the queue. A single client is
    served in order of arrival.
    """

    __slots__ = ("clients", "latest", "now")

    def __init__(self) -> None:
        self.now = 0  # turn of the latest dispatch
        self.latest = 0  # turn of the last request in the queue
        self.clients = 0  # with pending requests

    def next(self, client: Client) -> int:
        """Return the turn that the client's next request would get, without admitting a request.

        A client without pending requests gets the turn after the current one, even if its cancelled requests
        had later turns.
        """
        return (client.turn if client.pending and client.turn > self.now else self.now) + 1

    def admit(self, client: Client) -> int:
        """Admit a request of this client: count it as pending, and return its turn in the queue."""
        turn = client.turn = self.next(client)
        if turn > self.latest:
            self.latest = turn
        if not client.pending:
            self.clients += 1
        client.pending += 1
        return turn

    def record_dispatch(self, turn: int) -> None:
        """Record that a request of this turn was dispatched: requests admitted later get later turns."""
        if turn > self.now:
            self.now = turn

    def end(self, client: Client) -> None:
        """Record that a request of this client has ended, with or without a response."""
        client.pending -= 1
        if not client.pending:
            self.clients -= 1
