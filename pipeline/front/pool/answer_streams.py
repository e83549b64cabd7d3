"""Requests with several answers, as the front sees them: passes answers on, and acknowledges them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from pipeline.errors import ServingError
from pipeline.front.branches import add_output, end_outputs
from pipeline.front.dag_run import Answer, Task
from pipeline.messages.frames import Tail
from pipeline.messages.messages import AnswersDelivered, Message, Settled, StreamedAnswer
from pipeline.process.isolation import run_isolated

# The worker may send more answers than these before it waits, see `pipeline.worker.answer_streams`.
_ACKNOWLEDGED_ANSWERS, _ACKNOWLEDGED_BYTES = 64, 256 * 1024

_Key = tuple[int, int]  # dispatch and index of the request


class _Stream(msgspec.Struct, eq=False):
    task: Task
    delivered_answers: int = 0  # since the last acknowledgement
    delivered_bytes: int = 0


class AnswerStreams:
    """The open requests of a worker instance to which the model sends several answers each.

    A request stays until its last answer, or until the instance dies.
    """

    def __init__(self) -> None:
        self._streams: dict[_Key, _Stream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def __contains__(self, key: _Key) -> bool:
        return key in self._streams

    def add(self, dispatch: int, index: int, task: Task) -> None:
        """Register a request that gets more answers after the reply to its dispatch."""
        self._streams.setdefault((dispatch, index), _Stream(task))

    def discard(self, dispatch: int, index: int) -> None:
        """Forget a request, because the reply to its dispatch contains its result."""
        self._streams.pop((dispatch, index), None)

    def take(
        self, message: StreamedAnswer, tail: Tail, task: Task | None, send: Callable[[Message], None]
    ) -> None:
        """Pass a worker's answer to its request.

        task: task of the request; None after the end of its dispatch. send: sends a message to the instance.
        The function replaces a reference to the instance, which would create a reference cycle.
        """
        key = message.dispatch, message.index
        stream = self._streams.get(key)
        if stream is None:
            if task is None:  # another instance has answered it
                return
            stream = self._streams[key] = _Stream(task)
        answer, size = None, 0
        if message.settled is not None:
            answer = _read_answer(message.settled, tail)
            size = sum(map(len, answer)) if isinstance(answer, list) else 0
        if message.last:
            del self._streams[key]
            run_isolated(_end_answers, stream.task, answer)
        elif answer is not None:
            stream.task.count_unread(1)
            acknowledge = partial(self._acknowledge, stream.task, key, size, send)
            run_isolated(_add_answer, stream.task, answer, acknowledge)

    def _acknowledge(self, task: Task, key: _Key, size: int, send: Callable[[Message], None]) -> None:
        """Count an answer that the client's connection has accepted.

        Many accepted answers are reported to the worker at once.
        """
        task.count_unread(-1)
        stream = self._streams.get(key)
        if stream is None:
            return
        stream.delivered_answers += 1
        stream.delivered_bytes += size
        if stream.delivered_answers >= _ACKNOWLEDGED_ANSWERS or stream.delivered_bytes >= _ACKNOWLEDGED_BYTES:
            send(AnswersDelivered(*key, stream.delivered_answers, stream.delivered_bytes))
            stream.delivered_answers = stream.delivered_bytes = 0

    def list_tasks(self) -> list[Task]:
        """Return the tasks whose answers are not complete."""
        return [stream.task for stream in self._streams.values()]

    def drain(self) -> list[Task]:
        """Remove all streams, and return their tasks."""
        tasks = self.list_tasks()
        self._streams.clear()
        return tasks


def _add_answer(task: Task, answer: Answer, acknowledge: Callable[[], None]) -> None:
    if task.is_response:
        task.add_answer(answer, acknowledge)
    elif isinstance(answer, ServingError):
        task.fail(answer)
    else:
        add_output(task, answer, acknowledge)


def _end_answers(task: Task, answer: Answer | None) -> None:
    if task.is_response or isinstance(answer, ServingError):
        task.end_answers(answer)
    else:
        end_outputs(task, answer)


def _read_answer(settled: Settled, tail: Tail) -> Answer:
    return tail.unstow(settled.parts) if settled.refusal is None else get_error(settled)


def get_error(settled: Settled) -> ServingError:
    """Return the error with which a worker has refused a request."""
    if settled.refusal is None:
        raise RuntimeError("a reply refuses a request without saying why")
    return settled.refusal.error()
