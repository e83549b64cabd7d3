"""The DAG of a service: its order and edges, and every mistake that can be made building one."""

from __future__ import annotations

import pytest

from pipeline import Op, RequestOp
from pipeline.api.dag import Edge, Node, build_dag, collect_ops
from pipeline.errors import ConfigError


def test_ops_are_collected_once_with_inputs_before_their_consumers() -> None:
    read = RequestOp()
    a = Op("a", [read])
    b, c = Op("b", [a]), Op("c", [a, read])
    d = Op("d", [b, c, a])
    ops = collect_ops(d)
    order = list(ops)
    assert sorted(order) == ["a", "b", "c", "d"]
    assert all(order.index(one) < order.index(other) for one, other in ("ab", "ac", "bd", "cd", "ad"))
    dag = build_dag(ops, d)
    assert dag.response == "d"
    assert dag.nodes["c"] == Node("c", "c", (Edge("a"), Edge("@DAGExecutor")))
    assert set(dag.consumers["a"]) == {"b", "c", "d"}
    assert set(dag.consumers["@DAGExecutor"]) == {"a", "c"}
    assert dag.consumers["d"] == ()
    assert dag.descendants("b") == {"d"}
    assert dag.descendants("@DAGExecutor") == {"a", "b", "c", "d"}
    assert dag.descendants("d") == frozenset()


def test_an_op_that_the_last_one_does_not_need_is_left_out() -> None:
    read = RequestOp()
    a = Op("a", [read])
    Op("unused", [a])
    assert list(collect_ops(Op("b", [a]))) == ["a", "b"]


def test_a_long_chain_is_collected() -> None:
    op: Op = RequestOp()
    for number in range(2000):
        op = Op(f"op {number}", [op])
    assert len(collect_ops(op)) == 2000


class Forgetful(Op):
    def __init__(self, **_: object) -> None:
        self.words = 3


def test_an_op_whose_own_init_leaves_ours_out_is_told_what_to_do() -> None:
    last = Op("last", [Forgetful(name="first", input_ops=[RequestOp()])])
    told = r"^Forgetful\.__init__ has not called super\(\)\.__init__\(\*\*kwargs\); let it, or use init_op$"
    with pytest.raises(ConfigError, match=told):
        collect_ops(last)


@pytest.mark.parametrize("returned", [None, "op", RequestOp(), Op])
def test_a_service_must_return_its_last_op(returned: object) -> None:
    with pytest.raises(ConfigError, match="return the last Op"):
        collect_ops(returned)  # type: ignore[arg-type]


def test_two_ops_of_one_name_are_told() -> None:
    read = RequestOp()
    with pytest.raises(ConfigError, match="two Ops are named a;"):
        collect_ops(Op("b", [Op("a", [read]), Op("a", [read])]))


def test_ops_without_a_name_get_one_each() -> None:
    read = RequestOp()
    one, other = Op(input_ops=[read]), Op(input_ops=[read])
    assert one.name != other.name
    assert len(collect_ops(Op("last", [one, other]))) == 3


def test_a_cycle_is_told_with_its_way_and_the_remedy() -> None:
    a = Op("a", [RequestOp()])
    b = Op("b", [a])
    a.input_ops.append(b)
    with pytest.raises(ConfigError, match=r"cycle: .*a.*b.*jump_to_ops"):
        collect_ops(b)


def test_an_op_of_itself_is_a_cycle() -> None:
    a = Op("a", [RequestOp()])
    a.input_ops.append(a)
    with pytest.raises(ConfigError, match="cycle"):
        collect_ops(a)


def test_all_ops_without_input_and_all_jumps_to_nowhere_are_told_at_once() -> None:
    lost = Op("lost")
    last = Op("last", [lost], jump_to_ops=[Op("outside", [RequestOp()])])
    with pytest.raises(ConfigError) as caught:
        collect_ops(last)
    assert "Op lost has no input_ops" in caught.value.message
    assert "Op last jumps to outside" in caught.value.message


@pytest.mark.parametrize("argument", ["input_ops", "jump_to_ops"])
def test_what_is_no_op_is_refused_where_it_is_given(argument: str) -> None:
    with pytest.raises(ConfigError, match=f"Op a: {argument} holds a str; it takes Ops"):
        Op("a", **{argument: ["b"]})


def test_one_op_alone_need_not_be_in_a_list_and_both_kinds_of_edges_can_be_set_and_read() -> None:
    read = RequestOp()
    a = Op("a", read)
    b = Op("b")
    b.set_input_ops(a)
    b.set_jump_to_ops(a)
    assert (a.get_input_ops(), b.get_input_ops(), b.get_jump_to_ops()) == ([read], [a], [a])
    assert (a.is_jump_op(), b.is_jump_op()) == (False, True)
    b.set_input_ops([read, a])
    assert build_dag(collect_ops(b), b).nodes["b"] == Node(
        "b", "b", (Edge("@DAGExecutor"), Edge("a")), ("a",)
    )


def test_an_op_may_jump_to_one_before_or_after_it() -> None:
    a = Op("a", [RequestOp()])
    b = Op("b", [a])
    c = Op("c", [b])
    a.set_jump_to_ops([b])
    c.set_jump_to_ops([a])
    nodes = build_dag(collect_ops(c), c).nodes
    assert (nodes["a"].jumps, nodes["b"].jumps, nodes["c"].jumps) == (("b",), (), ("a",))
