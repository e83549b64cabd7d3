"""The queue before an Op: which requests run together, when, in which instance, and what follows a death."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pipeline.api.app import App
from pipeline.errors import (
    DeadlineExceeded,
    InvalidInput,
    NotReady,
    Overloaded,
    PoisonRequest,
    UnknownVersion,
    WorkerLost,
)
from pipeline.front.dag_run import Client
from pipeline.front.pool import worker_process
from pipeline.front.pool.plan import Plan, plan
from pipeline.front.scheduler import batcher
from pipeline.front.scheduler import scheduler as scheduler_module
from pipeline.models.serving_model import UNVERSIONED
from tests.simulation.workers import Mode, StartPlan
from tests.support.simulated_service import RUN_S, START_S, Call, SimulatedService

Serve = Callable[..., SimulatedService]


def test_requests_of_one_turn_run_together_and_those_behind_them_wait(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    first = service.ask_several(3)
    service.pass_turns()
    later = service.ask_several(2)
    service.advance(0.01)
    assert service.begun == [[1, 2, 3]]
    assert service.gauge("paddlewheel_op_queue_length", op="a") == 2
    service.advance(1.0)
    assert service.begun == [[1, 2, 3], [4, 5]]
    assert [call.body for call in first + later] == [f"{n} a()" for n in range(1, 6)]


def test_instances_share_what_waits_evenly(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8, "concurrency": 3}})
    service.ask_several(7)
    service.advance(1.0)
    assert sorted(map(len, service.begun)) == [2, 2, 3]
    assert sorted(number for numbers in service.begun for number in numbers) == [*range(1, 8)]


def test_the_instance_that_was_used_last_is_used_next(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}})
    service.ask_several(2)
    service.advance(1.0)
    quick, slow = service.ask(), service.ask(slow_s=0.5)
    service.advance(1.0)
    last_used = service.workers[1]
    before = service.scheduler.pools["a"].processes[1].served
    service.ask()
    service.advance(1.0)
    assert quick.body and slow.body
    assert last_used.op == "a"
    assert service.scheduler.pools["a"].processes[1].served == before + 1


def test_a_queue_delay_holds_a_partial_batch_back_until_it_is_full_or_the_delay_is_over(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 3, "auto_batching_timeout": 50}})
    service.ask()
    service.advance(0.04)
    assert service.begun == []
    service.advance(0.02)
    assert service.begun == [[1]]
    service.advance(1.0)
    service.ask()
    service.advance(0.03)
    service.ask_several(2)
    service.advance(0.01)
    assert service.begun == [[1], [2, 3, 4]]


def test_an_instance_waits_half_a_run_for_the_callers_that_it_has_just_answered(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}}, run_s=0.008)
    service.ask_several(3)
    service.advance(0.0085)
    assert service.begun == [[1, 2, 3]]
    service.ask()
    service.advance(0.002)
    assert service.begun == [[1, 2, 3]], "the other two may ask again"
    service.ask_several(2)
    service.advance(0.0002)
    assert service.begun[1:] == [[4, 5, 6]]
    service.advance(0.0085)
    service.ask()
    service.advance(0.0045)
    assert service.begun[2:] == [[7]], "they did not"


def test_a_higher_priority_runs_first_and_a_flood_last(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}})
    flood, other = Client(), Client()
    service.ask_several(3, flood)
    service.pass_turns()
    service.ask_several(2, flood)
    service.ask(client=other)
    service.ask(client=other, priority=1)
    service.ask(client=flood, priority=0)
    service.advance(2.0)
    assert [number for numbers in service.begun for number in numbers] == [1, 2, 3, 6, 4, 5, 8, 7]


def test_a_request_whose_client_has_left_in_the_queue_is_not_run(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}})
    service.ask()
    service.advance(0.01)
    left, stays = service.ask(), service.ask()
    service.leave(left)
    service.advance(1.0)
    assert service.begun == [[1], [3]]
    assert (left.answers, stays.body) == ([], "3 a()")
    assert service.scheduler.pending == 0


def test_a_refusal_of_the_op_reaches_its_client_alone(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    refused, answered = service.send(service.make("error"), service.make())
    service.advance(1.0)
    assert refused.error.kind == "InvalidInput"
    assert str(refused.error) == "the simulated Op refuses this request"
    assert answered.body == "2 a()"
    assert service.gauge("paddlewheel_op_errors_total", op="a") == 1


# Large requests:


def ask_with_large(service: SimulatedService, large: Sequence[int], count: int) -> list[Call]:
    """Send requests in one turn, with large inputs at some places."""
    array = np.zeros(batcher.LONE_BYTES + 1, np.uint8)
    return service.send(*(service.make(data=array if at in large else None) for at in range(count)))


def test_a_large_request_runs_alone_and_the_others_in_their_order_around_it(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8}})
    calls = ask_with_large(service, [2], 5)
    service.advance(5.0)
    assert service.begun == [[1, 2], [3], [4, 5]]
    assert all(call.body for call in calls)


def test_large_requests_do_not_run_with_each_other(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8}})
    ask_with_large(service, [0, 1], 3)
    service.advance(5.0)
    assert service.begun == [[1], [2], [3]]


@pytest.mark.parametrize(("large", "in_flight"), [([0], 1), ([], 2)], ids=["large", "small"])
def test_no_request_is_sent_behind_a_large_one(serve: Serve, large: list[int], in_flight: int) -> None:
    """Else a quick Op gets its next dispatch before the last one ends."""
    service = serve({"a": {"batch_size": 1}}, run_s=0.001)
    for _ in range(20):  # so that the Op counts as a quick one
        service.ask()
        service.advance(0.01)
    ask_with_large(service, large, 1)
    service.pass_turns()
    service.ask_several(4)
    service.pass_turns()
    (instance,) = service.scheduler.pools["a"].instances
    assert len(instance.in_flight) == in_flight


def test_many_requests_that_are_not_large_share_a_dispatch(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8}})
    half = np.zeros(batcher.LONE_BYTES // 2 + 1, np.uint8)
    service.send(*(service.make(data=half) for _ in range(3)))
    service.advance(5.0)
    assert service.begun == [[1, 2, 3]]


# Deaths of workers:


def test_requests_of_a_killed_worker_run_again_each_alone(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    calls = service.ask_several(3)
    service.advance(0.05)
    service.kill(service.workers[0])
    service.advance(5.0)
    assert service.begun == [[1, 2, 3], [1], [2], [3]]
    assert [call.body for call in calls] == ["1 a()", "2 a()", "3 a()"]
    assert service.gauge("paddlewheel_op_retried_total", op="a") == 3
    assert service.gauge("paddlewheel_op_restarts_total", op="a") == 1


def test_queued_requests_that_have_not_begun_run_together_again(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2}}, mode=Mode.BATCHES)
    calls = service.ask_several(4)
    service.advance(0.05)
    assert service.begun == [[1, 2]]
    service.kill(service.workers[0])
    service.advance(5.0)
    assert service.begun == [[1, 2], [3, 4], [1], [2]]
    assert all(call.body for call in calls)


def test_a_request_that_kills_two_workers_alone_is_rejected_with_the_cause(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    poison, other = service.send(service.make("poison", code=-11), service.make())
    service.advance(10.0)
    assert isinstance(poison.error, PoisonRequest)
    assert str(poison.error) == (
        "the worker of Op a died under this request (killed by SIGSEGV) for the second time, and nothing "
        "else ran there; it is not tried again"
    )
    assert other.body == "2 a()"
    assert service.begun == [[1, 2], [1], [2], [1]]


@pytest.mark.parametrize(
    ("oom_kills", "cause"),
    [
        ([3, 3], "killed by SIGKILL"),
        ([3, 4], "killed by SIGKILL when memory ran out"),
    ],
    ids=["killed", "out of memory"],
)
def test_the_error_says_whether_memory_ran_out(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, oom_kills: list[int], cause: str
) -> None:
    service = serve({"a": {"crash_retry": False}})
    # The next worker notes the counter when it starts, and compares it when it dies.
    monkeypatch.setattr(worker_process, "oom_kills", lambda: oom_kills[0])
    service.kill(service.workers[0])
    service.advance(5.0)
    call = service.ask("poison")
    service.advance(0.01)
    monkeypatch.setattr(worker_process, "oom_kills", lambda: oom_kills[1])
    service.advance(5.0)
    assert isinstance(call.error, WorkerLost)
    assert f"({cause}" in str(call.error)
    assert ("memory" in str(call.error)) is ("memory" in cause)


def test_without_crash_retry_no_request_runs_twice(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4, "crash_retry": False}})
    calls = service.ask_several(2)
    service.advance(0.05)
    service.kill(service.workers[0], 3)
    service.advance(5.0)
    assert service.begun == [[1, 2]]
    for call in calls:
        assert isinstance(call.error, WorkerLost)
        assert str(call.error) == (
            "the worker of Op a died under this request (exited with 3); crash_retry is off for this Op, so "
            "it was not tried again"
        )


def test_without_crash_retry_requests_that_have_not_begun_run_later(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2, "crash_retry": False}}, mode=Mode.BATCHES)
    calls = service.ask_several(4)
    service.advance(0.05)
    service.kill(service.workers[0])
    service.advance(5.0)
    assert [isinstance(call.answers[0], WorkerLost) for call in calls] == [True, True, False, False]
    assert service.begun == [[1, 2], [3, 4]]


def test_a_request_whose_client_has_left_is_not_run_again(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    left, stays = service.ask_several(2)
    service.advance(0.05)
    service.leave(left)
    service.kill(service.workers[0])
    service.advance(5.0)
    assert service.begun == [[1, 2], [2]]
    assert stays.body == "2 a()"


def test_suspects_run_alone_while_new_requests_wait_for_them(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4, "concurrency": 2}})
    service.ask_several(2)
    service.advance(0.05)
    service.kill(next(worker for worker in service.workers if list(worker.begun())))
    later = service.ask_several(2)
    service.advance(5.0)
    assert [1] in service.begun[1:3]
    assert [2] in service.begun[1:3]
    assert all(call.body for call in later)


def test_queued_requests_go_ahead_of_suspects_in_the_successor_of_the_last_worker(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2, "concurrency": 2}}, {"is_thread_op": True})
    (worker,) = service.workers
    assert len(worker.instances) == 2
    service.ask_several(2)
    service.advance(0.05)
    service.kill(worker)
    service.advance(0.4)
    service.ask_several(2)
    service.advance(5.0)
    assert sorted(service.begun[2:4]) == [[3], [4]]
    assert service.begun[4:] == [[1], [2]], "a suspect runs with nothing beside it, in either instance"


def test_a_poisonous_request_costs_queued_requests_one_start_of_a_worker(serve: Serve) -> None:
    """It kills three workers: with its batch, and twice alone. Its batch waits for two starts."""
    service = serve({"a": {"batch_size": 2}}, run_s=0.001)
    poison, neighbour = service.send(service.make("poison"), service.make())
    waits_s = []
    while not (poison.answers and neighbour.answers):
        sent_at, queued = service.now, service.ask()
        while not queued.answers:
            service.advance(0.01)
        waits_s.append(queued.answered_at - sent_at)
    assert isinstance(poison.error, PoisonRequest)
    assert max(waits_s) < 2 * START_S


def test_a_worker_that_is_busy_with_a_large_request_is_not_waited_for(serve: Serve) -> None:
    """Queued requests go ahead of suspects, as if the worker that died had been the only one."""
    service = serve({"a": {"batch_size": 2, "concurrency": 2}}, run_s=0.001)
    service.ask(slow_s=20.0, data=np.zeros(batcher.LONE_BYTES + 1, np.uint8))
    service.pass_turns()
    service.ask("poison")
    service.advance(0.01)
    queued = service.ask()
    service.advance(5.0)
    assert queued.answered_at < 2 * START_S


def test_queued_requests_go_ahead_of_suspects_only_once(serve: Serve) -> None:
    """The next worker runs the suspects first, or requests that kill workers would hold them up for ever."""
    service = serve({"a": {"batch_size": 1}})
    suspect = service.ask()
    service.advance(0.05)
    service.kill(service.workers[0])
    service.ask("poison")
    service.advance(5.0)
    assert service.begun[:4] == [[1], [2], [1], [2]]
    assert suspect.body == "1 a()"


def test_requests_are_rejected_when_no_worker_can_be_started(serve: Serve) -> None:
    failing = [StartPlan(), StartPlan("raise"), StartPlan("raise"), StartPlan("raise"), StartPlan("raise")]
    service = serve({"a": {}}, starts={"a": failing}, exit_on_error=False)
    service.kill(service.workers[0])
    waiting = service.ask()
    service.advance(60.0)
    assert isinstance(waiting.error, NotReady)
    assert str(waiting.error) == "Op a has no worker left and none can be started: the service ends"
    assert service.scheduler.pending == 0


# Time limits:


def test_a_call_over_the_timeout_of_its_op_is_abandoned(serve: Serve) -> None:
    service = serve({"a": {"timeout": 300}})
    slow = service.ask(slow_s=1.0)
    service.advance(0.2)
    waiting = service.ask()
    service.advance(0.2)
    assert isinstance(slow.error, DeadlineExceeded)
    assert str(slow.error) == (
        "[a] took more than op.a.timeout (300 ms): the call is abandoned, and its instance is replaced "
        "unless the call ends before that"
    )
    assert slow.answered_at == pytest.approx(0.3, abs=0.01)
    service.advance(3.0)
    assert waiting.body == "2 a()"
    assert service.gauge("paddlewheel_op_abandoned_total", op="a") == 1


def test_a_call_over_the_timeout_is_tried_as_often_as_configured(serve: Serve) -> None:
    service = serve({"a": {"timeout": 300, "retry": 2, "concurrency": 2}})
    slow = service.ask(slow_s=5.0)
    service.advance(3.0)
    assert service.begun == [[1], [1]]
    assert str(slow.error).startswith("[a] took more than op.a.timeout (300 ms) in each of 2 tries: ")
    assert slow.answered_at == pytest.approx(0.6, abs=0.02)


def test_the_answer_of_an_abandoned_call_is_dropped(serve: Serve) -> None:
    service = serve({"a": {"timeout": 300, "retry": 2, "concurrency": 2}})
    call = service.ask(slow_s=0.25)
    service.advance(5.0)
    assert service.begun == [[1], [1]]
    assert isinstance(call.error, DeadlineExceeded), "the second try takes as long"
    assert len(call.answers) == 1


def test_with_a_timeout_a_dispatch_has_one_batch(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2, "timeout": 2000}})
    service.ask_several(6)
    service.advance(2.0)
    assert service.begun == [[1, 2], [3, 4], [5, 6]]
    without = serve({"a": {"batch_size": 2}})
    without.ask_several(6)
    without.advance(2.0)
    assert without.begun == [[1, 2, 3, 4], [5, 6]]


def test_the_run_of_an_instance_that_hangs_moves_to_another(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}})
    service.ask_several(2)
    service.advance(1.0)
    hangs = service.ask("hang", node="a")
    service.advance(9.0)
    assert service.begun[2:] == [[3]]
    service.advance(6.0)
    assert service.begun[2:4] == [[3], [3]], "its own run was taken for the fault of the process"
    assert service.gauge("paddlewheel_op_moved_total", op="a") == 1
    assert hangs.answers == []


def test_requests_leave_an_instance_that_hangs_in_a_probe_before_it_is_killed(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "probe_interval": 1.0}})
    service.ask_several(2)
    for worker in service.workers:
        if worker.name == "a.0":
            worker.quirks.probe = "hang"
    service.advance(2.5)
    service.begun.clear()
    requests = service.ask_several(4)
    service.advance(4.0)
    assert sorted(number for batch in service.begun for number in batch) == [3, 4, 5, 6]
    assert all(request.answers for request in requests)


def test_requests_of_a_stopped_worker_move_to_another_and_the_worker_is_killed(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 2}})
    service.ask_several(4)
    service.advance(1.0)
    service.begun.clear()
    calls = service.ask_several(1)
    service.advance(0.01)
    stopped = next(worker for worker in service.workers if worker.begun())
    service.run(stopped.process.stop)
    service.advance(3.0)
    assert calls[0].body == "5 a()"
    assert service.begun == [[5], [5]]
    service.advance(5.0)
    assert stopped not in service.workers
    assert service.gauge("paddlewheel_op_restarts_total", op="a") == 1


def test_moved_requests_add_up(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}})
    for moved in (1, 2):
        call = service.ask()
        service.advance(0.01)
        (stopped,) = [worker for worker in service.workers if worker.begun()]
        service.run(stopped.process.stop)
        service.advance(12.0)
        assert call.body
        assert service.gauge("paddlewheel_op_moved_total", op="a") == moved


def test_requests_behind_a_late_run_move_to_an_idle_instance(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}}, mode=Mode.BATCHES)
    service.ask_several(2)
    service.advance(1.0)
    service.begun.clear()
    slow, quick = service.send(service.make(slow_s=3.0), service.make())
    behind = service.ask()
    service.advance(2.0)
    assert (quick.body, behind.body) == ("4 a()", "5 a()")
    assert slow.answers == []
    service.advance(2.0)
    assert slow.body == "3 a()"


def test_requests_move_as_soon_as_the_run_before_them_is_late(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}}, mode=Mode.BATCHES)
    service.ask_several(2)
    service.advance(1.0)
    service.begun.clear()
    began = service.now
    calls = service.send(service.make(slow_s=3.0), service.make(), service.make())
    late_s = 2 * RUN_S + 0.02
    service.advance(late_s - 0.005)
    assert sorted(service.begun) == [[3], [5]]
    service.advance(0.01)
    assert sorted(service.begun) == [[3], [4], [5]]
    service.advance(1.0)
    assert calls[1].answered_at - began == pytest.approx(late_s + RUN_S, abs=0.005)


def test_requests_of_a_slow_model_stay_behind_a_run_that_is_not_late(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 1}}, mode=Mode.BATCHES, run_s=2.0)
    service.ask_several(2)
    service.advance(5.0)
    service.begun.clear()
    service.send(service.make(slow_s=1.5), service.make(), service.make())
    service.advance(3.4)
    assert sorted(service.begun) == [[3], [5]]
    service.advance(0.2)
    assert sorted(service.begun) == [[3], [4], [5]]


def test_with_one_instance_requests_stay_behind_a_late_run(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}}, mode=Mode.BATCHES)
    service.ask()
    service.advance(1.0)
    slow, behind = service.send(service.make(slow_s=3.0), service.make())
    service.advance(3.0)
    (instance,) = service.scheduler.pools["a"].instances
    assert not instance.in_flight[0].recalled
    service.advance(1.0)
    assert slow.body and behind.body


# Queue policies of a model (`dynamic_batching`):


def policy(**settings: Any) -> dict[str, Any]:
    return {"default_queue_policy": settings}


def test_a_request_over_its_queue_timeout_is_rejected(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}}, batching=policy(default_timeout_microseconds=50_000))
    runs, late = service.ask(model="a"), service.ask(model="a")
    service.advance(0.04)
    assert late.answers == []
    service.advance(0.02)
    assert isinstance(late.error, DeadlineExceeded)
    assert str(late.error) == "the request has waited as long as its model's queue policy allows"
    service.advance(1.0)
    assert runs.body == "1 a()", "a request that runs is not rejected"
    assert service.begun == [[1]]


def test_a_request_may_ask_for_a_shorter_queue_timeout(serve: Serve) -> None:
    service = serve(
        {"a": {"batch_size": 1}},
        batching=policy(default_timeout_microseconds=80_000, allow_timeout_override=True),
    )
    service.ask(model="a")
    short, long = service.ask(model="a", queue_timeout_us=20_000), service.ask(model="a")
    service.advance(0.03)
    assert (len(short.answers), len(long.answers)) == (1, 0)
    service.advance(0.06)
    assert len(long.answers) == 1


def test_a_delayed_request_waits_behind_the_others(serve: Serve) -> None:
    service = serve(
        {"a": {"batch_size": 1}},
        batching=policy(default_timeout_microseconds=60_000, timeout_action="DELAY"),
    )
    service.ask(model="a")
    service.advance(0.01)
    delayed = service.ask(model="a")
    service.advance(0.05)
    service.ask(model="a")
    service.advance(2.0)
    assert service.begun == [[1], [3, 2]]
    assert delayed.body == "2 a()"


def test_a_full_queue_of_a_model_rejects_what_no_idle_instance_takes(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}}, batching=policy(max_queue_size=2))
    calls = service.ask_several(4, model="a")
    service.pass_turns()
    assert [len(call.answers) for call in calls] == [0, 0, 0, 1]
    assert isinstance(calls[3].error, Overloaded)
    assert str(calls[3].error) == "max_queue_size of model a is 2"
    last, more = service.ask_several(2, model="a")
    service.pass_turns()
    assert (last.answers, isinstance(more.error, Overloaded)) == ([], True)
    service.advance(1.0)
    assert [len(call.answers) for call in calls] == [1, 1, 1, 1]


def test_preferred_sizes_leave_at_once_and_others_after_the_delay(serve: Serve) -> None:
    service = serve(
        {"a": {"batch_size": 8, "auto_batching_timeout": 50}}, batching={"preferred_batch_size": [2, 4]}
    )
    service.ask(model="a")
    service.advance(0.01)
    assert service.begun == []
    service.ask_several(4, model="a")
    service.advance(0.01)
    assert service.begun == [[1, 2, 3, 4]]
    service.advance(1.0)
    assert service.begun == [[1, 2, 3, 4], [5]]


def test_a_model_of_rows_fills_its_batch_by_rows(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8, "auto_batching_timeout": 50}}, batching={})
    service.ask(model="a", rows=5)
    service.advance(0.01)
    assert service.begun == []
    service.ask(model="a", rows=3)
    service.advance(0.01)
    assert service.begun == [[1, 2]]


def test_a_request_of_another_shape_lets_a_delayed_batch_leave_and_waits_itself(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8, "auto_batching_timeout": 500}}, batching={})
    service.ask_several(2, model="a", batch_key=((3,),))
    service.advance(0.1)
    assert service.begun == []
    service.ask(model="a", batch_key=((4,),))
    service.advance(0.2)
    assert service.begun == [[1, 2]]
    service.ask(model="a", batch_key=((4,),))
    service.advance(0.15)
    assert service.begun == [[1, 2]]
    service.advance(1.0)
    assert service.begun == [[1, 2], [3, 4]]


def test_requests_of_another_shape_are_no_part_of_a_preferred_batch(serve: Serve) -> None:
    service = serve(
        {"a": {"batch_size": 8, "auto_batching_timeout": 500}}, batching={"preferred_batch_size": [2]}
    )
    service.send(*(service.make(model="a", batch_key=((length,),)) for length in (3, 4)))
    service.advance(0.1)
    assert service.begun == [[1]]
    service.advance(1.0)
    assert service.begun == [[1], [2]]


def test_a_full_queue_counts_the_requests_of_a_delayed_batch(serve: Serve) -> None:
    delayed = policy(max_queue_size=2)
    service = serve({"a": {"batch_size": 8, "auto_batching_timeout": 50}}, batching=delayed)
    calls = [service.ask(model="a") for _ in range(3)]
    service.pass_turns()
    assert [len(call.answers) for call in calls] == [0, 0, 1]
    assert str(calls[2].error) == "max_queue_size of model a is 2"
    service.advance(1.0)
    assert service.begun == [[1, 2]]


def test_answers_keep_the_order_of_the_requests_where_the_model_says_so(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1, "concurrency": 2}}, batching={"preserve_ordering": True})
    slow, quick = service.send(service.make(slow_s=1.0, model="a"), service.make(model="a"))
    service.advance(0.5)
    assert (slow.answers, quick.answers) == ([], [])
    service.advance(1.0)
    assert (slow.body, quick.body) == ("1 a()", "2 a()")
    assert quick.answered_at == pytest.approx(1.0 + RUN_S, abs=0.01)


def test_a_request_that_has_left_holds_no_answer_back(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1, "concurrency": 3}}, batching={"preserve_ordering": True})
    left, failed, quick = service.send(
        service.make(slow_s=5.0, model="a"), service.make("error", model="a"), service.make(model="a")
    )
    service.advance(0.5)
    assert (failed.answers, quick.answers) == ([], [])
    service.leave(left)
    later = service.ask(model="a")
    service.advance(0.5)
    assert isinstance(failed.error.kind, str) and failed.error.kind == InvalidInput.__name__
    assert (quick.body, later.body) == ("3 a()", "4 a()")


# What the admission and the health pages learn from a batcher:


def test_an_instance_that_has_run_for_long_is_not_ready(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2}})
    service.ask_several(2)
    service.advance(1.0)
    assert service.scheduler.readiness() == {"a": {"ready": 2, "instances": 2}}
    service.ask(slow_s=60.0)
    service.advance(9.0)
    assert service.scheduler.readiness()["a"]["ready"] == 2
    service.advance(2.0)
    assert service.scheduler.readiness()["a"]["ready"] == 1
    assert service.scheduler.ready


def test_a_run_timeout_shortens_the_time_after_which_an_instance_is_not_ready(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 2, "run_timeout": 20.0}})
    service.ask_several(2)
    service.advance(1.0)
    service.ask(slow_s=15.0)
    service.advance(4.9)
    assert service.scheduler.readiness()["a"]["ready"] == 2
    service.advance(0.3)
    assert service.scheduler.readiness()["a"]["ready"] == 1


def test_the_expected_wait_follows_queue_instances_and_late_runs(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}})
    batcher = service.scheduler._batchers["a"]
    assert batcher.idle
    assert (batcher.rows_ahead(None), batcher.wait_s(5)) == (0, 0.0)
    service.ask()
    service.advance(1.0)
    service.ask(slow_s=1.0, rows=10)
    service.pass_turns()
    assert not batcher.idle
    service.ask_several(3)
    assert batcher.rows_ahead(None) == 13
    assert batcher.rows_ahead((0, 0)) == 10
    row_s = batcher.pace.per_row_s
    assert row_s == pytest.approx(RUN_S, rel=0.01)
    assert service.run(lambda: batcher.wait_s(4)) == pytest.approx(4 * row_s)
    service.advance(0.6)
    assert service.run(lambda: batcher.wait_s(4)) == pytest.approx(4 * row_s + 0.5, abs=0.01)


def test_the_expected_wait_is_shared_by_the_instances_that_work(serve: Serve) -> None:
    service = serve({"a": {"concurrency": 3}})
    service.ask_several(3)
    service.advance(1.0)
    batcher = service.scheduler._batchers["a"]
    row_s = batcher.pace.per_row_s
    assert service.run(lambda: batcher.wait_s(6)) == pytest.approx(2 * row_s)


def test_figures_of_an_op_count_its_waits_runs_and_errors(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 1}})
    service.send(service.make("error"), service.make("error"))
    service.advance(0.05)
    service.ask()
    service.advance(1.0)
    assert service.gauge("paddlewheel_op_errors_total", op="a") == 2
    assert service.metrics.of_ops["a"].failures.other == 2
    assert service.gauge("paddlewheel_op_queue_seconds_count", op="a") == 3
    assert service.gauge("paddlewheel_op_queue_seconds_sum", op="a") == pytest.approx(0.05, abs=0.001)
    assert service.gauge("paddlewheel_op_tokens_total", op="a") == 3, "each simulated request has one token"


def test_the_pace_knows_into_how_many_runs_a_worker_cuts_a_dispatch(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 2}}, mode=Mode.BATCHES, run_s=1.0)
    service.ask_several(4)
    service.advance(5.0)
    pace = service.scheduler._batchers["a"].pace
    assert pace.most_tasks == 2 * 2, "two runs of two requests"
    assert pace.run_s == pytest.approx(2.0, abs=0.01)


def test_the_pace_counts_a_timeout_as_long_as_the_timeout(serve: Serve) -> None:
    service = serve({"a": {"timeout": 300}})
    for _ in range(2):
        service.ask(slow_s=0.5)
        service.advance(3.0)
    assert service.scheduler._batchers["a"].pace.run_s == pytest.approx(0.3)
    assert service.gauge("paddlewheel_op_abandoned_total", op="a") == 2


def test_a_request_is_admitted_behind_a_stream_of_any_length(serve: Serve) -> None:
    """The length of earlier streams says nothing about the next one, and each answer is progress."""
    service = serve({"a": {}})
    service.ask()
    service.advance(1.0)
    for answers in (40, 30):
        stream = service.make("stream", size=answers)
        stream.request.stream = lambda answer, acknowledge: acknowledge()
        service.send(stream)
        service.advance(20.0)
        assert service.scheduler.op_ready("a")
        call = service.ask(timeout_s=25.0)
        service.advance(30.0)
        assert call.body
    pace = service.scheduler._batchers["a"].pace
    assert pace.first_s == pytest.approx(RUN_S, rel=0.1)
    assert pace.run_s > 10 * RUN_S


@pytest.mark.parametrize(("run_s", "dispatches"), [(0.004, 2), (0.1, 1)], ids=["fast", "slow"])
def test_a_fast_model_gets_its_next_dispatch_while_it_runs(
    serve: Serve, run_s: float, dispatches: int
) -> None:
    service = serve({"a": {"batch_size": 1}}, run_s=run_s)
    (instance,) = service.scheduler.pools["a"].instances
    service.ask()
    service.advance(1.0)
    service.ask()
    service.advance(0.001)
    service.ask()
    service.pass_turns()
    assert len(instance.in_flight) == dispatches
    service.advance(1.0)
    assert service.begun == [[1], [2], [3]]


@pytest.mark.parametrize(("after_s", "dispatches"), [(0.037, 2), (0.022, 1)], ids=["nearly", "half"])
def test_the_next_dispatch_follows_one_that_is_nearly_answered(
    serve: Serve, after_s: float, dispatches: int
) -> None:
    service = serve({"a": {"batch_size": 1}}, run_s=0.02, mode=Mode.BATCHES)
    (instance,) = service.scheduler.pools["a"].instances
    service.ask_several(2)
    service.advance(1.0)
    service.ask_several(2)
    service.advance(after_s)
    service.ask_several(3)
    service.pass_turns()
    assert len(instance.in_flight) == dispatches


def test_requests_that_can_not_be_sent_are_answered_with_the_reason(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    service = serve()
    call = service.ask(wish=object())
    service.advance(0.1)
    assert call.error.message.startswith("the request can't be handed to Op a: ")
    assert "object" in call.error.message
    assert "Op a: a dispatch of 1 requests can't be sent" in caplog.messages
    other = service.ask()
    service.advance(1.0)
    assert other.body == "2 a()"


def test_large_inputs_reach_the_worker(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    call = service.make()
    call.request.inputs["data"] = np.full(20_000, 7, np.uint8)
    service.send(call)
    service.advance(1.0)
    assert bytes(call.answers[0][0]).startswith(b"1 b(a()) 7 ")


def test_a_dispatch_that_the_socket_does_not_take_at_once_is_sent_on(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 8}}, socket_bytes=1000)
    calls = [service.make() for _ in range(8)]
    for call in calls:
        call.request.inputs["padding"] = "x" * 3000
    service.send(*calls)
    service.advance(1.0)
    assert [call.body for call in calls] == [f"{number} a()" for number in range(1, 9)]


@pytest.fixture
def versioned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each Op run version 3 of a model."""

    def plan_of_version(app: App, op: str) -> Plan:
        return replace(plan(app, op), version="3", engine="onnxruntime")

    monkeypatch.setattr(scheduler_module, "plan", plan_of_version)


@pytest.mark.usefixtures("versioned")
def test_a_request_for_another_version_than_the_worker_runs_is_rejected(serve: Serve) -> None:
    service = serve({"a": {"batch_size": 4}})
    other, same, padded, none = service.send(*(service.make(version=v) for v in ("4", "3", "03", "")))
    service.advance(1.0)
    alone = service.ask(version="4")
    service.advance(1.0)
    assert isinstance(other.error, UnknownVersion)
    assert isinstance(alone.error, UnknownVersion)
    assert all(call.body and call.request.model_version == "3" for call in (same, padded, none))
    assert service.begun == [[2, 3, 4]]
    assert service.scheduler.version("sim") == "3"
    assert service.gauge("paddlewheel_model_info", op="a", version="3", engine="onnxruntime") == 1


@pytest.mark.usefixtures("versioned")
def test_a_dag_of_several_models_has_no_version(serve: Serve) -> None:
    service = serve({"a": {}, "b": {}})
    call = service.ask(version="4")
    service.advance(1.0)
    assert call.body
    assert (call.request.model_version, service.scheduler.version("sim")) == ("", UNVERSIONED)


def test_the_size_of_a_model_queue_is_counted_by_priority(serve: Serve) -> None:
    batching = {
        "default_queue_policy": {"max_queue_size": 1},
        "priority_queue_policy": {"3": {"max_queue_size": 2}},
    }
    service = serve({"a": {"batch_size": 1}}, batching=batching)
    service.ask(model="a", priority=1)
    service.advance(0.01)
    calls = [service.ask(model="a", priority=priority) for priority in (1, 2, 3, 3, 1, 2, 3)]
    service.pass_turns()
    assert [len(call.answers) for call in calls] == [0, 0, 0, 0, 1, 1, 1]
    assert str(calls[4].error) == "max_queue_size of model a is 1"
    assert str(calls[6].error) == "max_queue_size of model a is 2"


def test_a_retry_keeps_its_place_in_the_order_of_answers(serve: Serve) -> None:
    service = serve(
        {"a": {"batch_size": 1, "concurrency": 2, "timeout": 300, "retry": 2}},
        batching={"preserve_ordering": True},
    )
    slow, quick = service.send(service.make(slow_s=5.0, model="a"), service.make(model="a"))
    service.advance(0.5)
    assert (slow.answers, quick.answers) == ([], [])
    service.advance(0.5)
    assert isinstance(slow.error, DeadlineExceeded)
    assert quick.answered_at == pytest.approx(slow.answered_at)


@pytest.mark.parametrize(
    ("kind", "cause", "runs"),
    [
        ("hang", "seems to hang: its run makes no progress and uses no CPU", [[6, 7], [6]]),
        ("stop", "is stopped (SIGSTOP) in a run", [[6, 7], [6, 7]]),
    ],
)
def test_moved_requests_run_alone_only_where_they_may_be_the_cause(
    serve: Serve, caplog: pytest.LogCaptureFixture, kind: str, cause: str, runs: list[list[int]]
) -> None:
    service = serve({"a": {"concurrency": 2, "batch_size": 2}})
    service.ask_several(4)
    service.advance(1.0)
    service.ask(slow_s=0.5)  # one instance is busy, so that both requests go to the other
    service.advance(0.2)
    service.begun.clear()
    service.send(service.make("hang" if kind == "hang" else "answer"), service.make())
    service.advance(0.01)
    (worker,) = [worker for worker in service.workers if [6, 7] in [some for some, _ in worker.begun()]]
    if kind == "stop":
        service.run(worker.process.stop)
    with caplog.at_level(logging.WARNING):
        service.advance(13.0)
    assert service.begun[:2] == runs
    assert service.gauge("paddlewheel_op_moved_total", op="a") == 2
    assert (
        f"Worker {worker.name} (pid {worker.process.pid}) {cause}; other instances run 2 of its requests, "
        "2 for the second time"
    ) in caplog.messages


@pytest.mark.parametrize(("run_s", "size"), [(0.004, 4), (0.1, 2)], ids=["fast", "slow"])
def test_a_fast_model_gets_more_batches_in_a_dispatch(serve: Serve, run_s: float, size: int) -> None:
    service = serve({"a": {"batch_size": 1}}, run_s=run_s)
    service.ask()
    service.advance(1.0)
    service.ask_several(8)
    service.advance(2.0)
    assert len(service.begun[1]) == size


def test_the_build_info_is_one(serve: Serve) -> None:
    assert serve().gauge("paddlewheel_build_info") == 1
