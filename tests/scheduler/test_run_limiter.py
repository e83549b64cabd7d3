"""The rate limiter: which instances run together, and which of those that wait is next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from pipeline.api.app import RepositoryPlace
from pipeline.api.run_resources import (
    Resource,
    ResourceLimits,
    RunNeeds,
    find_resource_error,
    parse_resource_limits,
    parse_run_needs,
)
from pipeline.errors import ConfigError
from pipeline.front.scheduler.run_limiter import LimitedRuns, RunLimiter
from tests.support.simulated_service import RUN_S, SimulatedService

Serve = Callable[..., SimulatedService]
R, S = Resource("R", 0), Resource("S")


def group(count: int = 1, priority: int = 0, gpus: Iterable[int] = (), **resources: int) -> dict[str, Any]:
    """An instance group of config.pbtxt. A resource with a lower-case name is shared by all devices."""
    listed = [{"name": n.upper(), "global": n.islower(), "count": c} for n, c in resources.items()]
    limiter = {"resources": listed, "priority": priority}
    return {"count": count, "gpus": list(gpus), "rate_limiter": limiter}


def test_each_instance_has_the_needs_of_its_group_and_device() -> None:
    groups = [group(2, gpus=[3, 5], R=1), group(priority=2, s=4), {"count": 1, "gpus": []}]
    assert parse_run_needs({"instance_group": groups}) == (
        RunNeeds(((Resource("R", 3), 1),)),
        RunNeeds(((Resource("R", 5), 1),)),
        RunNeeds(((S, 4),), 2),
        RunNeeds(),
    )
    assert parse_run_needs({"instance_group": [{"count": 1, "gpus": []}]}) == parse_run_needs({}) == ()


def test_flags_say_how_much_there_is_of_a_resource() -> None:
    limits = parse_resource_limits("execution_count", ["R:4", "R:6:1", "S:2:7"])
    assert limits is not None
    counts = [limits.get_count(resource) for resource in (R, Resource("R", 1), S, Resource("S", 0))]
    assert counts == [4, 6, 2, 0]
    assert parse_resource_limits("off", ["R:4"]) is None
    with pytest.raises(ConfigError, match="R:5:1: the count of R is given twice"):
        parse_resource_limits("execution_count", ["R:4:1", "R:5:1"])


@pytest.mark.parametrize(
    ("groups", "flags", "error"),
    [
        ([group(R=4), group(R=2)], ["R:3"], 'Resource count for "R" is limited to 3 which will prevent'),
        ([group(R=1)], ["S:1"], 'Resource count for "R" is limited to 0'),
        ([group(R=1)], ["R:9:10"], 'Resource count for "R" is limited to 0'),
        ([group(R=1), group(r=1)], [], 'Resource "R" is present as both global and device-specific'),
        ([group(R=4), group(s=9)], [], ""),
        ([group(R=4), group(s=2)], ["R:4", "S:2:7"], ""),
    ],
    ids=["too little", "of another", "of another device", "of two kinds", "no limit", "enough"],
)
def test_a_model_that_could_never_run_is_refused(groups: list[Any], flags: list[str], error: str) -> None:
    limits = parse_resource_limits("execution_count", flags)
    assert limits is not None
    found = find_resource_error(parse_run_needs({"instance_group": groups}), limits)
    assert error in found and bool(error) == bool(found)


class Worker(NamedTuple):
    """An instance of a model."""

    model: str
    number: int = 0


class Contest:
    """Models whose instances always have requests, and one run after the other."""

    def __init__(self, limits: ResourceLimits, needs: dict[str, list[RunNeeds]]) -> None:
        self.limiter = RunLimiter(limits)
        self.limiter.update_models(need for some in needs.values() for need in some)
        self.woken: list[str] = []
        self.runs = {
            name: LimitedRuns(self.limiter, some, lambda name=name: self.woken.append(name))
            for name, some in needs.items()
        }

    def attempt(self, name: str, *workers: Worker, has_tasks: bool = True) -> list[Worker]:
        """Begin runs of the instances that may run, as the batcher of the model does. Return them."""
        runs = self.runs[name]
        runs.begin_attempt()
        selected = runs.select(workers)
        for worker in selected:
            runs.begin(worker)
        runs.end_attempt(has_tasks=has_tasks)
        return selected


A, B = Worker("a"), Worker("b")


def test_runs_that_need_more_together_than_there_is_follow_each_other() -> None:
    contest = Contest(ResourceLimits(((Resource("R"), 5),)), {n: [RunNeeds(((R, 3),))] for n in "ab"})
    assert contest.attempt("a", A) == [A]
    assert contest.attempt("b", B) == []
    contest.runs["a"].end(A)
    assert contest.woken == ["b"]
    assert contest.attempt("b", B) == [B]


def test_without_a_limit_there_is_as_much_as_an_instance_needs_at_most() -> None:
    small, large = RunNeeds(((R, 1),)), RunNeeds(((R, 2),))
    contest = Contest(ResourceLimits(), {"a": [small] * 3, "b": [large]})
    some = [Worker("a", number) for number in range(3)]
    assert contest.attempt("a", *some) == some[:2]


def test_an_instance_of_priority_two_gets_half_as_many_runs() -> None:
    contest = Contest(ResourceLimits(), {"a": [RunNeeds(((R, 1),))], "b": [RunNeeds(((R, 1),), 2)]})
    order = ""
    contest.attempt("a", A)
    contest.attempt("b", B)
    running = A
    for _ in range(12):
        order += running.model
        contest.woken.clear()
        contest.runs[running.model].end(running)
        for name in [running.model, *contest.woken, *contest.woken]:  # the batcher tries again by itself
            worker = A if name == "a" else B
            if worker not in contest.limiter.running and contest.attempt(name, worker):
                running = worker
    assert order.count("a") == 8 and order.count("b") == 4


def test_a_large_claim_is_not_overtaken_for_ever() -> None:
    limits = ResourceLimits(((Resource("R"), 2),))
    contest = Contest(limits, {"a": [RunNeeds(((R, 1),))] * 2, "b": [RunNeeds(((R, 2),))]})
    first, second = A, Worker("a", 1)
    assert contest.attempt("a", first, second) == [first, second]
    assert contest.attempt("b", B) == []
    contest.runs["a"].end(first)
    assert contest.attempt("a", first) == [], "its claim is behind the other model's"
    contest.runs["a"].end(second)
    assert contest.attempt("b", B) == [B]


def test_a_model_without_requests_blocks_nobody() -> None:
    contest = Contest(ResourceLimits(((Resource("R"), 2),)), {"a": [RunNeeds(((R, 2),))], "b": []})
    contest.runs["b"] = LimitedRuns(contest.limiter, [RunNeeds(((R, 1),))], lambda: None)
    holder = LimitedRuns(contest.limiter, [RunNeeds(((R, 1),))], lambda: None)
    holder.begin(Worker("c"))
    assert contest.attempt("a", A) == []
    assert contest.attempt("a", has_tasks=False) == []
    assert contest.attempt("b", B) == [B]


@pytest.mark.parametrize(("limits", "together"), [((), 1), (((Resource("R"), 2),), 2)])
def test_models_share_a_resource_of_the_server(
    serve: Serve, limits: tuple[tuple[Resource, int], ...], together: int
) -> None:
    configs = {name: {"instance_group": [group(R=1)], "max_batch_size": 0} for name in "ab"}
    place = RepositoryPlace((), resource_limits=ResourceLimits(limits))
    service = serve({"a": {}, "b": {}}, inputs={"a": (), "b": ()}, configs=configs, repository=place)
    calls = [service.ask(model=name) for name in "ab" for _ in range(2)]
    service.advance(RUN_S / 2)
    assert len(service.begun) == together
    service.advance(4 * RUN_S)
    assert [len(call.answers) for call in calls] == [1] * 4 and calls[3].body
    assert len({round(call.answered_at, 3) for call in calls}) == 4 // together


def test_a_worker_that_dies_frees_its_resources(serve: Serve) -> None:
    configs = {name: {"instance_group": [group(R=1)], "max_batch_size": 0} for name in "ab"}
    place = RepositoryPlace((), resource_limits=ResourceLimits())
    service = serve({"a": {}, "b": {}}, inputs={"a": (), "b": ()}, configs=configs, repository=place)
    service.ask(model="a")
    service.advance(RUN_S / 2)
    other = service.ask(model="b")
    service.advance(RUN_S / 4)
    assert service.begun == [[1]]
    service.kill(next(worker for worker in service.workers if worker.op == "a"))
    service.advance(RUN_S / 4)
    assert service.begun == [[1], [2]] and not other.answers
