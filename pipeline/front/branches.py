"""Ensembles with a decoupled step: each of its answers runs through the steps behind it in a branch."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

import msgspec

from pipeline.errors import ServingError
from pipeline.front.dag_run import Answer, DagRun, Task
from pipeline.messages.frames import Part
from pipeline.process.isolation import run_isolated

_MAX_BRANCHES = 256  # at a time, for an ensemble without `max_inflight_requests`


class Branch(DagRun):
    """A run of an ensemble's later steps on one answer of a decoupled step (a step with several answers)."""

    owner: Branches | None = None
    answers: deque[tuple[Answer, Callable[[], None]]] = msgspec.field(default_factory=deque)
    done: bool = False
    acknowledge: Callable[[], None] | None = None  # acknowledges the answer that the branch runs on

    def add_answer(self, answer: Answer, acknowledge: Callable[[], None]) -> None:
        """Send an answer of this branch to the client, after all answers of earlier branches."""
        assert self.owner is not None
        self.owner.pass_on(self, answer, acknowledge)

    def end_answers(self, answer: Answer | None) -> None:
        self.end([] if answer is None else answer)

    def end(self, answer: Answer | None) -> None:
        """End the branch. An error also ends the whole request."""
        if self._ended:
            return
        self._ended = True
        self.awaited.clear()
        for cancel in self.cancels:
            run_isolated(cancel)
        if answer is not None and self.owner is not None:
            self.owner.end_branch(self, answer)


class Branches:
    """The branches of a request behind one decoupled step. Each runs the later steps on one answer.

    The client gets the branches' answers in the order of the decoupled step's answers. At most
    `max_inflight_requests` branches run at a time. The decoupled step gets the acknowledgement of an answer
    when its branch has ended: slow later steps thus delay the decoupled step.
    """

    def __init__(self, dag_run: DagRun, node: str) -> None:
        self._dag_run = dag_run
        self._node = node
        dag = dag_run.entry.dag
        behind = {*dag.descendants(node)}
        sources = {source for name in behind for source in dag.inputs[name]}
        self._needed = sources - behind - {node}  # outputs of other steps, which all branches use
        self._waiting: deque[tuple[list[Part], Callable[[], None]]] = deque()  # outputs without a branch yet
        self._order: deque[Branch] = deque()
        self._running = 0
        self._ended = False  # the step sends no further answer
        dag_run.cancels.append(self._leave)

    def add(self, parts: list[Part], acknowledge: Callable[[], None]) -> None:
        """Run the later steps of the ensemble on an answer of the decoupled step, in a new branch.

        parts: the encoded answer. acknowledge: called when the branch has ended.
        """
        self._waiting.append((parts, acknowledge))
        self.start()

    def end_step(self) -> None:
        """End the request after the last branch, because the step sends no further answer."""
        self._ended = True
        self._end_if_done()

    def start(self) -> None:
        """Start waiting branches up to the limit, once the outputs that they need from other steps exist."""
        limit = self._dag_run.entry.max_branches or _MAX_BRANCHES
        while self._waiting and self._running < limit and self._needed <= self._dag_run.outputs.keys():
            parts, acknowledge = self._waiting.popleft()
            self._running += 1
            dag_run = self._dag_run
            branch = Branch(
                dag_run.request, dag_run.answered, dag_run.began, dag_run.entry, dag_run.entry.max_hops, 1,
                data_id=dag_run.data_id, outputs=dict(dag_run.outputs), owner=self, acknowledge=acknowledge,
            )  # fmt: skip
            self._order.append(branch)
            branch.deliver(self._node, self._node, parts)

    def pass_on(self, branch: Branch, answer: Answer, acknowledge: Callable[[], None]) -> None:
        """Send an answer of a branch to the client, once all answers of earlier branches are sent."""
        branch.answers.append((answer, acknowledge))
        self._send()

    def end_branch(self, branch: Branch, answer: Answer) -> None:
        """End a branch, and send its last answer to the client after all answers of earlier branches.

        An error ends the whole request.
        """
        if isinstance(answer, ServingError):
            self._dag_run.end(answer)
            return
        branch.done = True
        self._running -= 1
        if answer:
            branch.answers.append(([bytes(part) for part in answer], _ignore))
        self._send()
        self.start()
        self._end_if_done()

    def _send(self) -> None:
        """Send the finished answers in order, up to the first branch that has not ended."""
        while self._order:
            branch = self._order[0]
            while branch.answers:
                self._dag_run.add_answer(*branch.answers.popleft())
            if not branch.done or not self._order:  # a failed answer ends the request
                return
            self._order.popleft()
            if branch.acknowledge is not None:
                branch.acknowledge()

    def _end_if_done(self) -> None:
        if self._ended and not self._waiting and not self._order:
            self._dag_run.end_answers(None)

    def _leave(self) -> None:
        """End all branches, because the request has ended."""
        self._waiting.clear()
        branches, self._order = list(self._order), deque()
        for branch in branches:
            branch.leave()


def _ignore() -> None:
    pass


def add_output(task: Task, parts: list[Part], acknowledge: Callable[[], None]) -> None:
    """Accept one of several outputs of a decoupled step.

    The later steps of the ensemble run once for each output.
    """
    if task.claim():
        task.dag_run.answered_at = time.monotonic()
        _get_branches(task).add([bytes(part) for part in parts], acknowledge)


def end_outputs(task: Task, parts: list[Part] | None) -> None:
    """Record that a decoupled step sends no further output.

    parts: the last output, encoded; None if the step has sent its last output before.
    """
    if not task.claim():
        return
    branches = _get_branches(task)
    if parts is not None:
        branches.add([bytes(part) for part in parts], _ignore)
    branches.end_step()


def _get_branches(task: Task) -> Branches:
    dag_run = task.dag_run
    branches = dag_run.branches.get(task.node)
    if branches is None:
        branches = dag_run.branches[task.node] = Branches(dag_run, task.node)
    assert isinstance(branches, Branches)
    return branches
