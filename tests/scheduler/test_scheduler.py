"""The whole scheduler: requests from admission to answer, deadlines, readiness, unloading and the stop."""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from pipeline.api.app import RepositoryPlace, ServedModel
from pipeline.api.dag import Dag, Edge, Node
from pipeline.api.op import REQUEST_OP
from pipeline.errors import (
    DeadlineExceeded,
    NotReady,
    Overloaded,
    StartFailed,
    UnknownService,
    UnprintableAnswer,
)
from pipeline.front.dag_run import Client
from pipeline.front.pool.worker_pool import FAILED_STARTS_ALLOWED, MAX_BACKOFF_S
from pipeline.front.pool.worker_process import WorkerProcess
from pipeline.front.scheduler import gauges
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.scheduler import Deadlines
from pipeline.tuning.choice import Choice, Timed
from tests.simulation.workers import StartPlan
from tests.support.simulated_service import RUN_S, SimulatedService

Serve = Callable[..., SimulatedService]


def test_a_request_passes_all_ops_and_is_counted(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    call = service.ask(rows=3)
    assert (service.scheduler.pending, service.gauge("paddlewheel_pending_requests")) == (1, 1)
    service.advance(1.0)
    assert call.body == "1 b(a())"
    assert call.answered_at == pytest.approx(2 * RUN_S, abs=0.002)
    figures = service.scheduler.requests("sim")
    assert figures is not None
    assert (figures.succeeded, figures.failed, figures.rows, service.scheduler.pending) == (1, 0, 3, 0)
    assert figures.succeeded_s == pytest.approx(2 * RUN_S, abs=0.002)
    assert service.metrics.request_s["http"].total == pytest.approx(2 * RUN_S, abs=0.002)


def test_failed_and_cancelled_requests_are_counted_apart(serve: Serve) -> None:
    service = serve()
    failed, left = service.ask("error"), service.ask()
    service.leave(left)
    service.advance(1.0)
    figures = service.scheduler.requests("sim")
    assert figures is not None and failed.error
    assert (figures.succeeded, figures.failed, figures.rows) == (0, 1, 0)
    assert figures.failed_s == pytest.approx(RUN_S, abs=0.002)
    service.leave(service.ask())
    failures = service.scheduler.failures("sim")
    assert (failures.canceled, failures.other, failures.rejected) == (2, 1, 0)
    assert left.answers == []


def test_a_rejected_request_is_counted_and_leaves_nothing(serve: Serve) -> None:
    service = serve(dag={"max_pending_requests": 2})
    client = Client()
    calls = service.ask_several(2, client)
    with pytest.raises(Overloaded, match=r"^2 requests are pending"):
        service.ask(client=client)
    assert service.scheduler.failures("sim").rejected == 1
    assert (client.pending, service.scheduler.pending) == (2, 2)
    service.advance(1.0)
    assert all(call.body for call in calls)
    assert (client.pending, service.scheduler.pending) == (0, 0)


def test_pending_rows_are_limited(serve: Serve) -> None:
    service = serve(dag={"max_pending_rows": 10})
    service.ask(rows=8)
    with pytest.raises(Overloaded, match=r"dag\.max_pending_rows is 10"):
        service.ask(rows=3)
    service.ask(rows=2)


def test_run_times_let_the_scheduler_reject_what_would_miss_its_deadline(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}})
    service.ask()
    service.advance(1.0)
    service.ask_several(5)
    with pytest.raises(Overloaded, match="the answer is expected in"):
        service.ask(timeout_s=0.3)
    late = service.ask(timeout_s=2.0)
    service.advance(1.0)
    assert late.body


def test_a_request_for_an_unknown_model_is_rejected(serve: Serve) -> None:
    service = serve()
    with pytest.raises(UnknownService, match=r"^there is no model 'other'$"):
        service.ask(model="other")
    assert service.ask(model="sim").answers == []


def test_requests_are_rejected_while_the_service_starts(serve: Serve) -> None:
    service = serve(begins=False)
    service.begin()
    with pytest.raises(NotReady, match=r"^the service is starting; ask /health/ready$"):
        service.ask()
    with pytest.raises(NotReady, match=r"^the service is starting; ask /health/ready$"):
        service.scheduler.check_settled()
    assert not service.scheduler.ready
    service.advance(1.0)
    assert service.scheduler.ready
    service.scheduler.check_settled()
    service.ask()


def test_an_input_that_can_not_be_encoded_leaves_no_request_pending(serve: Serve) -> None:
    service = serve()
    call = service.make()
    call.request.inputs["data"] = object()
    with pytest.raises(TypeError, match="can't be passed on"):
        service.send(call)
    assert (service.scheduler.pending, call.answers) == (0, [])


class Finish:
    """Replaces the answer, and records what happens."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def begin(self) -> None:
        self.calls.append("begin")

    def end(self, answer: Any) -> Any:
        self.calls.append(answer)
        return None if answer is None else [b"finished 1 1"]


def test_the_extra_work_of_a_request_makes_its_answer(serve: Serve) -> None:
    service = serve()
    finish, left = Finish(), Finish()
    call = service.ask(finish=finish)
    dropped = service.ask(finish=left)
    assert finish.calls == ["begin"]
    service.leave(dropped)
    service.advance(1.0)
    assert call.answers == [[b"finished 1 1"]]
    assert finish.calls[1:] and isinstance(finish.calls[1], list)
    assert (left.calls, dropped.answers) == (["begin", None], [])


def test_an_answer_over_the_limit_is_an_error(serve: Serve) -> None:
    service = serve(config={"limits": {"response_bytes": 1000}})
    fits, over = service.ask(size=1000), service.ask(size=1001)
    service.advance(1.0)
    assert len(b"".join(fits.answers[0])) == 1000
    assert isinstance(over.error, UnprintableAnswer)
    assert str(over.error) == "the answer has 1001 bytes, limits.response_bytes allows 1000"


def test_infer_waits_for_the_answer_and_leaves_when_it_is_cancelled(serve: Serve) -> None:
    service = serve()
    answer = service.loop.run_until_complete(service.scheduler.infer(service.make().request))
    assert isinstance(answer, list)
    task = service.run(lambda: asyncio.ensure_future(service.scheduler.infer(service.make().request)))
    service.pass_turns()
    assert service.scheduler.pending == 1
    task.cancel()
    service.pass_turns()
    assert (service.scheduler.pending, task.cancelled()) == (0, True)


def test_profiles_have_the_times_of_each_op(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}, "b": {}}, {"use_profile": True})
    first = service.ask()
    service.advance(0.04)
    second = service.ask()
    service.advance(1.0)
    profiles = []
    for call in (first, second):
        assert call.request.timings is not None
        profiles.append(dict(re.findall(r"([ab]\.\w+);dur=([\d.]+)", call.request.timings.header())))
    # The worker's times are those that the simulated worker sends.
    worker = {"preprocess": "0.001", "process": "0.002", "postprocess": "0.001"}
    for op, queue_ms in (("a", "0.000"), ("b", "0.000")):
        stages = {f"{op}.{stage}": time for stage, time in worker.items()}
        assert profiles[0].items() >= stages.items()
        assert float(profiles[0][f"{op}.queue"]) == pytest.approx(float(queue_ms), abs=0.1)
    assert float(profiles[1]["a.queue"]) == pytest.approx(1000 * (RUN_S - 0.04), abs=0.5)
    without = serve()
    assert without.ask().request.timings is None


# Deadlines:


def test_a_request_expires_at_its_deadline(serve: Serve) -> None:
    service = serve()
    late, other = service.ask(timeout_s=0.05, slow_s=1.0), service.ask(timeout_s=3.0)
    service.advance(0.049)
    assert late.answers == []
    service.advance(0.012)
    assert isinstance(late.error, DeadlineExceeded)
    assert service.scheduler.pending == 1
    service.advance(2.0)
    assert other.body


def test_the_timeout_of_requests_is_the_shorter_of_both(serve: Serve) -> None:
    service = serve(dag={"request_timeout": 5.0})
    deadline, now = service.scheduler.deadline, service.clock.now
    assert (deadline(), deadline(2.0), deadline(9.0)) == (now + 5.0, now + 2.0, now + 5.0)
    assert deadline(2.0, began=100.0) == 102.0
    unlimited = serve(dag={"request_timeout": 0})
    assert unlimited.scheduler.deadline() == math.inf


class Expiring:
    """A DAG run that records when it expires."""

    answered_at = 0.0
    due_key: int | None = None

    def __init__(self, service: SimulatedService, deadlines: Deadlines, after_s: float) -> None:
        self.service = service
        self.expired_at: list[float] = []
        began = service.clock.now
        self.key = service.run(lambda: deadlines.expire_at(self, service.clock.now + after_s))  # type: ignore[arg-type]
        self.began = began

    def get_deadline(self) -> float:
        return self.answered_at + 0.5

    def expire(self) -> None:
        self.expired_at.append(self.service.clock.now - self.began)


def test_deadlines_expire_within_ten_milliseconds_each_once(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    later, sooner = Expiring(service, deadlines, 0.5), Expiring(service, deadlines, 0.2)
    beside, discarded = Expiring(service, deadlines, 0.2), Expiring(service, deadlines, 0.3)
    deadlines.discard(discarded, discarded.key)  # type: ignore[arg-type]
    deadlines.discard(discarded, discarded.key)  # type: ignore[arg-type]
    service.advance(2.0)
    for run, after_s in ((later, 0.5), (sooner, 0.2), (beside, 0.2)):
        (expired_at,) = run.expired_at
        assert after_s <= expired_at <= after_s + 0.011
    assert discarded.expired_at == []
    again = Expiring(service, deadlines, 0.1)
    service.advance(0.2)
    assert len(again.expired_at) == 1, "a timer is set again after all have expired"


def test_the_deadline_of_a_stream_begins_anew_with_each_answer(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    stream = Expiring(service, deadlines, 0.5)
    for _ in range(4):
        service.advance(0.3)
        stream.answered_at = service.clock.now
    service.advance(0.45)
    assert stream.expired_at == []
    service.advance(0.1)
    (expired_at,) = stream.expired_at
    assert 1.7 <= expired_at <= 1.711


def test_a_deadline_that_is_discarded_leaves_those_of_the_same_tick(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    first, second = Expiring(service, deadlines, 0.2), Expiring(service, deadlines, 0.2)
    deadlines.discard(first, first.key)  # type: ignore[arg-type]
    service.advance(0.3)
    assert (len(first.expired_at), len(second.expired_at)) == (0, 1)


def test_a_fault_of_one_expiring_request_does_not_stop_the_others(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    first, second = Expiring(service, deadlines, 0.1), Expiring(service, deadlines, 0.1)
    first.expire = lambda: 1 // 0  # type: ignore[assignment,method-assign]
    service.advance(0.2)
    assert len(second.expired_at) == 1


def test_stopped_deadlines_do_not_expire(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    deadlines.stop()
    run = Expiring(service, deadlines, 0.1)
    deadlines.stop()
    service.advance(0.5)
    assert run.expired_at == []


def test_requests_that_end_in_time_arm_no_timer_of_their_own(serve: Serve) -> None:
    service, deadlines = serve(begins=False), Deadlines()
    runs = [Expiring(service, deadlines, 1.0 + number / 10) for number in range(50)]
    assert len(service.loop.timers()) == 1
    for run in runs:
        deadlines.discard(run, run.key)  # type: ignore[arg-type]
    service.advance(10.0)
    assert service.loop.timers() == []
    assert all(run.expired_at == [] for run in runs)


# Readiness:


def test_a_service_is_ready_while_each_op_has_a_ready_instance(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}, "b": {}})
    scheduler = service.scheduler
    assert scheduler.ready and scheduler.server_ready
    assert scheduler.readiness() == {
        "a": {"ready": 2, "instances": 2},
        "b": {"ready": 1, "instances": 1},
    }
    service.kill(next(worker for worker in service.workers if worker.op == "b"))
    service.pass_turns()
    assert not scheduler.ready and not scheduler.server_ready
    assert (scheduler.op_ready("a"), scheduler.op_ready("b"), scheduler.model_ready("sim")) == (
        True,
        False,
        False,
    )
    service.advance(2.0)
    assert scheduler.ready and scheduler.model_ready("sim") and scheduler.op_ready("b")


def test_an_op_whose_workers_die_again_and_again_is_not_ready(serve: Serve) -> None:
    crashes = [StartPlan(), *(StartPlan("crash") for _ in range(4))]
    service = serve(starts={"a": crashes})
    service.kill(service.workers[0])
    for _ in range(200):
        service.advance(0.05)
        if service.scheduler.pools["a"].in_crash_loop:
            break
    assert not service.scheduler.ready
    service.advance(30.0)
    assert service.scheduler.ready


def test_a_service_that_can_not_start_an_op_ends(serve: Serve) -> None:
    service = serve(begins=False, starts={"a": [StartPlan("raise")] * 4})
    service.begin()
    with pytest.raises(StartFailed, match=r"^Op a can't be started: the simulated start fails$"):
        service.loop.run_until_complete(service.scheduler.until_ready())
    assert service.scheduler.fatal.done()
    service.scheduler.fail_service(StartFailed("another reason"))
    assert service.scheduler.fatal.result().message == "Op a can't be started: the simulated start fails"


def test_a_repository_serves_the_other_models_where_one_can_not_start(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}}, starts={"b": [StartPlan("raise")] * 4}, exit_on_error=False)
    scheduler = service.scheduler
    assert scheduler.start_failures == {"b": "the simulated start fails"}
    assert scheduler.is_unloaded("b") and not scheduler.is_unloaded("a")
    assert not scheduler.ready, "a model without a version can't be served"
    with pytest.raises(NotReady, match=r"^Op b is unloaded; POST /v2/repository/models/sim/load loads it$"):
        service.ask()
    scheduler.offer("b")
    assert scheduler.start_failures == {}
    assert not scheduler.op_ready("b")


@pytest.mark.parametrize(
    ("strict", "unavailable", "ready"),
    [
        (True, {}, True),
        (True, {"m": ("2", "no file")}, False),
        (True, {"m": ("", "no version")}, True),
        (False, {"m": ("2", "no file")}, True),
    ],
    ids=["all are served", "a version is not", "a model without versions", "not strict"],
)
def test_strict_readiness_counts_versions_that_could_not_be_loaded(
    serve: Serve, strict: bool, unavailable: dict[str, tuple[str, str]], ready: bool
) -> None:
    place = RepositoryPlace(("/models",), strict_readiness=strict)
    service = serve(repository=place, unavailable=unavailable, exit_on_error=False)
    assert service.scheduler.ready is ready
    assert service.scheduler.server_ready is ready
    with pytest.raises(UnknownService, match="there is no model ''"):
        service.ask()


# Unloading, loading and the stop:


def test_an_unloaded_op_rejects_requests_and_finishes_those_that_it_has(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    call = service.ask()
    service.advance(0.05)
    withdrawn = service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["b"], 5.0)))
    service.pass_turns()
    assert not withdrawn.done()
    with pytest.raises(NotReady, match=r"^Op b is unloaded"):
        service.ask()
    assert service.scheduler.has_unloaded("sim")
    assert not service.scheduler.ready
    service.advance(0.2)
    assert call.body and withdrawn.done()
    service.scheduler.offer("b")
    assert not service.scheduler.has_unloaded("sim")
    assert service.ask()


def test_a_withdrawal_does_not_wait_for_longer_than_its_timeout(serve: Serve) -> None:
    service = serve()
    service.ask(slow_s=5.0)
    withdrawn = service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["a"], 0.5)))
    service.advance(0.4)
    assert not withdrawn.done()
    service.advance(0.2)
    assert withdrawn.done()


def test_a_withdrawal_waits_for_every_request_of_before_and_for_no_other(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}, "b": {}}, inputs={"a": (), "b": ("a",)})
    calls = service.send(service.make(slow_s=0.5, node="a"), service.make())
    other = service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["unknown"], 5.0)))
    withdrawn = service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["a"], 5.0)))
    service.advance(0.4)
    assert (len(calls[1].answers), withdrawn.done(), other.done()) == (1, False, True)
    service.scheduler.offer("a")
    service.ask(slow_s=3.0)
    service.advance(1.2)
    assert (len(calls[0].answers), withdrawn.done()) == (1, True)


def test_a_withdrawal_waits_for_no_model_that_does_not_need_the_op(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}, "b": {}}, batching={})
    slow, other = service.send(service.make(slow_s=1.0, node="a"), service.make(model="a"))
    withdrawn = service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["b"], 5.0)))
    service.advance(0.5)
    assert other.body and not withdrawn.done()
    service.advance(1.0)
    assert slow.body and withdrawn.done()


def test_an_ensemble_can_be_withdrawn_by_its_key(serve: Serve) -> None:
    service = serve()
    service.run(lambda: asyncio.ensure_future(service.scheduler.withdraw(["sim"], 1.0)))
    service.pass_turns()
    with pytest.raises(
        NotReady, match=r"^model sim is unloaded; POST /v2/repository/models/sim/load loads it$"
    ):
        service.ask()


def test_another_app_takes_over_without_losing_requests(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    scheduler = service.scheduler
    before = service.ask()
    service.advance(0.05)
    nodes = (Node("a", "a", (Edge(REQUEST_OP),)),)
    shorter = replace(service.app, models=(ServedModel("sim", Dag(nodes, "a")),))
    batcher = service.run(lambda: scheduler.batcher("a", shorter))
    service.loop.run_until_complete(batcher.pool.reload(batcher.pool.plan))
    former = service.loop.run_until_complete(scheduler.replace_app(shorter, {"a": batcher}))
    assert [old.op for old in former] == ["b", "a"]
    assert set(scheduler.pools) == {"a"}
    retired = service.run(lambda: asyncio.ensure_future(scheduler.retire(former, 5.0)))
    after = service.ask(model="sim")
    service.advance(5.0)
    assert (before.body, after.body) == ("1 b(a())", "2 a()")
    assert retired.done()
    assert {worker.op for worker in service.workers} == {"a"}
    figures = scheduler.requests("sim")
    assert figures is not None and figures.succeeded == 2, "the totals go on"
    assert figures.failures is scheduler.failures("sim")


def test_a_drain_waits_for_all_requests(serve: Serve) -> None:
    service = serve()
    calls = service.ask_several(2)
    service.scheduler.mark_unready()
    assert not service.scheduler.ready and not service.scheduler.op_ready("a")
    with pytest.raises(NotReady, match=r"^the service is stopping$"):
        service.scheduler.check_settled()
    still = service.ask()
    assert service.loop.run_until_complete(service.scheduler.drain(5.0)) is True
    assert service.now < 1.0
    assert all(call.body for call in [*calls, still])
    assert service.loop.run_until_complete(service.scheduler.drain(5.0)) is True


def test_a_stop_of_an_idle_service_is_drained_at_once(serve: Serve) -> None:
    service = serve()
    service.scheduler.mark_unready()
    service.advance(0.1)
    assert service.loop.run_until_complete(service.scheduler.drain(0.0)) is True


def test_a_drain_ends_with_its_timeout(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    service = serve()
    service.ask(slow_s=9.0)
    service.ask(slow_s=9.0)
    service.scheduler.mark_unready()
    began = service.now
    assert service.loop.run_until_complete(service.scheduler.drain(0.5)) is False
    assert service.now - began == pytest.approx(0.5, abs=0.01)
    assert "2 requests were not answered in drain_timeout (0.5 s)" in caplog.messages


# Metrics of the scheduler:


def test_metrics_tell_queues_instances_and_versions(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}, "b": {}})
    service.ask_several(6, slow_s=1.0)
    service.pass_turns()
    service.ask_several(2)
    text = service.metrics.text().decode()
    assert (
        "# HELP paddlewheel_build_info The version that serves.\n# TYPE paddlewheel_build_info gauge" in text
    )
    for name, description in (
        ("paddlewheel_model_info", "The version of an Op's model, and what runs it."),
        ("paddlewheel_pending_requests", "Admitted, not yet answered."),
        ("paddlewheel_op_queue_length", "Requests queued before an Op."),
        ("paddlewheel_op_ready_instances", "Instances that take requests."),
        ("paddlewheel_resident_bytes", "Resident memory by process."),
    ):
        assert f"# HELP {name} {description}\n# TYPE {name} gauge\n" in text
    assert "# HELP paddlewheel_op_restarts_total Workers replaced.\n" in text
    assert service.gauge("paddlewheel_pending_requests") == 8
    assert service.gauge("paddlewheel_op_ready_instances", op="a") == 2
    assert service.gauge("paddlewheel_op_ready_instances", op="b") == 1
    assert service.gauge("paddlewheel_op_queue_length", op="a") == 4
    assert service.gauge("paddlewheel_op_queue_length", op="b") == 0
    assert service.gauge("paddlewheel_resident_bytes", process="front") > 1e6
    assert service.gauge("paddlewheel_resident_bytes", process="a.1") == 1e8, "of each simulated process"
    assert "paddlewheel_key" not in text
    assert "paddlewheel_gpu" not in text
    assert "paddlewheel_op_chosen" not in text


def test_metrics_name_each_api_key(serve: Serve, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice:alice-0123456789abcdef\nbob:bob-0123456789abcdef pending=1\n", "utf-8")
    keys.chmod(0o600)
    service = serve(config={"security": {"api_keys": str(keys)}})
    assert service.scheduler.keys is not None
    bob = service.scheduler.keys.find(b"bob-0123456789abcdef")
    service.ask(client=bob)
    with pytest.raises(Overloaded):
        service.ask(client=bob)
    for name, description, kind in (
        ("requests_total", "Requests by API key.", "counter"),
        ("refused_total", "Over their key's limits.", "counter"),
        ("pending", "Pending by API key.", "gauge"),
    ):
        text = service.metrics.text().decode()
        assert f"# HELP paddlewheel_key_{name} {description}\n# TYPE paddlewheel_key_{name} {kind}\n" in text
    values = [
        [service.gauge(f"paddlewheel_key_{name}", key=key) for key in ("alice", "bob")]
        for name in ("requests_total", "refused_total", "pending")
    ]
    assert values == [[0, 2], [0, 1], [0, 1]]


def test_metrics_tell_the_engine_that_was_chosen_for_an_op(serve: Serve) -> None:
    timed = Timed("onnxruntime", "fp32", points=[(1, 16, 0.1), (8, 16, 0.2)])
    service = serve({"a": {}, "b": {}}, choices={"b": Choice((timed,))})
    text = service.metrics.text().decode()
    assert (
        "# HELP paddlewheel_op_chosen_rows_per_second What `auto` has chosen: the rows a second that it was "
        "timed at, in batches of about batch_rows.\n# TYPE paddlewheel_op_chosen_rows_per_second gauge\n"
    ) in text
    rows = [line for line in text.splitlines() if line.startswith("paddlewheel_op_chosen_rows_per_second{")]
    assert len(rows) == 1
    labels = {"op": "b", "engine": "onnxruntime", "precision": "fp32", "batch_rows": "8"}
    assert service.gauge("paddlewheel_op_chosen_rows_per_second", **labels) == 40


def test_metrics_tell_the_gpu_memory_of_each_worker(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    used: dict[int, int] = {}
    cards = SimpleNamespace(read_usage=lambda: used)
    monkeypatch.setattr(gauges, "open_gpu_memory", lambda config: cards)
    service = serve({"a": {"concurrency": 2}})
    used[service.workers[1].process.pid] = 5000
    text = service.metrics.text().decode()
    assert (
        "# HELP paddlewheel_gpu_memory_bytes GPU memory by worker.\n"
        "# TYPE paddlewheel_gpu_memory_bytes gauge\n"
    ) in text
    assert service.gauge("paddlewheel_gpu_memory_bytes", process="a.0") == 0
    assert service.gauge("paddlewheel_gpu_memory_bytes", process="a.1") == 5000


def test_figures_of_an_op_outlive_its_batcher(serve: Serve) -> None:
    service = serve()
    figures = service.metrics.of_ops["a"]
    figures.failed = 7
    service.run(lambda: service.scheduler.batcher("a", service.app))
    assert service.metrics.of_ops["a"] is figures
    assert service.gauge("paddlewheel_op_errors_total", op="a") == 7


def test_an_error_for_a_full_service_is_counted_before_the_request_is_parsed(serve: Serve) -> None:
    service = serve(dag={"max_pending_requests": 2})
    client = Client()
    assert find_overload(service, client) is None
    service.ask_several(2, client)
    error = find_overload(service, client)
    assert error is not None and error.http_status == 429
    assert "2 requests are pending" in error.message
    assert service.scheduler.failures("sim").rejected == 1
    service.scheduler.traces.is_on = True
    assert find_overload(service, client) is None, "a refusal has to be traced"


def find_overload(service: SimulatedService, client: Client) -> Overloaded | None:
    error: Overloaded | None = service.run(lambda: service.scheduler.find_overload(client))
    return error


def test_recent_errors_name_the_op_and_the_request(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    for _ in range(2):
        service.ask("error", node="b")
        service.advance(1.0)
    (cause,) = service.scheduler.recent_errors.list_causes()
    assert (cause.model, cause.op, cause.kind, cause.endpoint) == ("sim", "b", "InvalidInput", "http")
    assert (cause.count, cause.http_status, cause.err_no) == (2, 400, 5000)
    assert [request.client_id for request in cause.requests] == ["1", "2"]
    named = service.make("error", node="b")
    named.request.options = named.request.options and named.request.options._replace(id="mine")
    service.send(named)
    service.advance(1.0)
    (cause,) = service.scheduler.recent_errors.list_causes()
    assert cause.requests[-1].client_id == "mine"


def test_an_op_gets_more_instances_while_requests_wait_long(serve: Serve) -> None:
    section = {"batch_size": 1, "max_concurrency": 3, "scale_wait": 0.05}
    service = serve({"a": section})
    pool = service.scheduler.pools["a"]
    assert pool.ready == 1
    calls = []
    for _ in range(40):
        calls += service.ask_several(3)
        service.advance(RUN_S)
    assert pool.ready == 3
    service.advance(20.0)
    assert all(call.answers for call in calls)


class TestWorkersBeside:
    """Workers of another version, beside those that serve."""

    @staticmethod
    def started(service: SimulatedService, live_op: str = "") -> Batcher:
        plan = service.scheduler.pools["a"].plan
        batcher: Batcher = service.run(lambda: service.scheduler.create_batcher_beside("a", plan, live_op))
        service.run(lambda: asyncio.ensure_future(batcher.pool.reload(plan)))
        service.advance(2.0)
        assert batcher.pool.ready == 1
        return batcher

    @staticmethod
    def divert(service: SimulatedService, batcher: Batcher) -> None:
        """Let the workers beside run the requests."""

        class Diverting:
            def pass_on(self, enqueue: Any, *task: Any) -> None:
                batcher.enqueue(*task)

        service.scheduler.mirror("a", Diverting())  # type: ignore[arg-type]

    @pytest.mark.parametrize("live_op", ["", "a"])
    def test_they_run_requests_and_count_those_of_a_live_op(self, serve: Serve, live_op: str) -> None:
        service = serve()
        batcher = self.started(service, live_op)
        self.divert(service, batcher)
        call = service.ask()
        service.advance(1.0)
        assert call.body == "1 a()"
        (served,), (beside,) = service.scheduler.pools["a"].instances, batcher.pool.instances
        assert (served.served, beside.served) == (0, 1)
        assert service.metrics.of_ops["a"].runs == (1 if live_op else 0)
        service.run(lambda: service.scheduler.mirror("a", None))
        service.ask()
        service.advance(1.0)
        assert (served.served, beside.served) == (1, 1)
        service.loop.run_until_complete(batcher.pool.stop(1.0))

    def test_their_failures_do_not_end_the_service(self, serve: Serve) -> None:
        service = serve()
        batcher = self.started(service)
        (worker,) = [worker for worker in service.workers if worker is not service.workers[0]]
        service.kill(worker)
        service.advance(0.01)
        assert (service.scheduler.ready, service.scheduler.fatal.done()) == (True, False)
        service.loop.run_until_complete(batcher.pool.stop(1.0))


def test_an_op_is_idle_without_running_and_queued_requests(serve: Serve) -> None:
    service = serve()
    assert service.scheduler.is_idle("a")
    assert not service.scheduler.is_idle("other")
    service.ask()
    service.advance(RUN_S / 2)
    assert not service.scheduler.is_idle("a")
    service.advance(1.0)
    assert service.scheduler.is_idle("a")


class TestStartsOfSeveralWorkers:
    """A start of a service, and a load, whose workers start at different instants or not at all."""

    PLACE = RepositoryPlace(("/models",), starts=4)
    OPS: ClassVar = {"a": {"concurrency": 2}}

    def begun(self, serve: Serve, *plans: StartPlan, **options: Any) -> SimulatedService:
        """Begin the start of a service whose workers start by these plans, and let two seconds pass."""
        service = serve(self.OPS, begins=False, starts={"a": plans}, exit_on_error=False, **options)
        service.begin()
        service.advance(2.0)
        return service

    @staticmethod
    def load(service: SimulatedService, *plans: StartPlan) -> asyncio.Future[None]:
        """Begin a load of the Op in new workers, which end with the load."""
        service.world.plans["a"] = deque(plans)

        async def load() -> None:
            pool = service.scheduler.batcher("a", service.app).pool
            try:
                await pool.reload(pool.plan)
                await pool.until_complete()
            finally:
                await pool.stop(0.0)

        loading: asyncio.Future[None] = service.run(lambda: asyncio.ensure_future(load()))
        service.advance(2.0)
        return loading

    @pytest.mark.parametrize(("place", "is_over"), [(PLACE, False), (None, True)], ids=["models", "script"])
    def test_a_repository_is_ready_with_its_last_worker_and_a_script_with_its_first(
        self, serve: Serve, place: RepositoryPlace | None, is_over: bool
    ) -> None:
        service = self.begun(serve, StartPlan(), StartPlan(extra_s=10.0), repository=place)
        scheduler = service.scheduler
        assert (scheduler.pools["a"].ready, scheduler.server_ready) == (1, is_over)
        service.advance(10.0)
        assert (scheduler.pools["a"].ready, scheduler.server_ready) == (2, True)

    def test_workers_that_are_never_ready_together_are_enough(self, serve: Serve) -> None:
        service = self.begun(serve, StartPlan(), StartPlan(extra_s=5.0), repository=self.PLACE)
        service.world.plans["a"] = deque([StartPlan("hang")])
        service.kill(next(worker for worker in service.workers if worker.ready))
        service.advance(6.0)
        scheduler = service.scheduler
        assert (scheduler.pools["a"].ready, scheduler.server_ready) == (1, True)

    def test_a_served_model_stays_ready_whose_worker_can_not_start_again(self, serve: Serve) -> None:
        service = self.begun(serve, repository=self.PLACE)
        service.world.plans["a"] = deque(StartPlan("exit") for _ in range(10))
        service.kill(service.workers[0])
        service.advance(30.0)
        scheduler = service.scheduler
        assert (scheduler.pools["a"].ready, scheduler.server_ready) == (1, True)
        assert len(service.world.plans["a"]) < 7, "more starts have failed than end the first load"

    def test_a_load_ends_whose_worker_fails_while_others_become_ready_again_and_again(
        self, serve: Serve
    ) -> None:
        service = self.begun(serve, repository=self.PLACE)
        crashes = [StartPlan("crash"), *([StartPlan("exit"), StartPlan("crash")] * 20)]
        loading = self.load(service, *crashes)
        service.advance(60.0)
        assert loading.done()
        with pytest.raises(StartFailed, match=r"^Op a did not start: exited with 1$"):
            loading.result()
        assert service.scheduler.server_ready and not service.scheduler.start_failures
        assert service.ask(model="sim") and service.scheduler.pools["a"].ready == 2

    def test_a_script_goes_on_with_the_workers_that_start(self, serve: Serve) -> None:
        exits = StartPlan("exit", extra_s=5.0)
        service = self.begun(serve, StartPlan(), exits, exits, StartPlan(), exits, StartPlan())
        pool = service.scheduler.pools["a"]
        for _ in range(FAILED_STARTS_ALLOWED - 1):
            service.advance(5.0)
            assert pool.ready == 1
            service.kill(next(worker for worker in service.workers if worker.ready))  # ready again at once
        service.advance(5.0)
        assert (pool.given_up, service.scheduler.fatal.done()) == (False, False)

    def test_a_load_fails_for_which_no_process_can_be_spawned(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = self.begun(serve, repository=self.PLACE)
        start, started = WorkerProcess.start, list[WorkerProcess]()

        def start_once(process: WorkerProcess) -> None:
            if started:
                raise BlockingIOError("no more processes")
            started.append(process)
            start(process)

        monkeypatch.setattr(WorkerProcess, "start", start_once)
        loading = self.load(service)
        service.kill(service.workers[-1])
        service.advance(4 * MAX_BACKOFF_S)
        assert loading.done()
        with pytest.raises(StartFailed, match="it can't be spawned: no more processes"):
            loading.result()
        assert service.scheduler.pools["a"].ready == 2

    def test_a_load_ends_whose_worker_can_not_be_spawned(
        self, serve: Serve, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        service = self.begun(serve, repository=self.PLACE)
        start = WorkerProcess.start

        def start_the_first(process: WorkerProcess) -> None:
            if process.numbers[0]:
                raise BlockingIOError("no more processes")
            start(process)

        monkeypatch.setattr(WorkerProcess, "start", start_the_first)
        loading = self.load(service)
        assert not loading.done()
        service.advance(3 * MAX_BACKOFF_S)
        assert loading.done() and loading.exception() is None
