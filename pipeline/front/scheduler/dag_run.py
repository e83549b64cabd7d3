"""DagRun: the way of one request through the DAG."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
from msgspec.structs import astuple

from pipeline.api.dag import Dag
from pipeline.api.op import REQUEST_OP, RESPONSE_OP
from pipeline.errors import DeadlineExceeded, HookFailed, ServingError
from pipeline.front.scheduler.request import Request
from pipeline.messages.messages import FEED, REFUSAL, Outcome, Refusal
from pipeline.messages.values import Part, encode

_ANSWER = Outcome.ANSWER
_data_ids = itertools.count(1)

Answer = list[Part] | ServingError
"""A complete response body, in one part or in those that the request's form says, or why there is none."""

Inputs = list[tuple[str, list[Part]]]
"""What an Op is started on: by the names of those that it comes from."""


class OpQueue(Protocol):
    """What a DAG run knows of an Op."""

    def put(self, dag_run: DagRun, inputs: Inputs) -> None: ...

    def note_error(self, error: ServingError) -> None: ...


class RunContext(msgspec.Struct, frozen=True, eq=False):
    """What the DAG runs of a service share.

    on_end: called once for each, with the DAG run and its answer; with None when the client left. tries: of a
    whole request, see dag.retry.
    """

    dag: Dag
    queues: Mapping[str, OpQueue]
    on_end: Callable[[DagRun, Answer | None], None]
    max_hops: int
    tries: int = 1


class DagRun(msgspec.Struct, eq=False):
    """Starts an Op when all its inputs are there; ends with the answer or the first error, or unanswered.

    With `dag.channel_recv_frist_arrive` an Op starts on the first input alone: what comes later is dropped,
    and an input that fails is one that does not come, until there is none left that could.

    answered: for the scheduler to call with the answer. began: time.monotonic. data_id: what the hooks of
    every Op know the request by. due_key: its place among the deadlines. awaited: by node, what it was last
    started on; nothing once the DAG run has ended.
    """

    request: Request
    answered: Callable[[Answer], None]
    began: float
    _context: RunContext
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
        op = self.request.op
        parts = encode(self.request.inputs, allow_pickle=False)
        if op:
            given = self.awaited[op] = [(FEED, parts)]
            self._context.queues[op].put(self, given)
        else:
            source = self._context.dag.source
            self._deliver(source, source, parts)

    def settle(self, node: str, outcome: Outcome, parts: list[Part]) -> None:
        """Take an Op's output, which is still awaited, and go on."""
        if outcome is _ANSWER:
            self._end(parts)
        elif outcome is Outcome.VALUE:
            self._deliver(node, node, parts)
        elif outcome is Outcome.JUMP:
            self._jump(node, parts)
        else:
            self.request.log_id = int.from_bytes(parts[0], "little", signed=True)
            self._deliver(REQUEST_OP, REQUEST_OP, parts[1:])

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
        self._hops_left = self._context.max_hops
        self.begin()

    def refuse(self, node: str, error: ServingError) -> None:
        """An Op's refusal ends the request, by way of the app's own ResponseOp where it has one."""
        self._context.queues[node].note_error(error)
        if self._goes_on_without(node):
            return
        if not self._context.dag.packs or node == RESPONSE_OP or self.request.op:
            self.fail(error)
            return
        self.awaited.clear()
        given = [(REFUSAL, encode(astuple(Refusal.of(error)), allow_pickle=False))]
        self.awaited[RESPONSE_OP] = given
        self._context.queues[RESPONSE_OP].put(self, given)

    def _goes_on_without(self, node: str) -> bool:
        """Whether the answer may still come from other inputs than this one, which has failed."""
        if not self._context.dag.first_arrival or self.request.op:
            return False
        self._failed.add(node)
        return self._context.dag.response not in self._context.dag.lost_with(self._failed, self.awaited)

    def expire(self) -> None:
        self.fail(DeadlineExceeded("the request's deadline passed before its answer was there"))

    def fail(self, error: ServingError) -> None:
        self._end(error)

    def leave(self) -> None:
        """The client left: nobody waits for an answer any more."""
        self._end(None)

    def _end(self, answer: Answer | None) -> None:
        if not self._ended:
            self._ended = True
            self.awaited.clear()
            self._context.on_end(self, answer)

    def _deliver(self, node: str, label: str, parts: list[Part]) -> None:
        context, outputs = self._context, self._outputs
        dag = context.dag
        outputs[node] = (label, parts)
        for consumer in dag.consumers[node]:
            inputs = dag.inputs_of(consumer, node, outputs, self.awaited)
            if inputs is not None:
                given = self.awaited[consumer] = [outputs[name] for name in inputs]
                context.queues[consumer].put(self, given)
        if dag.first_arrival:
            for name in dag.superfluous(self.awaited):
                self.awaited[name] = []  # nobody's inputs: whatever it is still doing is not awaited

    def _jump(self, node: str, parts: list[Part]) -> None:
        """The output goes to the consumers of the jump's targets, as if it were the targets' own."""
        self._hops_left -= 1
        if self._hops_left < 0:
            self.refuse(
                node, HookFailed(f"[{node}] jumped too often: more than dag.max_hops times in one request")
            )
            return
        for target in self._context.dag.nodes[node].jumps:
            for stale in self._context.dag.descendants(target):
                self._outputs.pop(stale, None)
                self.awaited.pop(stale, None)
                self._failed.discard(stale)
        for target in self._context.dag.nodes[node].jumps:
            self._deliver(target, node, parts)
