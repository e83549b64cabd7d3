"""Requests whose model sends any number of answers, to clients of a stream and to clients of one answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.errors import AnswerCount, InvalidInput, ServingError, UnprintableAnswer
from pipeline.front.dag_run import Task
from tests.support.simulated_service import RUN_S, Call, SimulatedService

Serve = Callable[..., SimulatedService]


class Stream:
    """The client's connection of a stream."""

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def send(self, answer: Any, acknowledge: Callable[[], None] = lambda: None) -> None:
        self.answers.append(answer)
        acknowledge()


def running_task(service: SimulatedService, call: Call) -> Task:
    service.advance(0.01)
    (instance,) = service.scheduler.pools["a"].instances
    (task,) = (task for task in instance.in_flight[0].tasks if task is not None)
    assert task.dag_run is call.dag_run
    return task


def add(service: SimulatedService, task: Task, answer: Any) -> int:
    """Add an answer. Return how often it was acknowledged."""
    acknowledged: list[None] = []
    service.run(lambda: task.add_answer(answer, lambda: acknowledged.append(None)))
    return len(acknowledged)


def test_a_stream_gets_each_answer_and_the_end_without_one(serve: Serve) -> None:
    service, stream = serve(), Stream()
    call = service.ask(stream=stream.send)
    task = running_task(service, call)
    assert [add(service, task, [b"one"]), add(service, task, [b"two"])] == [1, 1]
    assert (stream.answers, call.answers) == ([[b"one"], [b"two"]], [])
    service.run(lambda: task.end_answers(None))
    assert call.answers == [[]]
    assert add(service, task, [b"late"]) == 0
    assert len(stream.answers) == 2


def test_a_stream_may_end_with_its_last_answer_or_an_error(serve: Serve) -> None:
    for last in ([b"last"], InvalidInput("it fails")):
        service = serve()
        call = service.ask(stream=Stream().send)
        task = running_task(service, call)
        add(service, task, [b"one"])
        service.run(lambda task=task, last=last: task.end_answers(last))
        assert call.answers == [last]


def test_a_client_of_one_answer_gets_it_at_the_end_of_the_stream(serve: Serve) -> None:
    service = serve()
    call = service.ask()
    task = running_task(service, call)
    assert add(service, task, [b"only"]) == 1
    assert call.answers == []
    service.run(lambda: task.end_answers(None))
    assert call.answers == [[b"only"]]
    other = service.ask()
    service.advance(RUN_S)
    task = running_task(service, other)
    service.run(lambda: task.end_answers([b"last"]))
    assert other.answers == [[b"last"]]


def test_a_client_of_one_answer_gets_an_error_for_none_and_for_two(serve: Serve) -> None:
    for before, last in ([], None), ([[b"one"]], [b"two"]), ([[b"one"], [b"two"]], None):
        service = serve()
        call = service.ask()
        task = running_task(service, call)
        acknowledged = [add(service, task, answer) for answer in before]
        assert acknowledged == [1] * len(before)
        service.run(lambda task=task, last=last: task.end_answers(last))
        assert isinstance(call.error, AnswerCount)


def test_an_answer_above_the_limit_ends_the_request(serve: Serve) -> None:
    service, stream = serve(config={"limits": {"response_bytes": 4}}), Stream()
    call = service.ask(stream=stream.send)
    task = running_task(service, call)
    add(service, task, [b"ab", b"cd"])
    add(service, task, [b"ab", b"cde"])
    assert stream.answers == [[b"ab", b"cd"]]
    assert isinstance(call.error, UnprintableAnswer)
    assert call.error.message == "an answer has 5 bytes, limits.response_bytes allows 4"


def test_the_deadline_begins_anew_with_each_answer(serve: Serve) -> None:
    service, stream = serve(run_s=100.0), Stream()
    call = service.ask(stream=stream.send, timeout_s=1.0)
    task = running_task(service, call)
    for _ in range(3):
        service.advance(0.8)
        add(service, task, [b"one"])
        assert call.answers == []
    service.advance(1.1)
    assert call.error.http_status == 504


def test_a_request_that_has_sent_an_answer_is_not_run_again(serve: Serve) -> None:
    errors: list[ServingError] = []
    for answers in (0, 1):
        service, stream = serve(), Stream()
        call = service.ask(stream=stream.send)
        task = running_task(service, call)
        for _ in range(answers):
            add(service, task, [b"one"])
        service.kill(service.workers[0])
        service.advance(3.0)
        errors += [answer for answer in call.answers if isinstance(answer, ServingError)]
        assert len(errors) == answers
    assert errors[0].http_status == 503
