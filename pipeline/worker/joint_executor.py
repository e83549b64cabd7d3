"""Executor of an ensemble whose steps run in one worker, without a return to the front between them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from threading import Event
from typing import Any, NamedTuple

from pipeline.api.app import App, ServedModel, answered_by
from pipeline.api.dag import Dag
from pipeline.api.op import STREAMED, AnswerSender, ModelCode, Op
from pipeline.dialects.dialect import Form
from pipeline.errors import AnswerCount, DeadlineExceeded, ServingError
from pipeline.messages.frames import Tail
from pipeline.messages.messages import Ready, Timings
from pipeline.worker.call import Call
from pipeline.worker.executor import Executor, MayBegin, Outputs, Send, create_executors
from pipeline.worker.hooks import Hooks, get_hooks
from pipeline.worker.model import Joining
from pipeline.worker.plan import BatchLimits
from pipeline.worker.runner import Runner

LOOK_S = 0.1  # between two looks whether anybody waits for the answer of a response sender


class Step(NamedTuple):
    """A step of an ensemble, with the executor that runs its model."""

    node: str
    op: str
    executor: Executor
    copies: bool  # other steps or the response need the same tensors


class JointExecutor(Executor):
    """Answers requests of an ensemble: runs its steps one after another on all requests of a batch."""

    def __init__(
        self, hooks: Hooks, model: ServedModel, steps: Sequence[Step], outputs: Outputs, limit: int
    ) -> None:
        """hooks: of the ensemble's Op, which overrides no hook.

        limit: maximum number of requests in a batch.
        """
        super().__init__(hooks, Runner(hooks, None, BatchLimits(limit), Joining()), outputs)
        self.probe = self._probe_steps
        self._graph = model.graph
        self._steps = steps
        self._limit = limit

    def _probe_steps(self) -> str:
        """Run the model of each step on example inputs. Returns the message of the first error, or ""."""
        return next(filter(None, (step.executor.probe() for step in self._steps)), "")

    @property
    def _opens_streams(self) -> bool:
        return True

    def _decode_inputs(self, calls: Iterable[Call], tail: Tail) -> None:
        for call in calls:
            call.decode_inputs(tail, None)
            call.carried = dict(call.request.input_dicts)

    def _run_calls(self, calls: list[Call], started: int, send: Send, may_begin: MayBegin) -> None:
        for first in range(0, len(calls), self._limit):
            batch = calls[first : first + self._limit]
            if not may_begin(first + len(batch)):
                send([], [], Timings(), last=True)
                return
            timings = self._run_steps(batch)
            self._send_replies(batch, timings, send, last=first + len(batch) == len(calls))

    def _run_steps(self, calls: Sequence[Call]) -> Timings:
        """Run all steps on a batch. After an error, a request skips the later steps."""
        timings, runs = Timings(), list[tuple[str, int, Timings]]()
        for step in self._steps:
            if runs:
                _cancel_calls([call for call in calls if call.error is None])
            for call in calls:
                if call.error is None:
                    self._begin_step(call, step)
            counts = self._run_step(step, [call for call in calls if call.error is None])
            runs += [(step.op, requests, run) for requests, run in counts]
            timings.batches = max(timings.batches, sum(run.batches for _, run in counts))
        for call in calls:
            if call.error is None:
                call.output = call.carried[self._graph.response]
        timings.steps = runs
        return timings

    def _begin_step(self, call: Call, step: Step) -> None:
        graph = self._graph
        tensors, axes = graph.tensors[step.node], graph.batch_axes.get(step.node)
        call.begin_step(graph.inputs[step.node], tensors, axes, copies=step.copies)
        if call.error is not None:
            call.error.step = step.node

    def _run_step(self, step: Step, calls: list[Call]) -> list[tuple[int, Timings]]:
        """Run one step of an ensemble. Returns the number of requests and timings of each model batch.

        An unexpected exception fails the requests that have neither an output nor an error.
        """
        if not calls:
            return []
        streams = [call.sender for call in calls]
        for call, stream in zip(calls, streams, strict=True):
            call.sender = SingleAnswer(stream)
        counts = [(len(calls), Timings())]
        try:
            counts = step.executor.run_step(calls)
        except BaseException as exc:
            for call in calls:
                if call.error is None and call.output is None:
                    call.error = self._hooks.failure(exc, f"step {step.node}", call.request)
        for call, stream in zip(calls, streams, strict=True):
            _end_step(call, step)
            call.sender = stream
        return counts


def _cancel_calls(calls: Sequence[Call]) -> None:
    """Cancel the requests whose clients have left, or whose deadlines have passed, before the next step."""
    if calls:
        calls[0].sender.is_cancelled()  # reads the messages about all of them
    for call in calls:
        if call.sender.cancelled:
            call.error = create_cancellation()


def _end_step(call: Call, step: Step) -> None:
    """Store a request's output of a step for later steps and the response.

    An error gets the name of the step.
    """
    if call.error is None and call.output is STREAMED:
        call.output = call.sender.wait()
        if isinstance(call.output, ServingError):
            call.error = call.output
    if call.error is not None:
        call.error.step = step.node
        return
    call.carried[step.node] = call.output  # type: ignore[index]  # a dict, see `_decode_inputs`


class SingleAnswer:
    """Receives the only answer to a request from a model that sends answers itself, from any thread."""

    def __init__(self, stream: AnswerSender) -> None:
        """stream: the answers to the client's request, which tell whether the client has left."""
        self.sent = 0
        self.closed = False
        self._stream = stream
        self._answer: Any = None
        self._is_closed = Event()

    def send(self, output: Any, *, last: bool) -> None:
        """Receive an answer. Several answers are an error, because only decoupled models may send several."""
        if self.closed:
            return
        if output is not None:
            self.sent += 1
            self._answer = output if self.sent == 1 else AnswerCount()
        if last:
            self.closed = True
            self._is_closed.set()

    def is_cancelled(self) -> bool:
        """Return whether no client waits for the answer."""
        return self._stream.is_cancelled()

    def wait(self) -> Any:
        """Wait until the model has ended its answers, or no client waits any more.

        Returns the only answer, or an error if there is none or several, or if no client waits.
        """
        while not self._is_closed.wait(LOOK_S):
            if self.is_cancelled():
                return create_cancellation()
        return AnswerCount() if self._answer is None else self._answer


def create_cancellation() -> ServingError:
    """Return the error of a request that no client waits for.

    The error is not logged, because the front process drops it.
    """
    error = DeadlineExceeded("nobody waits for the answer any more")
    error.logged = True
    return error


class StepRunners(ModelCode):
    """Collects the custom metrics of all steps' models in a worker, and closes the models.

    It does not check readiness: each step's own workers do that.
    """

    def __init__(self, runners: Sequence[ModelCode]) -> None:
        self._runners = runners
        self._families: list[list[Any]] = [[] for _ in runners]

    def own_metrics(self) -> list[Any] | None:
        """Return the custom metrics of all steps; None if none has changed since the last call."""
        changed = [runner.own_metrics() for runner in self._runners]
        if not any(families is not None for families in changed):
            return None
        for number, families in enumerate(changed):
            if families is not None:
                self._families[number] = families
        return [family for families in self._families for family in families]

    @property
    def metrics_changed(self) -> Event | None:
        """The event that is set when a metric changes, shared by all Python models; None without any."""
        return next(filter(None, (runner.metrics_changed for runner in self._runners)), None)

    def close(self) -> None:
        for runner in self._runners:
            runner.close()


def create_joint_executor(
    op: Op, app: App, name: str, forms: Mapping[str, Form], *, first: int
) -> tuple[JointExecutor, Ready, StepRunners]:
    """Load the models of all steps of an ensemble, and create the executor that runs them.

    Returns the executor, the message that tells the front process of readiness, and the custom metrics. The
    arguments are those of `create_executors`.
    """
    assert op.steps is not None
    (model,) = (model for model in app.models if model.joint_op == name)
    graph = model.graph
    executors = {}
    for step, step_op in op.steps.items():
        (executors[step],), _ = create_executors(
            step_op, app, step, forms, count=1, first=first, shares=False
        )
    steps = [
        Step(node, graph.nodes[node].op, executors[graph.nodes[node].op], _are_shared(graph, node))
        for node in graph.order
        if node in graph.nodes
    ]
    hooks = get_hooks(op)
    outputs = Outputs(hooks, forms, answers=answered_by(app.models, name))
    executor = JointExecutor(hooks, model, steps, outputs, app.config.op[name].batch_size)
    runners = [step.request_runner for step in op.steps.values() if step.request_runner is not None]
    return executor, Ready(None, streams=True), StepRunners(runners)


def _are_shared(graph: Dag, node: str) -> bool:
    """Return whether other steps or the response need this step's inputs, too."""
    return any(len(graph.consumers[source]) > 1 or source in graph.carried for source in graph.inputs[node])
