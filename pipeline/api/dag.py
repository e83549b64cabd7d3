"""Dag: the steps of a model that is served and the edges between them; made of a script's Ops here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

from pipeline.api.batch_axis import BatchAxes, BatchAxis
from pipeline.api.op import REQUEST_OP, RESPONSE_OP, Op, RequestOp, ResponseOp
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature, TensorSpec, declared_specs

MOST_ROWS = 1024  # of one request, where nothing says how many
MESSAGE = "@message"  # the input of an overridden RequestOp: the request as its bytes
FEED = "@feed"  # the input of an Op whose model runs by itself, without hooks: its feeds by name


Names = str | Sequence[str]


class Edge(NamedTuple):
    """What a node is given of another node, or of the request.

    source: the other's name, or the Dag's source. tensors: the outputs that are passed on, each with the name
    or names under which the node finds it among its feeds; None passes the whole output on, under the
    source's name. batch_axes: by feed, where of giver and taker only one has a batch axis.
    """

    source: str
    tensors: Mapping[str, Names] | None = None
    batch_axes: Mapping[str, BatchAxes] = {}

    @classmethod
    def of_data(cls, source: str, tensors: Mapping[str, Names] | None, axes: Mapping[str, Any]) -> Edge:
        """Build an edge from JSON."""
        return cls(source, tensors, batch_axes_of_data(axes))


def batch_axes_of_data(data: Mapping[str, Any]) -> dict[str, BatchAxes]:
    """Build batch axes, by tensor, from JSON."""
    return {
        name: tuple(BatchAxis(tuple(dims), batched) for dims, batched in axes) for name, axes in data.items()
    }


class Node(NamedTuple):
    """One step of a Dag. op: whose workers run it; several steps, of one Dag or of several, may share an Op.

    jumps: names of other nodes. A node whose edges name tensors has its Op's model run by itself, without
    hooks.
    """

    name: str
    op: str
    inputs: tuple[Edge, ...]
    jumps: tuple[str, ...] = ()


class Dag:
    """The way of a request: steps, and what each is given of others. It has one source and one answer.

    response: the node whose output is the answer. answer: which of its tensors, each with its name in the
    answer; None for the whole output. carried: by name of another of its inputs, the tensors of that which
    the answer has, too. answer_axes: by tensor of the answer, as `batch_axes` of an edge. source: what the
    request is called: REQUEST_OP, MESSAGE where the app itself makes the inputs of the first Ops from the
    message, FEED for a model by itself. packs: the app itself packs the answer, refusals included.
    first_arrival: a node runs on the first of its inputs to come, and on it alone.
    inputs, consumers: names of nodes, by node. tensors: by node with edges that name tensors, those of each.
    batch_axes: by node, those of its feeds.
    ops: all that run a node.
    """

    def __init__(
        self,
        nodes: tuple[Node, ...],
        response: str,
        *,
        source: str = REQUEST_OP,
        answer: Mapping[str, str] | None = None,
        carried: Mapping[str, Mapping[str, str]] | None = None,
        answer_axes: Mapping[str, BatchAxes] | None = None,
        first_arrival: bool = False,
    ) -> None:
        self.nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        self.response = response
        self.answer = answer
        self.carried: Mapping[str, Mapping[str, str]] = carried or {}
        self.answer_axes: Mapping[str, BatchAxes] = answer_axes or {}
        self.source = source
        self.packs = RESPONSE_OP in self.nodes
        self.first_arrival = first_arrival
        self.inputs: Mapping[str, tuple[str, ...]] = {
            node.name: tuple(edge.source for edge in node.inputs) for node in nodes
        }
        self.consumers: Mapping[str, tuple[str, ...]] = {
            name: tuple(node.name for node in nodes if name in self.inputs[node.name])
            for name in (self.source, *self.nodes)
        }
        self.tensors: Mapping[str, tuple[Mapping[str, Names] | None, ...]] = {
            node.name: tuple(edge.tensors for edge in node.inputs)
            for node in nodes
            if any(edge.tensors is not None for edge in node.inputs)
        }
        self.batch_axes: Mapping[str, Mapping[str, BatchAxes]] = {
            node.name: {feed: axes for edge in node.inputs for feed, axes in edge.batch_axes.items()}
            for node in nodes
            if any(edge.batch_axes for edge in node.inputs)
        }
        self.ops = tuple(dict.fromkeys(node.op for node in nodes))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """The nodes so that each comes after its inputs."""
        graph = {name: set(inputs) - {self.source} for name, inputs in self.inputs.items()}
        return tuple(TopologicalSorter(graph).static_order())

    def descendants(self, name: str) -> frozenset[str]:
        """Every node that runs, directly or not, on the output of `name`."""
        found: set[str] = set()
        todo = list(self.consumers[name])
        while todo:
            consumer = todo.pop()
            if consumer not in found:
                found.add(consumer)
                todo += self.consumers[consumer]
        return frozenset(found)


def collect_ops(last: Op) -> dict[str, Op]:
    """All Ops that run for the last one, inputs first; of RequestOp and ResponseOp those that are overridden.

    Raises ConfigError for two Ops of one name, a cycle, an Op without an input, or a jump to an Op outside.
    """
    last = answering_op(last)
    ops = _reachable(last)
    try:
        order = list(TopologicalSorter({name: _input_names(op) for name, op in ops.items()}).static_order())
    except CycleError as exc:
        raise ConfigError(
            f"the Ops form a cycle: {' -> '.join(exc.args[1])}; use jump_to_ops for loops"
        ) from exc
    flaws = [
        f"Op {op.name} has no input_ops; give it [read_op]"
        for op in ops.values()
        if not op.input_ops and not isinstance(op, RequestOp)
    ]
    flaws += [
        f"Op {op.name} jumps to {target.name}, which the last Op does not need"
        for op in ops.values()
        for target in op.jump_to_ops
        if target.name not in ops
    ]
    if flaws:
        raise ConfigError("\n".join(flaws))
    return {name: ops[name] for name in order if name in ops}


def answering_op(last: Op) -> Op:
    """The Op that answers: a ResponseOp only where it is overridden, else the one before it.

    Raises ConfigError for what is no Op, and for a RequestOp.
    """
    if isinstance(last, ResponseOp) and not last.packs:
        (last,) = last.input_ops
    if not isinstance(last, Op) or isinstance(last, RequestOp):
        raise ConfigError(
            f"get_pipeline_response returned {type(last).__name__}; return the last Op of the service"
        )
    return last


def build_dag(ops: Mapping[str, Op], last: Op, *, first_arrival: bool = False) -> Dag:
    """The edges of collected Ops as data."""
    source = MESSAGE if REQUEST_OP in ops else REQUEST_OP
    nodes = tuple(_build_node(op) for op in ops.values())
    return Dag(nodes, answering_op(last).name, source=source, first_arrival=first_arrival)


def build_signature(ops: Mapping[str, Op], last: Op) -> Signature:
    """The tensors that the Ops declare: inputs by those that are given the request, outputs by the last.

    Raises ConfigError with all flaws.
    """
    flaws: list[str] = []
    inputs: dict[str, TensorSpec] = {}
    answering = answering_op(last)
    takers = get_entry_ops(ops)
    most = max((op.max_batch_size for op in takers), default=0)
    for op in takers:
        for spec in _declared(op, "input_tensors", most, flaws):
            if inputs.setdefault(spec.name, spec) != spec:
                flaws.append(f"Op {op.name}: input_tensors: another Op declares {spec.name!r} differently")
    outputs = _declared(answering, "output_tensors", most, flaws)
    if flaws:
        raise ConfigError("\n".join(flaws))
    signature = Signature(tuple(inputs.values()), outputs, most)
    if not most and signature.has_rows and all(op.takes_rows for op in takers):
        return signature._replace(max_batch_size=MOST_ROWS)
    return signature


def get_entry_ops(ops: Mapping[str, Op]) -> list[Op]:
    """The Ops that are given the request."""
    return [op for op in ops.values() if any(isinstance(given, RequestOp) for given in op.input_ops)]


def get_raw_bodies(ops: Mapping[str, Op]) -> dict[str, str]:
    """By media type the input that the body of an HTTP request is as a whole."""
    return {media.lower(): name for op in get_entry_ops(ops) for media, name in op.raw_bodies.items()}


def _declared(op: Op, attribute: str, most: int, flaws: list[str]) -> tuple[TensorSpec, ...]:
    try:
        return declared_specs(
            f"Op {op.name}: {attribute}", getattr(op, attribute), most > 0, labels=op.output_labels
        )
    except ConfigError as exc:
        flaws.append(exc.message)
        return ()


def _build_node(op: Op) -> Node:
    inputs = (MESSAGE,) if isinstance(op, RequestOp) else tuple(i.name for i in op.input_ops)
    return Node(op.name, op.name, tuple(map(Edge, inputs)), tuple(j.name for j in op.jump_to_ops))


def _reachable(last: Op) -> dict[str, Op]:
    ops: dict[str, Op] = {}
    todo: list[Op] = [last]
    while todo:
        op = todo.pop()
        if "name" not in vars(op):
            kind = type(op).__name__
            raise ConfigError(
                f"{kind}.__init__ has not called super().__init__(**kwargs); let it, or use init_op"
            )
        if ops.get(op.name) is op or (isinstance(op, RequestOp) and not op.unpacks):
            continue
        if op.name in ops:
            raise ConfigError(f"two Ops are named {op.name}; give each its own name")
        ops[op.name] = op
        todo += op.input_ops
    return ops


def _input_names(op: Op) -> set[str]:
    return {i.name for i in op.input_ops}
