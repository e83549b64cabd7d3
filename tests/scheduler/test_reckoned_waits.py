"""What a refusal tells of the wait is reckoned once in a while, not for each of them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.errors import Overloaded
from pipeline.front.dag_run import Client, TaskQueue
from pipeline.front.http.http_handler import retry_after
from pipeline.front.scheduler.admission import Admission
from pipeline.front.scheduler.batcher import Batcher, Pace
from tests.scheduler.conftest import Clock


class FullQueue:
    """Before an Op that takes a second for each of ten tasks."""

    idle = False

    def __init__(self) -> None:
        self.pace = Pace()
        self.pace.record(1.0, 1)
        self.reckoned = 0

    def rows_ahead(self, place: object) -> int:
        return 10

    def wait_s(self, rows: int) -> float:
        self.reckoned += 1
        return float(rows)

    def last(self) -> None:
        return None


def test_refusals_in_a_row_share_a_reckoning() -> None:
    queue = FullQueue()
    dag = SimpleNamespace(order=["op"], nodes={"op": SimpleNamespace(op="op")}, inputs={"op": []}, ops=["op"])
    admission = Admission({"op": queue}, max_pending=10)
    asked = cast(Any, SimpleNamespace(priority=0, deadline=math.inf, rows=1))
    for _ in range(1000):
        with pytest.raises(Overloaded, match=r"10 requests are pending.* try again in 11\.0 s") as refused:
            admission.admit(asked, cast(Any, dag), Client(), 10)
        assert refused.value.retry_after_s == 11.0
    assert queue.reckoned < 500


class QueueOfRows(FullQueue):
    """Before an Op that takes 10 ms for each row."""

    def __init__(self) -> None:
        super().__init__()
        self.pace = Pace()
        self.pace.record(1.0, tasks=1, rows=100)
        self.rows = 0

    def rows_ahead(self, place: object) -> int:
        return self.rows

    def wait_s(self, rows: int) -> float:
        return rows * self.pace.per_row_s


def test_the_expected_wait_counts_the_rows_of_the_requests_ahead(clock: Clock) -> None:
    queue = QueueOfRows()
    admission = Admission({"op": queue}, max_pending=10)
    admission.update_paces()
    dag = SimpleNamespace(order=["op"], nodes={"op": SimpleNamespace(op="op")}, inputs={"op": []}, ops=["op"])

    def admit(rows: int, left_s: float) -> None:
        request = SimpleNamespace(priority=0, deadline=clock.now + left_s, rows=rows)
        admission.admit(cast(Any, request), cast(Any, dag), Client(), pending=1 if queue.rows else 0)
        queue.rows += rows

    admit(1000, left_s=60.0)  # takes 10 s
    with pytest.raises(Overloaded, match=r"expected in 16\.500 s, and the request has 16\.000 s left"):
        admit(1, left_s=16.0)
    admit(1, left_s=17.0)
    clock.now += 20.0
    queue.rows = 0
    admit(1, left_s=2.0)


def test_a_dispatch_counts_for_each_of_its_rows() -> None:
    pace = Pace()
    for _ in range(100):
        pace.record(0.001, 1)
        pace.record(0.032, 2, rows=32)
    assert pace.per_row_s == pytest.approx(0.001)
    assert pace.per_task_s == pytest.approx(0.011, rel=0.05)


def test_rows_ahead_are_those_in_line_and_those_under_way() -> None:
    line = TaskQueue()
    for turn, rows in enumerate((1, 1000, 10)):
        request = SimpleNamespace(priority=0, turn=turn)
        task = SimpleNamespace(dag_run=SimpleNamespace(request=request), late=False, number=turn, rows=rows)
        line.insert(cast(Any, task))
    in_flight = [SimpleNamespace(rows=100, abandoned=False), SimpleNamespace(rows=5, abandoned=True)]
    pool = SimpleNamespace(instances=[SimpleNamespace(in_flight=in_flight)])
    batcher = cast(Batcher, SimpleNamespace(_queue=line, _suspects=[SimpleNamespace(rows=3)], pool=pool))
    assert Batcher.rows_ahead(batcher, None) == 1011 + 3 + 100
    assert Batcher.rows_ahead(batcher, (0, 2)) == 1001 + 100


def test_pending_rows_are_bounded_and_a_request_alone_may_have_more() -> None:
    dag = SimpleNamespace(order=["op"], nodes={"op": SimpleNamespace(op="op")}, inputs={"op": []}, ops=["op"])
    admission = Admission({"op": FullQueue()}, max_pending=10, max_rows=100)
    large, small = (cast(Any, SimpleNamespace(priority=0, deadline=math.inf, rows=n)) for n in (500, 60))
    client = Client()
    for pending, other in ((large, small), (small, small)):
        admission.admit(pending, cast(Any, dag), client, 0)
        with pytest.raises(Overloaded, match=r"dag\.max_pending_rows is 100"):
            admission.admit(other, cast(Any, dag), client, 1)
        admission.end_request(pending, client)
    admission.admit(small, cast(Any, dag), client, 0)


@pytest.mark.parametrize(("wait_s", "seconds"), [(0.2, 1), (1.0, 1), (1.2, 2), (11.01, 12)])
def test_retry_after_is_rounded_up_to_whole_seconds(wait_s: float, seconds: int) -> None:
    """A client that comes back earlier than the wait is refused again."""
    assert retry_after(Overloaded("busy", retry_after_s=wait_s)) == b"retry-after: %d\r\n" % seconds
