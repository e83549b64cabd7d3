"""Stage times of requests with `dag.use_profile`, and of the steps of an ensemble that one worker runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pipeline.front.dag_run import Task
from pipeline.front.metrics.latencies import ModelLatencies
from pipeline.front.metrics.metrics import OpFigures, RequestTimings
from pipeline.front.pool.worker_process import Dispatch
from pipeline.front.scheduler import batcher as batchers
from pipeline.front.scheduler.batcher import Batcher
from pipeline.messages.messages import Outcome, Reply, Settled, Timings
from tests.support.simulated_service import SimulatedService

Serve = Callable[..., SimulatedService]
MS = 1_000_000
NOW_S = 101.0
ANSWERED = Timings(10 * MS, 20 * MS, 30 * MS, 1, 2, 9, 12, 0)


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies arrive at NOW_S."""
    monkeypatch.setattr(batchers, "time", SimpleNamespace(monotonic=lambda: NOW_S))


def get_batcher(service: SimulatedService) -> Batcher:
    return service.scheduler._batchers["a"]


def task(queued_at: float, *, has_profile: bool = True) -> Any:
    timings = RequestTimings() if has_profile else None
    request = SimpleNamespace(timings=timings)
    return SimpleNamespace(queued_at=queued_at, dag_run=SimpleNamespace(request=request))


def build_dispatch(*tasks: Task | None, began: float = 100.5) -> Dispatch:
    return Dispatch(7, list(tasks), NOW_S + 9, began, began, len(tasks))


def reply_to(dispatch: Dispatch, timings: Timings, outcomes: Sequence[Outcome] = ()) -> Reply:
    outcomes = outcomes or [Outcome.ANSWER] * len(dispatch.tasks)
    settled = [Settled(index, outcome) for index, outcome in enumerate(outcomes)]
    return Reply(7, True, settled, timings)


def stages(task: Any) -> dict[str, list[float]]:
    """Return the seconds of each Op of a task's request: in the queue, and before, in and after the model."""
    return {op: pytest.approx(stages_s) for op, stages_s in task.dag_run.request.timings._of_ops.items()}


def add(service: SimulatedService, dispatch: Dispatch, reply: Reply) -> None:
    get_batcher(service).add_timings(SimpleNamespace(), dispatch, reply)  # type: ignore[arg-type]


def test_a_request_gets_its_own_wait_and_the_times_of_its_batch(serve: Serve) -> None:
    first, second = task(100.1), task(100.4)
    dispatch = build_dispatch(first, second)
    add(serve(), dispatch, reply_to(dispatch, ANSWERED))
    assert stages(first) == {"a": [0.4, 0.01, 0.02, 0.03]}
    assert stages(second) == {"a": [0.1, 0.01, 0.02, 0.03]}


def test_a_wait_is_not_negative_and_requests_without_profile_or_client_are_left_out(serve: Serve) -> None:
    early = task(100.9)
    dispatch = build_dispatch(None, task(100.1, has_profile=False), early)
    add(serve(), dispatch, reply_to(dispatch, ANSWERED))
    assert stages(early) == {"a": [0.0, 0.01, 0.02, 0.03]}


def test_later_replies_have_the_preprocess_time_of_the_first(serve: Serve) -> None:
    service, first, second = serve(), task(100.5), task(100.5)
    dispatch = build_dispatch(first, second)
    add(service, dispatch, Reply(7, False, [Settled(0, Outcome.ANSWER)], ANSWERED))
    later = Timings(0, 5 * MS, 6 * MS, 1, 1, 1, 1, 0)
    add(service, dispatch, Reply(7, True, [Settled(1, Outcome.ANSWER)], later))
    assert stages(second) == {"a": [0.0, 0.01, 0.005, 0.006]}


def test_latencies_count_answers_and_no_errors(serve: Serve) -> None:
    service = serve()
    latencies = service.metrics.of_ops["a"].latencies = ModelLatencies()
    dispatch = build_dispatch(task(100.1), task(100.4), None)
    add(service, dispatch, reply_to(dispatch, ANSWERED, [Outcome.ANSWER, Outcome.ERROR, Outcome.ANSWER]))
    totals = {name: getattr(latencies, name) for name in ModelLatencies.__slots__}
    counts = {name: summary.count for name, summary in totals.items() if summary.count}
    assert counts == dict.fromkeys(
        ("request", "queue", "compute_input", "compute_infer", "compute_output"), 1
    )
    microseconds = [latencies.request.total, latencies.queue.total, latencies.compute_infer.total]
    assert microseconds == pytest.approx([900_000, 400_000, 20_000])


STEPS = Timings(
    steps=[
        ("tokenize", 2, Timings(1 * MS, 2 * MS, 3 * MS, 1, 2, 0, 0, 2)),
        ("classify", 1, Timings(4 * MS, 5 * MS, 6 * MS, 1, 1, 7, 8, 1)),
    ]
)


def test_steps_of_an_ensemble_have_their_times_and_the_first_has_the_wait(serve: Serve) -> None:
    first, late = task(100.1), task(100.7)
    dispatch = build_dispatch(first, None, task(100.1, has_profile=False), late)
    add(serve(), dispatch, reply_to(dispatch, STEPS))
    assert stages(first) == {"tokenize": [0.4, 0.001, 0.002, 0.003], "classify": [0.0, 0.004, 0.005, 0.006]}
    assert stages(late)["tokenize"] == [0.0, 0.001, 0.002, 0.003]


def test_steps_of_an_ensemble_count_in_the_metrics_of_their_ops(serve: Serve) -> None:
    of_steps = {"tokenize": OpFigures(), "classify": OpFigures()}
    of_steps["classify"].latencies = ModelLatencies()
    get_batcher(serve())._record_steps(STEPS, of_steps)
    assert [figures.queue_s.counts[0] for figures in of_steps.values()] == [2, 1]
    assert [figures.queue_s.total for figures in of_steps.values()] == [0.0, 0.0]
    latencies = of_steps["classify"].latencies
    assert (latencies.request.count, latencies.request.total) == (1, pytest.approx(15_000))
    assert (latencies.queue.count, latencies.queue.total) == (1, 0.0)
    assert latencies.compute_infer.total == pytest.approx(5_000)


def test_a_profile_of_a_served_request_names_each_op(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, dag={"use_profile": True})
    call = service.make()
    call.request.timings = RequestTimings()
    service.send(call)
    service.advance(1.0)
    assert call.body
    (_, *a), (_, *b) = call.request.timings._of_ops["a"], call.request.timings._of_ops["b"]
    assert a == b == pytest.approx([1e-6, 2e-6, 1e-6])


def test_all_instances_are_late_only_where_each_has_a_late_run(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}})
    batcher = get_batcher(service)
    instances = service.scheduler.pools["a"].instances

    def is_late(*began: float) -> bool:
        for instance, run_began in zip(instances, began, strict=False):
            instance.in_flight.append(SimpleNamespace(run_began=run_began))  # type: ignore[arg-type]
        late = batcher._are_all_late()
        for instance in instances:
            instance.in_flight.clear()
        return late

    limit_s = batchers.late_after_s(batcher.pace.usual_s)
    late, on_time = NOW_S - limit_s - 0.1, NOW_S - limit_s + 0.1
    assert is_late(late, late)
    assert not is_late(late, on_time)
    assert not is_late(on_time, late)
    assert not is_late(late), "the other instance has no run"
