"""The response cache in front of models and of steps, on simulated workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipeline.api.app import RepositoryPlace
from pipeline.api.cache_settings import LocalSettings
from pipeline.errors import ServingError
from tests.support.simulated_service import Call, SimulatedService

Serve = Callable[..., SimulatedService]
PLACE = RepositoryPlace((), cache=LocalSettings(1 << 20))
CACHED = {"response_cache": {"enable": True}}


def ask(service: SimulatedService, number: int, model: str = "a", kind: str = "answer") -> Call:
    """Send a request whose inputs are equal for equal numbers."""
    call = service.make(kind, model=model)
    call.request.inputs["id"] = call.request.log_id = number
    return service.send(call)[0]


def answers(service: SimulatedService, *numbers: int, **options: Any) -> list[Any]:
    """Send these requests one after the other. Return their answers."""
    received = []
    for number in numbers:
        call = ask(service, number, **options)
        service.advance(1.0)
        received += call.answers
    return received


def figures(service: SimulatedService, op: str) -> tuple[int, int]:
    """Return the number of hits and misses of an Op's cache."""
    cache = service.metrics.of_ops[op].cache
    return cache.hits, cache.misses


def test_a_model_runs_equal_requests_once(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, configs={"a": CACHED, "b": {}}, repository=PLACE)
    assert [service.scheduler.is_cached(model) for model in ("a", "b", "sim")] == [True, False, False]
    assert service.scheduler.cache is not None
    first, again, other = answers(service, 5, 5, 6)
    assert (first, first == other) == (again, False)
    assert len(service.begun) == 2
    assert figures(service, "a") == (1, 2)
    assert (service.scheduler.cache.lookups, service.scheduler.cache.hits) == (3, 1)
    requests = service.metrics.of_ops["a"]
    assert requests.cache.hits == 1


def test_a_model_without_the_setting_runs_each_request(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, configs={"a": CACHED, "b": {}}, repository=PLACE)
    answers(service, 5, 5, model="b")
    assert (len(service.begun), figures(service, "b")) == (2, (0, 0))


def test_a_server_without_a_cache_runs_each_request(serve: Serve) -> None:
    service = serve(configs={"a": CACHED})
    answers(service, 5, 5)
    assert (len(service.begun), service.scheduler.cache) == (2, None)
    assert not service.scheduler.is_cached("a")


def test_requests_that_are_equal_to_a_running_one_get_its_answer(serve: Serve) -> None:
    service = serve(configs={"a": CACHED}, repository=PLACE)
    calls = [ask(service, 5) for _ in range(3)]
    service.advance(1.0)
    assert calls[0].answers and [call.answers for call in calls] == [calls[0].answers] * 3
    assert len(service.begun) == 1


def test_an_error_is_not_cached(serve: Serve) -> None:
    service = serve(configs={"a": CACHED}, repository=PLACE)
    refused = answers(service, 5, 5, kind="error")
    assert all(isinstance(answer, ServingError) for answer in refused)
    assert (len(service.begun), figures(service, "a")) == (2, (0, 2))


def test_requests_of_a_client_that_leaves_are_answered_to_the_others(serve: Serve) -> None:
    service = serve(configs={"a": CACHED}, repository=PLACE)
    left, stays = ask(service, 5), ask(service, 5)
    service.leave(left)
    service.advance(1.0)
    assert (left.answers, len(stays.answers)) == ([], 1)
    (again,) = answers(service, 5)
    assert [again] == stays.answers


def test_a_step_runs_equal_inputs_once(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, configs={"a": CACHED, "b": {}}, repository=PLACE)
    first, again = answers(service, 5, 5, model="sim")
    assert first == again
    assert len(service.begun) == 3, "the second request runs in b alone"
    assert figures(service, "a") == (1, 1)
    assert figures(service, "b") == (0, 0)


def test_a_step_has_another_cache_than_its_model(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, configs={"a": CACHED, "b": {}}, repository=PLACE)
    answers(service, 5)
    answers(service, 5, model="sim")
    assert len(service.begun) == 3
    assert figures(service, "a") == (0, 2)
