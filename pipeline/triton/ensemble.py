"""Ensembles: the steps of an ensemble as a Dag of the models' Ops, ensembles within it by their own steps."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf import json_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.api.batch_axis import BatchAxes, BatchAxis
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.op import REQUEST_OP
from pipeline.api.served_models import ServedModel
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import TensorSpec
from pipeline.triton.model_folder import build_specs


class _Told(NamedTuple):
    """A tensor as one model declares it. dims: without its rows; shape: with them."""

    model: str
    datatype: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def by(cls, model: str, spec: TensorSpec, *, batched: bool) -> _Told:
        shape = tuple(spec.shape)
        return cls(model, spec.datatype, shape[1:] if batched else shape, shape)

    def agrees_on_shape(self, other: _Told) -> bool:
        """Dims of any length are seen at the request. To a model without rows they may be a dim."""
        return _fit(self.dims, other.dims) or _fit(self.shape, other.shape)


class EnsembleTensors:
    """The tensors of one ensemble, by their names there: each as whoever named it first declares it."""

    def __init__(self, config: ModelConfig) -> None:
        self._ensemble = config.name
        batched = config.max_batch_size > 0
        self._known = {
            spec.name: _Told.by(config.name, spec, batched=batched)
            for tensors in (config.input, config.output)
            for spec in build_specs(tensors, config.max_batch_size)
        }

    def take(self, model: ServedModel, inputs: Mapping[str, str], outputs: Mapping[str, str]) -> None:
        """Take what a step's model declares. inputs, outputs: the ensemble's names of its tensors.

        Raises ConfigError for what does not agree with the ensemble or with another model.
        """
        signature = model.signature
        assert signature is not None  # every model of a repository declares its tensors
        self._check_names(model.name, "input", inputs, signature.inputs)
        self._check_names(model.name, "output", outputs, signature.outputs)
        for spec in signature.inputs:
            if spec.name not in inputs and not spec.optional:
                raise ConfigError(
                    f"in ensemble {self._ensemble}, input {spec.name} in model {model.name} is not mapped to "
                    "any ensemble tensors"
                )
        batched = signature.max_batch_size > 0
        for names, specs in ((inputs, signature.inputs), (outputs, signature.outputs)):
            for spec in specs:
                if spec.name in names:
                    self._check(names[spec.name], _Told.by(model.name, spec, batched=batched))

    def _check_names(
        self, model: str, kind: str, names: Mapping[str, str], specs: Iterable[TensorSpec]
    ) -> None:
        known = {spec.name for spec in specs}
        for name, tensor in names.items():
            if name not in known:
                raise ConfigError(
                    f"in ensemble {self._ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                    f"{kind} {name} in model {model}"
                )

    def _check(self, name: str, told: _Told) -> None:
        known = self._known.setdefault(name, told)
        about = f"in ensemble {self._ensemble}, ensemble tensor {name}: inconsistent"
        if known.datatype != told.datatype:
            raise ConfigError(
                f"{about} data type: {known.datatype} is inferred from model {known.model} while "
                f"{told.datatype} is inferred from model {told.model}"
            )
        if not known.agrees_on_shape(told):
            raise ConfigError(
                f"{about} shape: {list(known.shape)} is inferred from model {known.model} while "
                f"{list(told.shape)} is inferred from model {told.model}"
            )


def _fit(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(
        -1 in (one, another) or one == another for one, another in zip(shape, other, strict=True)
    )


Find = Callable[[str, int], ServedModel]
"""The model of a name and a version, -1 for the newest. Raises ConfigError."""


class Made(NamedTuple):
    """Where a tensor of the ensemble comes from: a node, or the request, and its name there.

    batched: whether it has a batch axis. axes: what adds or removes that on the way.
    """

    node: str
    name: str
    batched: bool
    axes: tuple[BatchAxis, ...] = ()

    def passed_to(self, dims: Sequence[int], *, batched: bool) -> Made:
        """Return the tensor as a model of these dims takes it."""
        if self.batched == batched:
            return self
        return self._replace(batched=batched, axes=(*self.axes, BatchAxis(tuple(dims), batched)))


def check_ensemble(config: ModelConfig) -> list[str]:
    """What is wrong with the steps of an ensemble, whatever its models are."""
    name, steps = config.name, config.ensemble_scheduling.step
    if not steps:
        return [f"must specify 'step' in ensemble_scheduling for ensemble model '{name}'"]
    flaws = []
    inputs = [one.name for one in config.input]
    made = list(inputs)
    used: set[str] = set()
    for number, step in enumerate(steps, 1):
        if not step.model_name:
            flaws.append(f"must specify 'model_name' in step {number} of ensemble '{name}'")
        if not step.input_map or not step.output_map:
            which = "input_map" if not step.input_map else "output_map"
            flaws.append(f"must specify '{which}' in step {number} of ensemble '{name}'")
        made += step.output_map.values()
        used.update(step.input_map.values())
    flaws += [
        f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{name}'"
        for tensor in dict.fromkeys(made)
        if made.count(tensor) > 1
    ]
    flaws += [
        f"ensemble input '{tensor}' for ensemble '{name}' is not used"
        for tensor in inputs
        if tensor not in used
    ]
    flaws += [
        f"ensemble output '{one.name}' for ensemble '{name}' is made by no step"
        for one in config.output
        if one.name not in made
    ]
    flaws += [
        f"ensemble tensor '{tensor}' for ensemble '{name}' is made by no step"
        for tensor in sorted(used - {*made})
    ]
    return flaws


def models_in(config: ModelConfig) -> list[str]:
    """The names of the models that the steps need."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def build_ensemble_dag(config: ModelConfig, find: Find) -> Dag:
    """The Dag of an ensemble without flaws. Raises ConfigError for a step that does not fit its model."""
    nodes: list[Node] = []
    told = EnsembleTensors(config)
    batched = config.max_batch_size > 0
    tensors = {tensor.name: Made(REQUEST_OP, tensor.name, batched) for tensor in config.input}
    left = list(enumerate(config.ensemble_scheduling.step, 1))
    while left:
        ripe = [(number, step) for number, step in left if all(t in tensors for t in step.input_map.values())]
        if not ripe:
            stuck = ", ".join(step.model_name for _, step in left)
            raise ConfigError(f"circular dependency between the steps of ensemble '{config.name}': {stuck}")
        for number, step in ripe:
            model = find(step.model_name, step.model_version or -1)
            told.take(model, step.input_map, step.output_map)
            given = {feed: tensors[tensor] for feed, tensor in step.input_map.items()}
            made = _add_step(nodes, str(number), model, given)
            for output, tensor in step.output_map.items():
                tensors[tensor] = made[output]
        left = [one for one in left if one not in ripe]
    dims = {
        tensor.name: tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        for tensor in config.output
    }
    outputs = sorted(dims)  # the order in which Triton answers
    return _answered(nodes, {name: tensors[name].passed_to(dims[name], batched=batched) for name in outputs})


def _add_step(
    nodes: list[Node], number: str, model: ServedModel, given: Mapping[str, Made]
) -> dict[str, Made]:
    """Add the nodes of one step, of a nested ensemble its own; returns where its outputs are made."""
    assert model.signature is not None
    batched = model.signature.max_batch_size > 0
    dims = {spec.name: spec.shape[1:] if batched else spec.shape for spec in model.signature.inputs}
    given = {name: made.passed_to(dims[name], batched=batched) for name, made in given.items()}
    if model.op:
        nodes.append(Node(number, model.op, tuple(_edges(given))))
        return {spec.name: Made(number, spec.name, batched) for spec in model.signature.outputs}
    graph = model.graph
    renamed = {node: f"{number}.{node}" for node in graph.nodes}
    for node in graph.nodes.values():
        feeds: dict[str, Made] = {}
        for edge in node.inputs:
            for name, names in (edge.tensors or {}).items():
                inner = edge.source != REQUEST_OP
                source = Made(renamed[edge.source], name, batched) if inner else given.get(name)
                if source is not None:
                    for feed in (names,) if isinstance(names, str) else names:
                        axes = tuple(edge.batch_axes.get(feed, ()))
                        feeds[feed] = source._replace(axes=(*source.axes, *axes))
        nodes.append(Node(renamed[node.name], node.op, tuple(_edges(feeds))))
    answers = {graph.response: graph.answer or {}, **graph.carried}
    return {
        new: Made(renamed[node_name], old, batched, tuple(graph.answer_axes.get(new, ())))
        for node_name, names in answers.items()
        for old, new in names.items()
    }


def _edges(given: Mapping[str, Made]) -> list[Edge]:
    """One edge for each source, with all that is taken of it."""
    by_source: dict[str, dict[str, list[str]]] = {}
    axes: dict[str, dict[str, BatchAxes]] = {}
    for feed, made in given.items():
        by_source.setdefault(made.node, {}).setdefault(made.name, []).append(feed)
        if made.axes:
            axes.setdefault(made.node, {})[feed] = made.axes
    return [
        Edge(
            source,
            {name: feeds[0] if len(feeds) == 1 else tuple(feeds) for name, feeds in names.items()},
            axes.get(source, {}),
        )
        for source, names in by_source.items()
    ]


def _answered(nodes: Sequence[Node], outputs: Mapping[str, Made]) -> Dag:
    """The Dag whose last node that makes an output answers; the outputs of others are carried to it."""
    makers = {made.node for made in outputs.values()}
    last = next(node.name for node in reversed(nodes) if node.name in makers)
    answer: dict[str, str] = {}
    carried: dict[str, dict[str, str]] = {}
    for name, made in outputs.items():
        names = answer if made.node == last else carried.setdefault(made.node, {})
        names[made.name] = name
    waited = [
        node._replace(inputs=(*node.inputs, *(Edge(n, {}) for n in carried if n not in _sources(node))))
        if node.name == last
        else node
        for node in nodes
    ]
    axes = {name: made.axes for name, made in outputs.items() if made.axes}
    return Dag(tuple(waited), last, source=REQUEST_OP, answer=answer, carried=carried, answer_axes=axes)


def _sources(node: Node) -> set[str]:
    return {edge.source for edge in node.inputs}


def dag_of_model(op: str) -> Dag:
    """The Dag of a model by itself."""
    return Dag((Node(op, op, (Edge(FEED),)),), op, source=FEED)


def rejoined(models: Sequence[ServedModel], changed: str) -> list[ServedModel]:
    """The models, with the ensembles that need those of this name made of what these models are now.

    One that these no longer fit stays as it is: it goes on with the versions that it has.
    """
    made: dict[str, ServedModel] = {}

    def find(name: str, version: int) -> ServedModel:
        there = [m for m in models if m.name == name and (version == -1 or m.version == str(version))]
        if not there:
            raise ConfigError(f"version {version} of model {name} is not served")
        return current(there[-1])

    def current(model: ServedModel) -> ServedModel:
        if model.key not in made:
            made[model.key] = model
            config = None if model.op else _get_config(model)
            if config is not None and _needs(config, changed, models):
                with contextlib.suppress(ConfigError):
                    made[model.key] = model._replace(graph=build_ensemble_dag(config, find))
        return made[model.key]

    return list(map(current, models))


def _needs(config: ModelConfig, name: str, models: Sequence[ServedModel]) -> bool:
    """Whether the ensemble has a step of this model, or of an ensemble that has one."""
    steps = models_in(config)
    inner = [
        inner for model in models if model.name in steps and not model.op and (inner := _get_config(model))
    ]
    return name in steps or any(_needs(one, name, models) for one in inner)


def _get_config(model: ServedModel) -> ModelConfig | None:
    """The configuration of an ensemble; None for a script's DAG."""
    if model.config is None or "ensemble_scheduling" not in model.config:
        return None
    return json_format.ParseDict(dict(model.config), ModelConfig(), ignore_unknown_fields=True)
