"""Walk: the way of one request through the DAG."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from pipeline.dag import Dag
from pipeline.errors import DeadlineExceeded, HookFailed, ServingError, described
from pipeline.op import REQUEST_OP, RESPONSE_OP
from pipeline.request import Request
from pipeline.values import Part, encode
from pipeline.wire import FEED, REFUSAL, Outcome

if TYPE_CHECKING:
    from pipeline.server.engine.batcher import Batcher
    from pipeline.server.engine.job import Inputs

Answer = list[Part] | ServingError
"""A complete response body, in one part or in those that the request's form says, or why there is none."""


class Walk:
    """Starts an Op when all its inputs are there; ends with the answer or the first error, or unanswered.

    With `dag.channel_recv_frist_arrive` an Op starts on the first input alone: what comes later is dropped,
    and an input that fails is one that does not come, until there is none left that could.

    on_end: called once, with the walk and its answer; with None when the client left. due_key: its place
    among the deadlines.
    """

    __slots__ = (
        "_awaited",
        "_batchers",
        "_dag",
        "_failed",
        "_hops_left",
        "_max_hops",
        "_on_end",
        "_outputs",
        "_tries_left",
        "answered",
        "began",
        "due_key",
        "request",
    )

    def __init__(
        self,
        request: Request,
        dag: Dag,
        batchers: Mapping[str, Batcher],
        on_end: Callable[[Walk, Answer | None], None],
        answered: Callable[[Answer], None],
        max_hops: int,
        tries: int = 1,
    ) -> None:
        self.request = request
        self.answered = answered
        self.began = time.monotonic()
        self.due_key: int | None = None
        self._on_end: Callable[[Walk, Answer | None], None] | None = on_end
        self._dag = dag
        self._batchers = batchers
        self._hops_left = self._max_hops = max_hops
        self._tries_left = tries
        self._awaited: dict[str, Inputs] = {}  # by node: what it was last started on
        # By node: under which name its consumers see the output, and the output. They differ after a jump.
        self._outputs: dict[str, tuple[str, list[Part]]] = {}
        self._failed: set[str] = set()

    def begin(self) -> None:
        """Raises NotEncodable for an input of a type that a codec must not let through."""
        source, op = self._dag.source, self.request.op
        parts = encode(self.request.inputs, allow_pickle=False)
        if op:
            given = self._awaited[op] = [(FEED, parts)]
            self._batchers[op].put(self, given)
        else:
            self._deliver(source, source, parts)

    def settle(self, node: str, outcome: Outcome, parts: list[Part]) -> None:
        """Take an Op's output, which is still awaited, and go on."""
        if outcome is Outcome.ANSWER:
            self._end(parts)
        elif outcome is Outcome.VALUE:
            self._deliver(node, node, parts)
        elif outcome is Outcome.JUMP:
            self._jump(node, parts)
        else:
            self.request.log_id = int.from_bytes(parts[0], "little", signed=True)
            self._deliver(REQUEST_OP, REQUEST_OP, parts[1:])

    def awaits(self, node: str, inputs: Inputs) -> bool:
        """Whether the node's output on these inputs is still wanted; a jump may have started it anew."""
        return self._on_end is not None and self._awaited.get(node) is inputs

    def start_anew(self, node: str, inputs: Inputs) -> Inputs:
        """Forget the try of a node that is under way; returns what the next one is started on."""
        renewed = self._awaited[node] = list(inputs)
        return renewed

    def time_out(self, node: str, error: ServingError) -> None:
        """An Op has used up its tries: begin the whole request anew as often as dag.retry allows."""
        if self._goes_on_without(node):
            return
        self._tries_left -= 1
        if self._tries_left <= 0:
            self.refuse(node, error)
            return
        self._awaited.clear()
        self._outputs.clear()
        self._failed.clear()
        self._hops_left = self._max_hops
        self.begin()

    def refuse(self, node: str, error: ServingError) -> None:
        """An Op's refusal ends the request, by way of the app's own ResponseOp where it has one."""
        self._batchers[node].note_error()
        if self._goes_on_without(node):
            return
        if not self._dag.packs or node == RESPONSE_OP or self.request.op:
            self.fail(error)
            return
        self._awaited.clear()
        given = [(REFUSAL, encode(described(error), allow_pickle=False))]
        self._awaited[RESPONSE_OP] = given
        self._batchers[RESPONSE_OP].put(self, given)

    def _goes_on_without(self, node: str) -> bool:
        """Whether the answer may still come from other inputs than this one, which has failed."""
        if not self._dag.first_arrival or self.request.op:
            return False
        self._failed.add(node)
        return self._dag.response not in self._dag.lost_with(self._failed, self._awaited)

    def expire(self) -> None:
        self.fail(DeadlineExceeded("the request's deadline passed before its answer was there"))

    def fail(self, error: ServingError) -> None:
        self._end(error)

    def leave(self) -> None:
        """The client left: nobody waits for an answer any more."""
        self._end(None)

    def _end(self, answer: Answer | None) -> None:
        on_end, self._on_end = self._on_end, None
        if on_end is not None:
            on_end(self, answer)

    def _deliver(self, node: str, label: str, parts: list[Part]) -> None:
        outputs = self._outputs
        outputs[node] = (label, parts)
        for consumer in self._dag.consumers[node]:
            inputs = self._dag.inputs_of(consumer, node, outputs, self._awaited)
            if inputs is not None:
                given = self._awaited[consumer] = [outputs[name] for name in inputs]
                self._batchers[consumer].put(self, given)
        if self._dag.first_arrival:
            for name in self._dag.superfluous(self._awaited):
                self._awaited[name] = []  # nobody's inputs: whatever it is still doing is not awaited

    def _jump(self, node: str, parts: list[Part]) -> None:
        """The output goes to the consumers of the jump's targets, as if it were the targets' own."""
        self._hops_left -= 1
        if self._hops_left < 0:
            self.refuse(
                node, HookFailed(f"[{node}] jumped too often: more than dag.max_hops times in one request")
            )
            return
        for target in self._dag.nodes[node].jumps:
            for stale in self._dag.descendants(target):
                self._outputs.pop(stale, None)
                self._awaited.pop(stale, None)
                self._failed.discard(stale)
        for target in self._dag.nodes[node].jumps:
            self._deliver(target, node, parts)
