"""`dag.channel_recv_frist_arrive`: a join goes on with the input that came first, and with it alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pipeline.api.dag import Dag, Edge, Node
from pipeline.front.dag_run import lost_with, superfluous
from tests.support.service_process import APPS, ServiceProcess, wait_until

SOURCE = "@DAGExecutor"
RUN = "paddlewheel_op_queue_seconds_count"  # of an Op: how often it was given a request


@pytest.fixture(scope="module")
def race() -> Iterator[ServiceProcess]:
    config = {"dag": {"channel_recv_frist_arrive": True}}
    with ServiceProcess(APPS / "race.py", config, arguments=["two"]) as service:
        yield service


@pytest.mark.parametrize(
    ("slow", "trail", "came"),
    [
        ("short", "long>middle>last", "middle"),
        ("long", "short>last", "short"),
        ("middle", "short>last", "short"),
    ],
)
def test_a_join_answers_while_the_other_branch_is_still_under_way(
    race: ServiceProcess, tmp_path: Path, slow: str, trail: str, came: str
) -> None:
    gate = tmp_path / "gate"
    try:
        answer = race.predict({f"wait_{slow}": str(gate), "x": slow})
        assert (answer["trail"], answer["came"], answer["x"]) == (trail, came, slow)
    finally:
        gate.touch()
    again = race.predict({"x": "next"})
    assert again["x"] == "next", "what came too late is nobody's answer"


def test_what_nobody_waits_for_any_more_is_not_run(race: ServiceProcess, tmp_path: Path) -> None:
    """While `last` is held, `long` ends; `middle` runs for the request behind it and not for this one."""
    long, last = tmp_path / "long", tmp_path / "last"
    before = race.metric(RUN, op="middle")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(race.predict, {"wait_long": str(long), "wait_last": str(last)})
        wait_until(Path(f"{last}.waiting").exists, "the join has gone on")
        second = pool.submit(race.predict, {"fail_short": "51"})
        long.touch()
        wait_until(lambda: race.metric(RUN, op="middle") > before, "the second is past the first in `long`")
        last.touch()
        assert (first.result()["trail"], second.result()["trail"]) == ("short>last", "long>middle>last")
    assert race.metric(RUN, op="middle") == before + 1


def test_an_op_that_is_over_its_timeout_is_an_input_that_does_not_come(tmp_path: Path) -> None:
    """`short` is held for ever; only the long branch can answer, and it does so though it comes later."""
    config = {"dag": {"channel_recv_frist_arrive": True, "retry": 2}, "op": {"short": {"timeout": 100}}}
    gates = {f"wait_{name}": str(tmp_path / name) for name in ("short", "middle")}
    with (
        ServiceProcess(APPS / "race.py", config, arguments=["two"]) as service,
        ThreadPoolExecutor(2) as pool,
    ):
        held = pool.submit(service.predict, gates)
        wait_until(Path(f"{gates['wait_middle']}.waiting").exists, "the long branch is under way")
        later = pool.submit(service.predict, {"fail_long": "52"})
        assert later.result()["trail"] == "short>last", "`short` has a new worker in place of the held one"
        Path(gates["wait_middle"]).touch()
        assert held.result()["trail"] == "long>middle>last"
        assert service.metric(RUN, op="last") == 2


def test_an_input_that_fails_is_one_that_does_not_come(race: ServiceProcess) -> None:
    assert race.predict({"fail_short": "51"})["trail"] == "long>middle>last"
    assert race.predict({"fail_long": "52"})["trail"] == "short>last"
    assert race.predict({"fail_middle": "53"})["trail"] == "short>last"


def test_when_no_input_is_left_the_last_failure_is_the_answer(race: ServiceProcess, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(race.ask, {"fail_short": "51", "fail_middle": "53", "wait_middle": str(gate)})
        wait_until(Path(f"{gate}.waiting").exists, "the long branch is under way")
        gate.touch()
        answer = held.result()
    assert (answer["err_no"], answer["err_msg"]) == (53, "middle refuses")
    assert race.ask({"fail_last": "54"})["err_no"] == 54


def test_many_requests_at_once_are_each_answered_with_their_own(race: ServiceProcess) -> None:
    """The original dropped a request that a later one had overtaken: it was never answered."""
    requests = [{"x": str(n), f"fail_{'short' if n % 2 else 'long'}": "51"} for n in range(60)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(race.predict, requests))
    assert [answer["x"] for answer in answers] == [request["x"] for request in requests]
    assert [answer["came"] for answer in answers] == ["middle" if n % 2 else "short" for n in range(60)]


def test_a_branch_that_another_join_still_waits_for_is_not_given_up() -> None:
    nodes = (
        Node("a", "a", (Edge(SOURCE),)),
        Node("b", "b", (Edge(SOURCE),)),
        Node("one", "one", (Edge("a"), Edge("b"))),
        Node("other", "other", (Edge("b"),)),
        Node("last", "last", (Edge("one"), Edge("other"))),
    )
    dag = Dag(nodes, "last", first_arrival=True)
    assert superfluous(dag, {"a", "b", "one"}) == {"a"}
    assert superfluous(dag, {"a", "b", "one", "other", "last"}) == {"a", "b", "one", "other"}
    assert lost_with(dag, {"b"}, {"a", "b"}) == {"b", "other"}
    assert lost_with(dag, {"a", "b"}, {"a", "b"}) == {"a", "b", "one", "other", "last"}
    assert lost_with(dag, {"a", "b"}, {"a", "b", "one"}) == {"a", "b", "other"}
