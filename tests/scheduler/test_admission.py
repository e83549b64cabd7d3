"""Which requests the service accepts, how long rejected clients wait, and whose request is next."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pipeline.api.dag import Dag, Edge, Node
from pipeline.errors import DeadlineExceeded, Overloaded, ServingError
from pipeline.front.dag_run import Client, FairQueue
from pipeline.front.scheduler.admission import Admission
from pipeline.front.scheduler.batcher import Pace
from tests.scheduler.conftest import Clock

CHAIN = Dag((Node("a", "a", (Edge("@request"),)), Node("b", "b", (Edge("a"),))), "b", source="@request")
SINGLE = Dag((Node("a", "a", (Edge("@request"),)),), "a", source="@request")
JOIN = Dag(
    (
        Node("a", "a", (Edge("@request"),)),
        Node("b", "b", (Edge("a"),)),
        Node("c", "c", (Edge("a"),)),
        Node("d", "d", (Edge("b"), Edge("c"))),
    ),
    "d",
    source="@request",
)


class Queue:
    """A queue before an Op that takes `run_s` for each request of one row."""

    def __init__(self, run_s: float = 1.0, rows: int = 0, idle: bool = False) -> None:
        self.pace = Pace()
        if run_s:
            self.pace.record(run_s, 1)
        self.rows = rows
        self.idle = idle
        self.places: list[tuple[int, int] | None] = []
        self.rows_before = 0  # of those before a place that is not the last
        self.last_in_line: Any = None

    def rows_ahead(self, place: tuple[int, int] | None) -> int:
        self.places.append(place)
        return self.rows if place is None else self.rows_before

    def wait_s(self, rows: int) -> float:
        return rows * self.pace.per_row_s

    def last(self) -> Any:
        return self.last_in_line


def task(client: Client | None, priority: int, end: Callable[[Any], None]) -> Any:
    """Return the last task of a queue; `end` is called when its request is rejected."""
    request = SimpleNamespace(client=client, priority=priority)
    return SimpleNamespace(dag_run=SimpleNamespace(request=request, end=end))


def request(left_s: float = math.inf, priority: int = 0, rows: int = 1) -> Any:
    return SimpleNamespace(priority=priority, deadline=100.0 + left_s, rows=rows)


def admission_of(queues: dict[str, Queue], max_pending: int = 100, **limits: int) -> Admission:
    admission = Admission(cast(Any, queues), max_pending, **limits)
    admission.update_paces()
    return admission


def expected_wait_s(admission: Admission, dag: Dag, pending: int, **options: Any) -> float:
    """The wait that the rejection of a request with a too short deadline tells."""
    with pytest.raises(Overloaded, match=r"expected in [\d.]+ s") as refused:
        admission.admit(request(1e-6, **options), dag, Client(), pending)
    return float(str(refused.value).partition("expected in ")[2].split()[0])


def test_at_the_maximum_the_error_of_a_client_is_known_before_its_request() -> None:
    queue = Queue()
    admission, client = admission_of({"a": queue}), Client()
    assert admission.find_overload(SINGLE, client, 99) is None
    error = admission.find_overload(SINGLE, client, 100)
    with pytest.raises(Overloaded) as refused:
        admission.admit(request(), SINGLE, client, 100)
    assert error is not None and error.message == refused.value.message
    assert admission.find_overload(SINGLE, client, 100) is error, "it is made once in some milliseconds"
    flood = Client()
    flood.pending = 2
    queue.last_in_line = task(flood, 0, lambda error: None)
    assert admission.find_overload(SINGLE, client, 100) is None, "it may take the place of the flood's"
    flood.pending = 1
    assert admission.find_overload(SINGLE, client, 100) is error


def test_a_client_with_few_requests_goes_ahead_of_a_flood() -> None:
    fair, flood, other = FairQueue(), Client("flood"), Client("other")
    assert [fair.admit(flood) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert (fair.latest, fair.clients, flood.pending) == (5, 1, 5)
    assert fair.next(other) == 1
    assert fair.admit(other) == 1
    assert fair.latest == 5, "the turn of the last request in line"
    assert (fair.clients, other.pending, other.turn) == (2, 1, 1)


def test_a_new_client_stands_behind_the_turn_that_is_served() -> None:
    fair, client, other = FairQueue(), Client(), Client()
    for _ in range(4):
        fair.admit(client)
    fair.record_dispatch(3)
    fair.record_dispatch(2)
    assert fair.now == 3, "a late hand-over of an earlier turn changes nothing"
    assert fair.admit(other) == 4
    assert fair.admit(client) == 5


def test_turns_of_cancelled_requests_do_not_count_once_nothing_is_pending() -> None:
    fair, client = FairQueue(), Client()
    for _ in range(3):
        fair.admit(client)
    fair.end(client)
    assert (client.pending, fair.clients) == (2, 1)
    assert fair.next(client) == 4
    for _ in range(2):
        fair.end(client)
    assert (client.pending, fair.clients) == (0, 0)
    assert fair.next(client) == 1


def test_requests_are_admitted_up_to_the_limit_and_again_after_an_end(clock: Clock) -> None:
    admission, client = admission_of({"a": Queue()}, max_pending=3), Client()
    assert [admission.admit(request(), SINGLE, client, pending) for pending in range(3)] == [1, 2, 3]
    with pytest.raises(Overloaded, match=r"^3 requests are pending, the most that dag.max_pending_requests"):
        admission.admit(request(), SINGLE, client, 3)
    assert client.pending == 3
    admission.end_request(request(), client)
    assert client.pending == 2
    admission.admit(request(), SINGLE, client, 2)


def test_a_full_service_tells_the_wait_of_all_that_may_be_pending(clock: Clock) -> None:
    queue = Queue(run_s=0.5, rows=20)
    admission = admission_of({"a": queue}, max_pending=4)
    with pytest.raises(Overloaded, match=r"try again in 2\.5 s") as refused:
        admission.admit(request(), SINGLE, Client(), 4)
    assert refused.value.retry_after_s == 2.5, "four requests and its own run"
    queue.rows = 0
    clock.now += 0.004
    with pytest.raises(Overloaded, match=r"try again in 2\.5 s"):
        admission.admit(request(), SINGLE, Client(), 4)
    clock.now += 0.001
    with pytest.raises(Overloaded, match=r"try again in 0\.5 s"):
        admission.admit(request(), SINGLE, Client(), 4)


def test_the_wait_of_another_dag_is_not_that_of_the_first(clock: Clock) -> None:
    admission = admission_of({"a": Queue(0.5, rows=1), "b": Queue(3.0, rows=1)}, max_pending=4)
    for dag, wait in ((SINGLE, r"1\.0 s"), (CHAIN, r"9\.5 s"), (SINGLE, r"1\.0 s")):
        with pytest.raises(Overloaded, match=f"try again in {wait}"):
            admission.admit(request(), dag, Client(), 4)


@pytest.mark.parametrize(
    ("run_s", "rows", "expected_s"),
    [(0.0, 4, 1.0), (0.01, 0, 0.1), (0.05, 1, 0.1), (0.05, 2, 0.15), (20.0, 3, 60.0)],
    ids=["nothing is known", "at least a tenth", "exactly", "more", "at most a minute"],
)
def test_a_rejected_client_waits_between_a_tenth_of_a_second_and_a_minute(
    clock: Clock, run_s: float, rows: int, expected_s: float
) -> None:
    admission = admission_of({"a": Queue(run_s, rows)}, max_pending=4)
    with pytest.raises(Overloaded) as refused:
        admission.admit(request(), SINGLE, Client(), 4)
    assert refused.value.retry_after_s == pytest.approx(expected_s)


def test_a_request_whose_deadline_has_passed_is_rejected(clock: Clock) -> None:
    admission = admission_of({"a": Queue(0.0, idle=True)})
    for left_s in (0.0, -1.0):
        with pytest.raises(DeadlineExceeded, match=r"^the request's deadline had passed when it arrived$"):
            admission.admit(request(left_s), SINGLE, Client(), 0)
    admission.admit(request(0.001), SINGLE, Client(), 0)


def test_without_an_estimate_no_request_is_rejected(clock: Clock) -> None:
    admission = admission_of({"a": Queue(0.0, rows=1000)})
    admission.admit(request(0.001), SINGLE, Client(), 50)


def test_a_request_is_rejected_where_one_and_a_half_times_its_wait_exceed_its_deadline(clock: Clock) -> None:
    admission = admission_of({"a": Queue(1.0, rows=3)})
    with pytest.raises(
        Overloaded,
        match=r"^the answer is expected in 6\.000 s, and the request has 5\.000 s left until its deadline; "
        r"try again in 1\.0 s$",
    ) as refused:
        admission.admit(request(5.0), SINGLE, Client(), 3)
    assert refused.value.retry_after_s == 1.0
    admission.admit(request(6.0), SINGLE, Client(), 3)


def test_a_request_that_finds_every_op_of_its_dag_idle_is_admitted(clock: Clock) -> None:
    queues = {"a": Queue(idle=True), "b": Queue(idle=True), "c": Queue(rows=50)}
    admission = admission_of(queues)
    admission.admit(request(0.1), CHAIN, Client(), 5)
    queues["b"].idle = False
    with pytest.raises(Overloaded):
        admission.admit(request(0.1), CHAIN, Client(), 5)
    admission.admit(request(0.1), SINGLE, Client(), 5)


def test_a_long_deadline_is_not_compared_with_the_queues(clock: Clock) -> None:
    queue = Queue(1.0, rows=1000)
    admission = admission_of({"a": queue}, max_pending=10)
    admission.admit(request(1.5 * 10 + 1.5), SINGLE, Client(), 9)
    assert queue.places == []
    admission.admit(request(1.5 * 10 + 1.4), SINGLE, Client(), 1)
    assert queue.places == [None]


def test_pending_rows_beyond_the_limit_of_requests_lengthen_what_is_compared(clock: Clock) -> None:
    queue = Queue(1.0, rows=1000)
    admission = admission_of({"a": queue}, max_pending=10)
    admission.admit(request(rows=30), SINGLE, Client(), 0)
    with pytest.raises(Overloaded, match=r"expected in 46\.500 s"):
        admission.admit(request(46.0), SINGLE, Client(), 1)
    admission.end_request(request(rows=30), Client())
    admission.admit(request(46.0), SINGLE, Client(), 1)


def test_runs_are_summed_along_the_longest_way(clock: Clock) -> None:
    queues = {"a": Queue(1.0), "b": Queue(2.0), "c": Queue(4.0), "d": Queue(8.0)}
    assert expected_wait_s(admission_of(queues), JOIN, 0) == 1.5 * (1 + 4 + 8)
    assert expected_wait_s(admission_of(queues), CHAIN, 0) == 1.5 * (1 + 2)


def test_the_slowest_op_makes_the_wait_and_earlier_queues_count_for_it(clock: Clock) -> None:
    queues = {"a": Queue(1.0, rows=5), "b": Queue(2.0, rows=2), "c": Queue(4.0, rows=1), "d": Queue(0.5)}
    # Before c: its own row and the five of a. Before d: the most of its inputs.
    assert expected_wait_s(admission_of(queues), JOIN, 50) == 1.5 * (6 * 4.0 + 1 + 4 + 0.5)
    queues["d"].rows = 43
    assert expected_wait_s(admission_of(queues), JOIN, 50) == 1.5 * (50 * 0.5 + 1 + 4 + 0.5)


def test_no_more_rows_are_ahead_than_are_pending(clock: Clock) -> None:
    admission = admission_of({"a": Queue(1.0, rows=80)})
    assert expected_wait_s(admission, SINGLE, 7) == 1.5 * (7 + 1)
    admission.admit(request(rows=20), SINGLE, Client(), 0)
    assert expected_wait_s(admission, SINGLE, 7) == 1.5 * (20 + 1), "or than the pending requests have"


def test_a_request_ahead_of_others_is_compared_with_those_before_it(clock: Clock) -> None:
    queue = Queue(1.0, rows=9)
    queue.rows_before = 2
    admission, flood = admission_of({"a": queue}), Client()
    for pending in range(9):
        admission.admit(request(), SINGLE, flood, pending)
    queue.places.clear()
    admission.admit(request(5.0), SINGLE, Client(), 9)
    assert queue.places == [None, (0, 2)], "behind the requests of the first turn"
    with pytest.raises(Overloaded, match=r"expected in 4\.500 s"):
        admission.admit(request(4.0), SINGLE, Client(), 9)
    with pytest.raises(Overloaded, match=r"expected in 15\.000 s"):
        admission.admit(request(5.0), SINGLE, flood, 9)


def test_a_request_of_the_last_turn_is_compared_with_all(clock: Clock) -> None:
    queue = Queue(1.0, rows=9)
    admission = admission_of({"a": queue})
    admission.admit(request(), SINGLE, Client(), 0)
    with pytest.raises(Overloaded):
        admission.admit(request(5.0), SINGLE, Client(), 9)
    assert queue.places == [None]


def test_priorities_are_compared_with_their_place_once_any_request_has_one(clock: Clock) -> None:
    queue = Queue(1.0, rows=9)
    admission, client = admission_of({"a": queue}), Client()
    admission.admit(request(priority=1), SINGLE, client, 0)
    queue.places.clear()
    admission.admit(request(2.0, priority=0), SINGLE, client, 9)
    assert queue.places == [None, (0, 3)]
    admission.admit(request(2.0, priority=1), SINGLE, client, 9)
    assert queue.places[2:] == [None, (1, 4)]


def test_a_full_service_rejects_the_last_request_of_a_flood_for_another_client(clock: Clock) -> None:
    queue, flood, refused = Queue(1.0, rows=2), Client(), list[ServingError]()
    admission = admission_of({"a": Queue(), "b": queue}, max_pending=4)
    for pending in range(4):
        admission.admit(request(), CHAIN, flood, pending)
    queue.last_in_line = task(flood, 0, refused.append)
    assert admission.admit(request(), CHAIN, Client(), 4) == 1
    (error,) = refused
    assert isinstance(error, Overloaded)
    assert str(error) == (
        "dag.max_pending_requests (4) are pending, of this client more than its share; try again in 4.0 s"
    )
    assert error.retry_after_s == 4.0
    with pytest.raises(Overloaded):
        admission.admit(request(), CHAIN, flood, 4)


@pytest.mark.parametrize(
    ("flood", "own", "priority", "last_priority", "makes_room"),
    [
        (3, 0, 0, 0, True),
        (3, 1, 0, 0, True),
        (2, 1, 0, 0, False),
        (1, 0, 0, 0, False),
        (2, 0, 0, 0, True),
        (3, 0, 1, 0, False),
        (3, 0, 1, 1, True),
        (3, 0, 0, 2, True),
        (9, 2, 0, 0, False),
    ],
    ids=[
        "a new client", "one with fewer", "only one more", "one as well", "two more", "a lower priority",
        "an equal one", "a higher one", "its share is full",
    ],
)  # fmt: skip
def test_only_a_client_below_its_share_takes_the_place_of_one_above(
    clock: Clock, flood: int, own: int, priority: int, last_priority: int, makes_room: bool
) -> None:
    queue, other, client = Queue(), Client(), Client()
    admission = admission_of({"a": queue}, max_pending=4)
    for some, count in ((other, flood), (client, own)):
        for _ in range(count):
            admission.admit(request(), SINGLE, some, 0)
    queue.last_in_line = task(other, last_priority, lambda error: None)
    if makes_room:
        admission.admit(request(priority=priority), SINGLE, client, 4)
    else:
        with pytest.raises(Overloaded):
            admission.admit(request(priority=priority), SINGLE, client, 4)


def test_no_request_gives_way_where_no_queue_has_one_of_a_client(clock: Clock) -> None:
    first, second, refused = Queue(), Queue(), list[ServingError]()
    admission, flood = admission_of({"a": first, "b": second}, max_pending=2), Client()
    for pending in range(2):
        admission.admit(request(), CHAIN, flood, pending)
    first.last_in_line = task(None, 0, refused.append)
    with pytest.raises(Overloaded):
        admission.admit(request(), CHAIN, Client(), 2)
    second.last_in_line = task(flood, 0, refused.append)
    admission.admit(request(), CHAIN, Client(), 2)
    assert len(refused) == 1


def test_pending_rows_are_bounded_to_the_row(clock: Clock) -> None:
    admission, client = admission_of({"a": Queue(0.5, rows=9)}, max_rows=10), Client()
    admission.admit(request(rows=6), SINGLE, client, 0)
    admission.admit(request(rows=4), SINGLE, client, 1)
    with pytest.raises(
        Overloaded,
        match=r"^requests with 10 rows are pending, and dag.max_pending_rows is 10; try again in 5\.0 s$",
    ) as refused:
        admission.admit(request(rows=1), SINGLE, client, 2)
    assert refused.value.retry_after_s == 5.0
    admission.end_request(request(rows=4), client)
    admission.admit(request(rows=3), SINGLE, client, 1)
    assert client.pending == 2


def test_a_client_over_its_own_limits_is_rejected_before_all_else(clock: Clock) -> None:
    class Limited(Client):
        limited = True

        def check(self) -> None:
            raise Overloaded("over its own limits")

    admission, client = admission_of({"a": Queue()}), Limited()
    with pytest.raises(Overloaded, match="over its own limits"):
        admission.admit(request(), SINGLE, client, 0)
    assert client.pending == 0
    Client().check()


def test_the_pace_of_every_op_counts_for_a_deadline_that_is_surely_long_enough(clock: Clock) -> None:
    queues = {"a": Queue(1.0, rows=5), "b": Queue(2.0, rows=5)}
    admission = admission_of(queues, max_pending=10)
    enough_s = 1.5 * (10 * 3.0 + 3.0)
    admission.admit(request(enough_s), CHAIN, Client(), 0)
    assert queues["a"].places == []
    admission.admit(request(enough_s - 0.1), CHAIN, Client(), 0)
    assert queues["a"].places == [None]
    cast(Any, queues["b"]).pace.record(2.0, 1, rows=100)
    admission.update_paces()
    admission.admit(request(1.5 * 33.0 - 0.1), CHAIN, Client(), 0)
    assert queues["a"].places == [None]
