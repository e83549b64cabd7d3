"""The graph of steps (DAG) that a request passes, and its construction from the Ops of a user's script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import NamedTuple

from pipeline.api.op import REQUEST_OP, RESPONSE_OP, Op, RequestOp, ResponseOp
from pipeline.config.config_file import DEFAULT_KSERVE_ROWS
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import BatchAxes, Signature, TensorSpec, declared_specs

MESSAGE = "@message"  # the input of an overridden RequestOp: the request as its bytes
JOINT = "@joint"  # the node of an ensemble whose steps run in one worker, in the front's graph
FEED = "@feed"  # the input of an Op whose model runs by itself, without hooks: its feeds by name


Names = str | Sequence[str]


class Edge(NamedTuple):
    """An edge of the graph, stored with the step that it feeds.

    Its source is another step's output, or the request.
    """

    source: str  # name of the other node, or the Dag's source
    tensors: Mapping[str, Names] | None = None
    """By output of the source, the feed or feeds that receive it. None: the whole output, under the
    source's name."""
    batch_axes: Mapping[str, BatchAxes] = {}  # by feed, where only source or node has a batch axis


class Node(NamedTuple):
    """A step of the graph: preprocess, model and postprocess, run by the workers of an Op.

    An Op is a step in user code, with its workers; several nodes may share an Op. If the edges of the node
    name tensors, the model runs alone, without the preprocess and postprocess of user code.
    """

    name: str
    op: str  # the Op whose workers run the step; steps of one or several Dags may share an Op
    inputs: tuple[Edge, ...]
    jumps: tuple[str, ...] = ()  # names of other nodes


@dataclass(eq=False)
class Dag:
    """The graph of steps that a request passes. One step's output is the response."""

    steps: tuple[Node, ...]
    response: str  # the node whose output is the answer
    _: KW_ONLY
    source: str = REQUEST_OP
    """REQUEST_OP; MESSAGE: the app unpacks the request message itself; FEED: a single model."""
    answer: Mapping[str, str] | None = None
    """By tensor of the response node's output, its name in the answer. None: the whole output."""
    carried: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Tensors that the answer takes from the response node's inputs: by input, then by tensor."""
    answer_axes: Mapping[str, BatchAxes] = field(default_factory=dict)  # by tensor, see Edge.batch_axes
    first_arrival: bool = False  # a node runs on its first input alone

    def __post_init__(self) -> None:
        """Derive lookup tables from the steps.

        The tables are not serialized: another process derives them again.
        """
        nodes = self.steps
        self.nodes: Mapping[str, Node] = {node.name: node for node in nodes}
        self.packs = RESPONSE_OP in self.nodes  # the app packs the response itself, errors included
        # By node: names of other nodes.
        self.inputs: Mapping[str, tuple[str, ...]] = {
            node.name: tuple(edge.source for edge in node.inputs) for node in nodes
        }
        self.consumers: Mapping[str, tuple[str, ...]] = {
            name: tuple(node.name for node in nodes if name in self.inputs[node.name])
            for name in (self.source, *self.nodes)
        }
        # By node whose edges name tensors: `Edge.tensors` of each edge.
        self.tensors: Mapping[str, tuple[Mapping[str, Names] | None, ...]] = {
            node.name: tuple(edge.tensors for edge in node.inputs)
            for node in nodes
            if any(edge.tensors is not None for edge in node.inputs)
        }
        # By node, then by feed.
        self.batch_axes: Mapping[str, Mapping[str, BatchAxes]] = {
            node.name: {feed: axes for edge in node.inputs for feed, axes in edge.batch_axes.items()}
            for node in nodes
            if any(edge.batch_axes for edge in node.inputs)
        }
        self.ops = tuple(dict.fromkeys(node.op for node in nodes))

    @cached_property
    def order(self) -> tuple[str, ...]:
        """Names of the steps in topological order, inputs first."""
        graph = {name: set(inputs) - {self.source} for name, inputs in self.inputs.items()}
        return tuple(TopologicalSorter(graph).static_order())

    def descendants(self, name: str) -> frozenset[str]:
        """Return the names of all steps that depend, directly or not, on the output of step `name`."""
        descendants: set[str] = set()
        pending = list(self.consumers[name])
        while pending:
            consumer = pending.pop()
            if consumer not in descendants:
                descendants.add(consumer)
                pending += self.consumers[consumer]
        return frozenset(descendants)


def build_joint_dag(op: str) -> Dag:
    """Build the graph that the front process uses for an ensemble whose steps all run in one worker.

    op: name of the Op with that worker.
    """
    return Dag((Node(JOINT, op, (Edge(REQUEST_OP),)),), JOINT)


def collect_ops(last: Op) -> dict[str, Op]:
    """Return the service's steps (Ops) by name, in topological order: the last Op and its dependencies.

    RequestOp and ResponseOp are left out unless user code overrides them. Raises ConfigError for a duplicate
    name, a cycle, an Op without input_ops, or a jump to an Op that is not in the result.
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
    """Return the step (Op) whose output is the response: `last`, or the input of a plain ResponseOp.

    A plain ResponseOp is not overridden by user code. Raises ConfigError for a value that is no Op, and for a
    RequestOp.
    """
    if isinstance(last, ResponseOp) and not last.packs:
        (last,) = last.input_ops
    if not isinstance(last, Op) or isinstance(last, RequestOp):
        raise ConfigError(
            f"get_pipeline_response returned {type(last).__name__}; return the last Op of the service"
        )
    return last


def build_dag(ops: Mapping[str, Op], last: Op, *, first_arrival: bool = False) -> Dag:
    """Build the graph of a service from its steps (Ops), as collected by `collect_ops`.

    `last` is the Op whose output is the response. first_arrival: whether a step with several inputs runs on
    the first input that arrives, instead of waiting for all.
    """
    source = MESSAGE if REQUEST_OP in ops else REQUEST_OP
    nodes = tuple(_build_node(op) for op in ops.values())
    return Dag(nodes, answering_op(last).name, source=source, first_arrival=first_arrival)


def build_signature(ops: Mapping[str, Op], last: Op, default_rows: int = DEFAULT_KSERVE_ROWS) -> Signature:
    """Return the service's input and output tensors, as its steps (Ops) declare them for KServe clients.

    Inputs come from the Ops that read the request, outputs from the last Op. default_rows: maximum rows of a
    request if no Op declares a maximum. Raises ConfigError with all mistakes.
    """
    flaws: list[str] = []
    inputs: dict[str, TensorSpec] = {}
    answering = answering_op(last)
    entry_ops = get_entry_ops(ops)
    max_rows = max((op.max_batch_size for op in entry_ops), default=0)
    for op in entry_ops:
        for spec in _declared(op, "input_tensors", max_rows, flaws):
            if inputs.setdefault(spec.name, spec) != spec:
                flaws.append(f"Op {op.name}: input_tensors: another Op declares {spec.name!r} differently")
    outputs = _declared(answering, "output_tensors", max_rows, flaws)
    if flaws:
        raise ConfigError("\n".join(flaws))
    signature = Signature(tuple(inputs.values()), outputs, max_rows)
    if not max_rows and signature.has_rows and all(op.takes_rows for op in entry_ops):
        return signature._replace(max_batch_size=default_rows)
    return signature


def get_entry_ops(ops: Mapping[str, Op]) -> list[Op]:
    """Return the first steps of a service: the Ops that read the request (with a RequestOp as input)."""
    return [op for op in ops.values() if any(isinstance(input_op, RequestOp) for input_op in op.input_ops)]


def get_raw_bodies(ops: Mapping[str, Op]) -> dict[str, str]:
    """Return the name of the input that receives a whole HTTP body, by media type: `{"image/*": "image"}`."""
    return {media.lower(): name for op in get_entry_ops(ops) for media, name in op.raw_bodies.items()}


def _declared(op: Op, attribute: str, max_rows: int, flaws: list[str]) -> tuple[TensorSpec, ...]:
    try:
        return declared_specs(
            f"Op {op.name}: {attribute}", getattr(op, attribute), max_rows > 0, labels=op.output_labels
        )
    except ConfigError as exc:
        flaws.append(exc.message)
        return ()


def _build_node(op: Op) -> Node:
    inputs = (MESSAGE,) if isinstance(op, RequestOp) else tuple(i.name for i in op.input_ops)
    return Node(op.name, op.name, tuple(map(Edge, inputs)), tuple(j.name for j in op.jump_to_ops))


def _reachable(last: Op) -> dict[str, Op]:
    ops: dict[str, Op] = {}
    pending: list[Op] = [last]
    while pending:
        op = pending.pop()
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
        pending += op.input_ops
    return ops


def _input_names(op: Op) -> set[str]:
    return {i.name for i in op.input_ops}
