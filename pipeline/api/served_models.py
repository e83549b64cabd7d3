"""The models of a server as data: what clients may ask for by a name, and where such a set comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, NamedTuple, Protocol

from pipeline.api.dag import FEED, Dag, Edge, Node, batch_axes_of_data
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature


class ServedModel(NamedTuple):
    """What a client asks for by its name: a script's DAG, one Op's model by itself, or an ensemble.

    A step of an ensemble names an Op, so that many models may share its queue, its workers and the version
    that they run; an ensemble within another stands there with its own steps.
    signature: the tensors that it declares; None: those of its only Op, known once a worker has loaded it.
    version: the one of its name that it is; empty: the one that its Op runs, or none. config: as Triton's
    clients are told it (the fields of ModelConfig); None: what its Op's section comes to. folder: of the
    model in a repository, with its versions; empty elsewhere.
    """

    name: str
    graph: Dag
    signature: Signature | None = None
    version: str = ""
    config: Mapping[str, Any] | None = None
    folder: str = ""

    @property
    def key(self) -> str:
        """What tells it from the other versions of its name."""
        return f"{self.name}:{self.version}" if self.version else self.name

    @property
    def op(self) -> str:
        """The Op whose model it is by itself; empty for a DAG."""
        return self.graph.ops[0] if self.graph.source == FEED else ""

    @property
    def answering_op(self) -> str:
        """The Op whose output is the answer."""
        return self.graph.nodes[self.graph.response].op

    def to_data(self) -> dict[str, Any]:
        """In plain values, for `of_data`."""
        graph = self.graph
        return {
            "name": self.name,
            "nodes": list(graph.nodes.values()),
            "response": graph.response,
            "source": graph.source,
            "answer": graph.answer,
            "carried": graph.carried,
            "answer_axes": graph.answer_axes,
            "first_arrival": graph.first_arrival,
            "signature": self.signature,
            "version": self.version,
            "config": self.config,
            "folder": self.folder,
        }

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> ServedModel:
        """What `to_data` has made, after a way through JSON."""
        nodes = tuple(
            Node(name, op, tuple(Edge.of_data(*edge) for edge in inputs), tuple(jumps))
            for name, op, inputs, jumps in data["nodes"]
        )
        graph = Dag(
            nodes,
            data["response"],
            source=data["source"],
            answer=data["answer"],
            carried=data["carried"],
            answer_axes=batch_axes_of_data(data["answer_axes"]),
            first_arrival=data["first_arrival"],
        )
        signature = data["signature"]
        return cls(
            data["name"],
            graph,
            None if signature is None else Signature.of_data(signature),
            data["version"],
            data["config"],
            data["folder"],
        )


def answered_by(models: Iterable[ServedModel], op: str) -> dict[str, ServedModel]:
    """The models whose answer this Op's output is, by their keys."""
    return {model.key: model for model in models if model.answering_op == op}


class ModelSource(Protocol):
    """Where the models of a server come from."""

    def models(self) -> list[ServedModel]:
        """All that are served; the first is meant where a request names none. Raises ConfigError."""
        ...


class ScriptModels:
    """The models of a service script: its whole DAG under the service's name, and each Op by itself.

    An Op that is named as the service is called `<name>_model`. Only those whose workers load a model can be
    asked by themselves.
    """

    def __init__(self, name: str, dag: Dag, signature: Signature) -> None:
        """name: the service's. signature: of the whole DAG."""
        self._name = name
        self._dag = dag
        self._signature = signature

    def models(self) -> list[ServedModel]:
        """The DAG first, then its Ops."""
        models = {self._name: ServedModel(self._name, self._dag, self._signature)}
        for op in self._dag.ops:
            if not op.startswith("@"):
                name = f"{op}_model" if op == self._name else op
                models[name] = ServedModel(name, Dag((Node(op, op, (Edge(FEED),)),), op, source=FEED))
        return list(models.values())


def collect_models(source: ModelSource) -> tuple[ServedModel, ...]:
    """The models of a source, each with edges that lead somewhere. Raises ConfigError with all mistakes."""
    models = source.models()
    names = [model.key for model in models]
    flaws = [f"two models are named {name}" for name in sorted({n for n in names if names.count(n) > 1})]
    if not models:
        flaws.append("there is no model to serve")
    for model in models:
        flaws += [f"model {model.name}: {flaw}" for flaw in _find_edge_errors(model.graph)]
    if flaws:
        raise ConfigError("\n".join(flaws))
    return tuple(models)


def _find_edge_errors(graph: Dag) -> list[str]:
    flaws = [
        f"{name} is given the output of {source}, which is no step"
        for name, inputs in graph.inputs.items()
        for source in inputs
        if source not in graph.consumers
    ]
    flaws += [f"{name} is given nothing" for name, inputs in graph.inputs.items() if not inputs]
    flaws += [
        f"{name} is given {source} by two edges; one can pass all its tensors on"
        for name, inputs in graph.inputs.items()
        for source in dict.fromkeys(inputs)
        if inputs.count(source) > 1
    ]
    flaws += [
        f"{node.name} jumps to {target}, which is no step"
        for node in graph.nodes.values()
        for target in node.jumps
        if target not in graph.nodes
    ]
    if graph.response not in graph.nodes:
        flaws.append(f"{graph.response} shall answer, which is no step")
    try:
        _ = graph.order
    except CycleError as exc:
        flaws.append(f"its steps form a cycle: {' -> '.join(exc.args[1])}")
    return flaws
