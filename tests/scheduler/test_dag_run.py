"""The way of one request through a DAG: which nodes run, on which inputs, and how it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pipeline.api.app import ServedModel
from pipeline.api.dag import FEED, MESSAGE, Dag, Edge, Node
from pipeline.api.op import REQUEST_OP, RESPONSE_OP
from pipeline.errors import DeadlineExceeded, HookFailed, InvalidInput, ServingError
from pipeline.front.dag_run import DagRun, Entry, InOrder, OpQueue, Request, Task, lost_with, superfluous
from pipeline.front.metrics.metrics import Failures
from pipeline.messages.frames import INLINE_BYTES, NotEncodable, decode, encode
from pipeline.messages.messages import REFUSAL, Outcome
from pipeline.models.tensor_spec import BatchAxis


def node(name: str, *inputs: str, op: str = "", jumps: tuple[str, ...] = ()) -> Node:
    return Node(name, op or name, tuple(map(Edge, inputs or (REQUEST_OP,))), jumps)


CHAIN = Dag((node("a"), node("b", "a")), "b")
JOIN = Dag((node("a"), node("b"), node("c", "b", "a")), "c")
RACE = Dag((node("a"), node("b"), node("c", "a", "b")), "c", first_arrival=True)
LOOP = Dag((node("a"), node("b", "a"), node("c", "b", jumps=("a",)), node("d", "c")), "d")
PACKED = Dag((node("a"), node(RESPONSE_OP, "a")), RESPONSE_OP)


class Way:
    """A DAG run whose queues keep their tasks until a test settles them."""

    def __init__(self, dag: Dag, model: str = "sim", **options: Any) -> None:
        self.tasks: list[Task] = []
        self.errors: list[ServingError] = []
        self.ends: list[Any] = []
        queue = OpQueue(self._enqueue, self.errors.append)
        name, _, version = model.partition(":")
        served = ServedModel(name, dag, version=version)
        self.entry = Entry(
            model, dag, dict.fromkeys(dag.nodes, queue), lambda run, answer: self.ends.append(answer),
            max_hops=options.pop("max_hops", 5), tries=options.pop("tries", 1),
            describe_step=served.describe_step if served.is_ensemble else None, version="1", versioned="",
            requests=None, failures=Failures(), step_ops={node.name: node.op for node in dag.steps},
        )  # fmt: skip
        request = Request("sim", "prediction", {"x": "1"}, **options)
        self.run = DagRun(
            request, lambda answer: None, 0.0, self.entry, self.entry.max_hops, self.entry.tries
        )
        self.run.begin()

    def _enqueue(self, run: DagRun, name: str, inputs: Any) -> None:
        self.tasks.append(Task(run, name, inputs, len(self.tasks), 0.0))

    @property
    def started(self) -> str:
        """The nodes that were started, in order."""
        return " ".join(task.node for task in self.tasks)

    def latest(self, name: str) -> Task:
        return [task for task in self.tasks if task.node == name][-1]

    def value(self, name: str, value: Any = None) -> None:
        """Have the latest task of a node end with a value."""
        self.latest(name).complete(Outcome.VALUE, encode(value or f"value of {name}", allow_pickle=False))

    def inputs(self, name: str) -> dict[str, Any]:
        """The inputs of the latest task of a node."""
        return {source: decode(parts, allow_pickle=False) for source, parts in self.latest(name).inputs}


def test_each_node_of_a_chain_runs_on_the_output_of_the_one_before() -> None:
    way = Way(CHAIN)
    assert (way.started, way.inputs("a")) == ("a", {REQUEST_OP: {"x": "1"}})
    way.value("a")
    assert (way.started, way.inputs("b")) == ("a b", {"a": "value of a"})
    way.latest("b").complete(Outcome.ANSWER, [b"body"])
    assert way.ends == [[b"body"]]
    assert way.run.awaited == {}


def test_a_join_waits_for_all_inputs_and_gets_them_in_the_order_of_the_dag() -> None:
    way = Way(JOIN)
    assert way.started == "a b"
    way.value("a")
    assert way.started == "a b"
    way.value("b")
    assert way.started == "a b c"
    assert list(way.inputs("c").items()) == [("b", "value of b"), ("a", "value of a")]


def test_a_request_ends_once() -> None:
    way = Way(CHAIN)
    way.run.leave()
    way.run.expire()
    way.latest("a").complete(Outcome.ANSWER, [b"late"])
    assert way.ends == [None]
    assert not way.latest("a").wanted


def test_an_expired_request_is_told_its_deadline() -> None:
    way = Way(CHAIN)
    way.run.expire()
    assert isinstance(way.ends[0], DeadlineExceeded)
    assert str(way.ends[0]) == "the request's deadline passed before its answer was there"


def test_of_two_tries_of_a_task_the_first_answer_counts() -> None:
    way = Way(CHAIN)
    other = way.latest("a").second_try(blamed=True)
    assert (way.latest("a").moved, other.moved, other.hung, other.alone) == (True, False, True, True)
    other.complete(Outcome.VALUE, encode(1, allow_pickle=False))
    way.value("a")
    assert way.started == "a b"
    assert not way.latest("a").second_try(blamed=False).alone
    other = way.latest("b").second_try(blamed=False)
    other.suspect = True
    assert other.alone
    assert other.second_try(blamed=False).suspect


def test_the_answer_of_a_timed_out_try_is_dropped() -> None:
    way = Way(CHAIN)
    task = way.latest("a")
    task.tries_left = 3
    renewed = task.next_try(7.0)
    assert (renewed.tries_left, renewed.queued_at, renewed.number) == (2, 7.0, task.number)
    assert (task.wanted, renewed.wanted) == (False, True)
    task.complete(Outcome.VALUE, encode(1, allow_pickle=False))
    task.fail(InvalidInput("late"))
    assert (way.started, way.ends) == ("a", [])
    renewed.complete(Outcome.VALUE, encode(2, allow_pickle=False))
    assert way.inputs("b") == {"a": 2}


def test_a_delayed_task_waits_in_place_of_the_first() -> None:
    way = Way(CHAIN)
    delayed = way.latest("a").delayed()
    assert (delayed.late, delayed.wait_limit, delayed.wanted) == (True, None, True)
    assert not way.latest("a").wanted
    assert delayed.inputs == way.latest("a").inputs


# Errors:


def test_an_error_ends_the_request_and_is_counted_by_the_op() -> None:
    way = Way(JOIN)
    error = InvalidInput("not this one")
    way.latest("a").fail(error)
    way.value("b")
    assert (way.ends, way.errors, way.started) == ([error], [error], "a b")


def test_an_error_passes_through_the_response_op_of_the_app() -> None:
    way = Way(PACKED)
    way.latest("a").fail(InvalidInput("not this one"))
    assert (way.started, way.ends) == (f"a {RESPONSE_OP}", [])
    (name,) = way.inputs(RESPONSE_OP)
    assert name == REFUSAL
    assert "not this one" in way.inputs(RESPONSE_OP)[name]
    way.latest(RESPONSE_OP).complete(Outcome.ANSWER, [b"packed"])
    assert way.ends == [[b"packed"]]


def test_an_error_of_the_response_op_ends_the_request() -> None:
    way = Way(PACKED)
    way.value("a")
    error = HookFailed("no answer")
    way.latest(RESPONSE_OP).fail(error)
    assert (way.ends, way.started) == ([error], f"a {RESPONSE_OP}")


@pytest.mark.parametrize(
    ("model", "op", "expected"),
    [
        ("pipe:3", "resnet:2", "in ensemble 'pipe', step a ('resnet' version 2): broken"),
        ("pipe", "resnet", "in ensemble 'pipe', step a ('resnet'): broken"),
    ],
)
def test_an_error_in_an_ensemble_names_the_step(model: str, op: str, expected: str) -> None:
    dag = Dag((node("a", op=op),), "a", answer={"y": "y"})
    way = Way(dag, model)
    way.latest("a").fail(ServingError("broken"))
    assert way.ends[0].message == expected
    assert way.entry.failures.steps == {("a", op): 1}
    way = Way(dag, model)
    way.latest("a").fail(InvalidInput("not this one"))
    assert way.ends[0].message == "not this one", "an error of the client's stays as it is"


def test_a_request_over_the_timeout_of_an_op_begins_anew_as_often_as_configured() -> None:
    way = Way(LOOP, tries=3, max_hops=1)
    for _ in range(2):
        way.value("a")
        way.value("b")
        way.latest("c").complete(Outcome.JUMP, encode(1, allow_pickle=False))
        way.value("b")
        way.latest("c").fail(DeadlineExceeded("too long"))
        assert way.ends == []
    assert way.started == "a b c b c a b c b c a"
    assert way.inputs("a") == {REQUEST_OP: {"x": "1"}}
    error = DeadlineExceeded("too long")
    way.latest("a").fail(error)
    assert (way.ends, way.errors) == ([error], [error])


def test_a_value_that_no_codec_may_pass_on_is_refused_before_anything_runs() -> None:
    way = Way(CHAIN)
    way.run.request.inputs["x"] = object()
    with pytest.raises(NotEncodable, match="a object can't be passed on"):
        way.run.begin()
    assert way.started == "a"


def test_a_fault_while_a_request_goes_on_is_answered() -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("unforeseen")

    for settle in (
        lambda task: task.complete(Outcome.VALUE, encode(1, allow_pickle=False)),
        lambda task: task.fail(InvalidInput("x")),
    ):
        way = Way(CHAIN)
        way.entry.queues["b"] = way.entry.queues["a"] = OpQueue(fail, fail)  # type: ignore[index]
        settle(way.latest("a"))
        (error,) = way.ends
        assert type(error) is ServingError
        assert error.message.startswith("the request can't go on after node a: ")
        assert "unforeseen" in error.message


# Jumps:


def test_a_jump_runs_the_nodes_behind_its_target_again_on_the_output() -> None:
    way = Way(LOOP)
    way.value("a")
    way.value("b")
    way.latest("c").complete(Outcome.JUMP, encode("again", allow_pickle=False))
    assert (way.started, way.inputs("b")) == ("a b c b", {"c": "again"})
    way.value("b", "second")
    assert (way.started, way.inputs("c")) == ("a b c b c", {"b": "second"})
    way.value("c")
    assert (way.started, way.inputs("d")) == ("a b c b c d", {"c": "value of c"})


def test_a_request_jumps_as_often_as_configured() -> None:
    way = Way(LOOP, max_hops=2)
    way.value("a")
    for _ in range(2):
        way.value("b")
        way.latest("c").complete(Outcome.JUMP, encode(1, allow_pickle=False))
    way.value("b")
    assert way.ends == []
    way.latest("c").complete(Outcome.JUMP, encode(1, allow_pickle=False))
    assert isinstance(way.ends[0], HookFailed)
    assert str(way.ends[0]) == "[c] jumped too often: more than dag.max_hops times in one request"


def test_a_jump_cancels_what_still_runs_behind_its_target() -> None:
    dag = Dag((node("a"), node("b", "a"), node("c", "a", jumps=("a",)), node("d", "b", "c")), "d")
    way = Way(dag)
    way.value("a")
    slow = way.latest("b")
    way.latest("c").complete(Outcome.JUMP, encode("again", allow_pickle=False))
    assert way.started == "a b c b c"
    slow.complete(Outcome.VALUE, encode("stale", allow_pickle=False))
    way.value("c")
    assert way.started == "a b c b c"
    way.value("b")
    assert way.inputs("d") == {"b": "value of b", "c": "value of c"}


# The first arrival alone:


def test_with_first_arrival_a_join_runs_on_the_first_input_alone() -> None:
    way = Way(RACE)
    way.value("b")
    assert (way.started, way.inputs("c")) == ("a b c", {"b": "value of b"})
    assert not way.latest("a").wanted
    way.value("a")
    assert way.started == "a b c"


def test_with_first_arrival_the_last_failure_is_the_answer() -> None:
    way = Way(RACE)
    way.latest("a").fail(InvalidInput("first"))
    assert (way.ends, len(way.errors)) == ([], 1)
    way.latest("b").fail(InvalidInput("second"))
    assert [end.message for end in way.ends] == ["second"]


def test_with_first_arrival_a_timeout_is_an_input_that_does_not_come() -> None:
    way = Way(RACE, tries=2)
    way.latest("a").fail(DeadlineExceeded("late"))
    assert (way.started, way.ends, way.errors) == ("a b", [], [])
    way.latest("b").fail(DeadlineExceeded("late"))
    assert (way.started, way.ends) == ("a b a b", [])
    way.value("a")
    assert way.inputs("c") == {"a": "value of a"}


def test_nodes_whose_consumers_have_all_started_are_superfluous() -> None:
    dag = Dag((node("a"), node("b", "a"), node("c"), node("d", "b", "c")), "d", first_arrival=True)
    assert superfluous(dag, {"d"}) == {"a", "b", "c"}
    assert superfluous(dag, {"b"}) == {"a"}
    assert superfluous(dag, set()) == set()
    assert lost_with(dag, {"a"}, {"a"}) == {"a", "b"}
    assert lost_with(dag, {"a"}, {"a", "b"}) == {"a"}
    assert lost_with(dag, {"a", "c"}, {"a", "c"}) == {"a", "b", "c", "d"}


# What the worker is told, and messages that the app reads itself:


def test_the_app_unpacks_the_message_itself() -> None:
    way = Way(Dag((node(REQUEST_OP, MESSAGE), node("a")), "a", source=MESSAGE))
    assert way.started == REQUEST_OP
    parts = [msgspec.msgpack.encode(-5), *encode({"y": 2}, allow_pickle=False)]
    way.latest(REQUEST_OP).complete(Outcome.INPUTS, parts)
    assert way.run.request.log_id == -5
    assert (way.started, way.inputs("a")) == (f"{REQUEST_OP} a", {REQUEST_OP: {"y": 2}})


def test_the_message_of_a_task_has_its_request_inputs_and_tensors() -> None:
    axes = {"x": (BatchAxis((1,), True),)}
    dag = Dag(
        (Node("a", "op", (Edge(FEED, {"t": "x"}, axes),)), Node("b", "op", (Edge("a"),))), "b", source=FEED
    )
    way = Way(dag, "m:2", log_id=7, form="json", wish={"n": 1}, model_version="2", deadline=9.0)
    large = b"x" * INLINE_BYTES
    way.run.awaited["a"] = way.latest("a").inputs = [(FEED, [b"small", large])]
    tail: list[Any] = []
    message = way.latest("a").message(3, tail)
    assert (message.index, message.data_id, message.log_id) == (3, way.run.data_id, 7)
    assert (message.form, message.response_options, message.model_version) == ("json", {"n": 1}, "2")
    assert (message.options, message.deadline, message.answers) == (None, 9.0, "")
    assert message.inputs == [(FEED, [b"small", INLINE_BYTES])]
    assert tail == [large]
    assert (message.tensors, message.batch_axes) == (({"t": "x"},), axes)
    way.value("a")
    message = way.latest("b").message(0, [])
    assert (message.answers, message.tensors, message.batch_axes) == ("m:2", None, None)
    assert Way(dag).run.data_id != way.run.data_id


def test_an_entry_needs_its_ops_and_itself() -> None:
    entry = Way(CHAIN, "m").entry
    assert entry.needs(["b"])
    assert entry.needs({"m"})
    assert not entry.needs(["c"])


# The order of answers:


class Ordered:
    """Tasks of one order, with what was settled."""

    def __init__(self, count: int) -> None:
        self.order = InOrder()
        self.settled: list[int] = []
        self.ways = [Way(CHAIN) for _ in range(count)]
        self.tasks = [way.latest("a") for way in self.ways]
        for number, task in enumerate(self.tasks):
            task.number = number
            self.order.sent(task)

    def complete(self, number: int) -> None:
        self.order.complete(self.tasks[number], lambda: self.settled.append(number))


def test_tasks_are_settled_in_the_order_in_which_they_were_sent() -> None:
    ordered = Ordered(4)
    for number, settled in ((2, []), (1, []), (0, [0, 1, 2]), (3, [0, 1, 2, 3])):
        ordered.complete(number)
        assert ordered.settled == settled


def test_a_task_that_is_not_wanted_holds_no_other_back() -> None:
    ordered = Ordered(3)
    ordered.complete(1)
    ordered.ways[0].run.leave()
    ordered.order.release_results()
    assert ordered.settled == [1]
    ordered.complete(0)
    assert ordered.settled == [1, 0], "its own end waits for nothing"
    ordered.complete(2)
    assert ordered.settled == [1, 0, 2]


def test_a_fault_in_one_answer_does_not_hold_the_next_back() -> None:
    ordered = Ordered(2)
    ordered.complete(1)
    ordered.order.complete(ordered.tasks[0], lambda: 1 // 0)
    assert ordered.settled == [1]


def test_a_task_that_was_not_sent_waits_for_nothing() -> None:
    ordered = Ordered(1)
    other = Way(CHAIN).latest("a")
    other.number = 9
    ordered.order.complete(other, lambda: ordered.settled.append(9))
    assert ordered.settled == [9]


def test_ordered_tasks_keep_a_copy_of_their_answer() -> None:
    """The next reply is written over the memory of the last."""
    order, first, second = InOrder(), Way(CHAIN), Way(CHAIN)
    for number, way in enumerate((first, second)):
        task = way.latest("a")
        task.number, task.in_order = number, order
        order.sent(task)
    memory = bytearray(b"answer")
    second.latest("a").complete(Outcome.ANSWER, [memory])
    memory[:] = b"??????"
    assert second.ends == []
    first.latest("a").fail(InvalidInput("no"))
    assert second.ends == [[b"answer"]]
    assert len(first.ends) == 1


def test_a_refused_task_of_an_order_waits_for_those_before_it() -> None:
    order, first, second = InOrder(), Way(CHAIN), Way(CHAIN)
    for number, way in enumerate((first, second)):
        task = way.latest("a")
        task.number, task.in_order = number, order
        order.sent(task)
    second.latest("a").fail(InvalidInput("no"))
    assert second.ends == []
    first.run.leave()
    order.release_results()
    assert len(second.ends) == 1


def test_data_ids_count_up() -> None:
    ids = [Way(CHAIN).run.data_id for _ in range(3)]
    assert ids == list(range(ids[0], ids[0] + 3))
