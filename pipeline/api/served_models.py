"""The models of a server as data, and the sources that list them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from graphlib import CycleError
from typing import Any, NamedTuple, Protocol

import msgspec

from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.queue_policy import ModelBatching, parse_dynamic_batching
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature


class ServedModel(NamedTuple):
    """A model that clients request by name: a script's DAG, the model of one Op, or an ensemble.

    A step of an ensemble names an Op: models may share the Op's queue, workers and version. A nested ensemble
    is expanded into its steps.
    """

    name: str
    graph: Dag
    signature: Signature | None = None  # None: the signature of its only Op, once a worker has loaded it
    version: str = ""  # empty: the version that its Op runs, or none
    config: Mapping[str, Any] | None = None  # Triton's ModelConfig; None: derived from the Op's section
    folder: str = ""  # the model's folder in a repository

    @property
    def key(self) -> str:
        """Unique key among all versions: `name:version`, or the name without a version."""
        return f"{self.name}:{self.version}" if self.version else self.name

    @property
    def op(self) -> str:
        """The Op of a single model; empty for a DAG."""
        return self.graph.ops[0] if self.graph.source == FEED else ""

    @property
    def answering_op(self) -> str:
        """The Op whose output is the answer."""
        return self.graph.nodes[self.graph.response].op

    @property
    def batching(self) -> ModelBatching:
        """Batching settings of the model's queue."""
        return ModelBatching() if self.config is None else parse_dynamic_batching(self.config)

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is an ensemble: errors name the step that has failed."""
        return self.graph.answer is not None

    def describe_step(self, node: str) -> str:
        """Return the description of an ensemble's step, for the errors of the step."""
        model, _, version = self.graph.nodes[node].op.rpartition(":")
        step = f"('{model}' version {version})" if model else f"('{version}')"
        return f"in ensemble '{self.name}', step {node} {step}"


def write_models(models: Iterable[ServedModel]) -> str:
    """Return models as JSON, for `read_models` in another process."""
    return json.dumps(msgspec.to_builtins(list(models)))


def read_models(text: str) -> list[ServedModel]:
    """Parse the JSON of `write_models`."""
    return msgspec.convert(json.loads(text), list[ServedModel])


def answered_by(models: Iterable[ServedModel], op: str) -> dict[str, ServedModel]:
    """Return, by key, the models whose answer is this Op's output."""
    return {model.key: model for model in models if model.answering_op == op}


class ModelSource(Protocol):
    """A source of the models of a server."""

    def models(self) -> list[ServedModel]:
        """List the served models. The first answers requests that name none. Raises ConfigError."""
        ...


class ScriptModels:
    """The models of a service script: the DAG under the service's name, and the model of each Op.

    An Op with the service's name is served as `<name>_model`. Requests for an Op's model need an Op whose
    workers load a model.
    """

    def __init__(self, name: str, dag: Dag, signature: Signature) -> None:
        """`name` is the service's name, `signature` that of the whole DAG."""
        self._name = name
        self._dag = dag
        self._signature = signature

    def models(self) -> list[ServedModel]:
        """List the DAG, then its Ops."""
        models = {self._name: ServedModel(self._name, self._dag, self._signature)}
        for op in self._dag.ops:
            if not op.startswith("@"):
                name = f"{op}_model" if op == self._name else op
                models[name] = ServedModel(name, Dag((Node(op, op, (Edge(FEED),)),), op, source=FEED))
        return list(models.values())


def collect_models(source: ModelSource) -> tuple[ServedModel, ...]:
    """Return the models of a source, with checked edges. Raises ConfigError with all mistakes."""
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
