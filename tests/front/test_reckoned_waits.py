"""What a refusal tells of the wait is reckoned once in a while, not for each of them."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.errors import Overloaded
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
    asked = cast(Any, SimpleNamespace(priority=0, deadline=math.inf))
    for _ in range(1000):
        with pytest.raises(Overloaded, match=r"10 requests are pending.* try again in 11\.0 s") as refused:
            admission.admit(asked, cast(Any, dag), Client(), 10)
        assert refused.value.retry_after_s == 11.0
    assert queue.reckoned < 500
