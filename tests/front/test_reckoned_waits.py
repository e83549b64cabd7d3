"""What a refusal tells of the wait is reckoned once in a while, not for each of them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.errors import Overloaded
from pipeline.front.http.http_handler import retry_after
from pipeline.front.scheduler.admission import Admission, Client
from pipeline.front.scheduler.batching import Pace


class FullQueue:
    """Before an Op that takes a second for each of ten jobs."""

    idle = False

    def __init__(self) -> None:
        self.pace = Pace()
        self.pace.note(1.0, 1)
        self.reckoned = 0

    def ahead(self, place: object) -> int:
        return 10

    def wait_s(self, ahead: int) -> float:
        self.reckoned += 1
        return float(ahead)

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


def test_pending_rows_are_bounded_and_a_request_alone_may_have_more() -> None:
    dag = SimpleNamespace(order=["op"], nodes={"op": SimpleNamespace(op="op")}, inputs={"op": []}, ops=["op"])
    admission = Admission({"op": FullQueue()}, max_pending=10, max_rows=100)
    large, small = (cast(Any, SimpleNamespace(priority=0, deadline=math.inf, rows=n)) for n in (500, 60))
    client = Client()
    for pending, other in ((large, small), (small, small)):
        admission.admit(pending, cast(Any, dag), client, 0)
        with pytest.raises(Overloaded, match=r"dag\.max_pending_rows is 100"):
            admission.admit(other, cast(Any, dag), client, 1)
        admission.end(pending, client)
    admission.admit(small, cast(Any, dag), client, 0)


@pytest.mark.parametrize(("wait_s", "seconds"), [(0.2, 1), (1.0, 1), (1.2, 2), (11.01, 12)])
def test_retry_after_is_rounded_up_to_whole_seconds(wait_s: float, seconds: int) -> None:
    """A client that comes back earlier than the wait is refused again."""
    assert retry_after(Overloaded("busy", retry_after_s=wait_s)) == b"retry-after: %d\r\n" % seconds
