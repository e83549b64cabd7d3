"""Triton ensembles as graphs (Dag) of this server: one node per step, nested ensembles expanded.

Each node names the queue and workers (an Op) of its model, so ensembles share them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from google.protobuf import json_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.api.app import ServedModel
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.op import REQUEST_OP
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import BatchAxes, BatchAxis, TensorSpec
from pipeline.triton.model_folder import build_specs


class _DeclaredTensor(NamedTuple):
    """Datatype and shape of an input or output, as one model's config.pbtxt declares it."""

    model: str
    datatype: str
    dims: tuple[int, ...]  # without the batch axis
    shape: tuple[int, ...]  # with the batch axis

    @classmethod
    def by(cls, model: str, spec: TensorSpec, *, batched: bool) -> _DeclaredTensor:
        """Build the declaration from a model's tensor spec.

        batched: whether its first dim is the batch axis.
        """
        shape = tuple(spec.shape)
        return cls(model, spec.datatype, shape[1:] if batched else shape, shape)

    def agrees_on_shape(self, other: _DeclaredTensor) -> bool:
        """Return whether two declared shapes can match; dims of any length (-1) are checked per request.

        One model's batch axis may correspond to the first dim of a model without a batch axis.
        """
        return _fit(self.dims, other.dims) or _fit(self.shape, other.shape)


class EnsembleTensors:
    """Checks that all models of an ensemble agree on the datatype and shape of each shared tensor.

    Remembers each tensor's first declaration, by its name in the ensemble.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Start with the inputs and outputs that the ensemble's own config.pbtxt declares."""
        self._ensemble = config.name
        self._max_batch_size = config.max_batch_size
        batched = config.max_batch_size > 0
        self._declared = {
            spec.name: _DeclaredTensor.by(config.name, spec, batched=batched)
            for tensors in (config.input, config.output)
            for spec in build_specs(tensors, config.max_batch_size)
        }

    def add_step_model(
        self, model: ServedModel, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        """Check the inputs and outputs of one step's model, and remember new ones.

        inputs, outputs: the step's input_map and output_map, from the model's tensor names to the ensemble's.
        Raises ConfigError for a tensor that does not agree with the ensemble or with another model.
        """
        signature = model.signature
        assert signature is not None  # every model of a repository declares its tensors
        if 0 < signature.max_batch_size < self._max_batch_size:
            raise ConfigError(
                f"ensemble {self._ensemble} allows maximum batch size {self._max_batch_size}, but it "
                f"contains model {model.name} which only allows maximum batch size to be "
                f"{signature.max_batch_size}"
            )
        self._check_tensor_names(model.name, "input", inputs, signature.inputs)
        self._check_tensor_names(model.name, "output", outputs, signature.outputs)
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
                    self._check_consistency(
                        names[spec.name], _DeclaredTensor.by(model.name, spec, batched=batched)
                    )

    def _check_tensor_names(
        self, model: str, kind: str, names: Mapping[str, str], specs: Iterable[TensorSpec]
    ) -> None:
        declared = {spec.name for spec in specs}
        for name, tensor in names.items():
            if name not in declared:
                raise ConfigError(
                    f"in ensemble {self._ensemble}, ensemble tensor {tensor} is mapping to non-existing "
                    f"{kind} {name} in model {model}"
                )

    def _check_consistency(self, name: str, tensor: _DeclaredTensor) -> None:
        first = self._declared.setdefault(name, tensor)
        about = f"in ensemble {self._ensemble}, ensemble tensor {name}: inconsistent"
        if first.datatype != tensor.datatype:
            raise ConfigError(
                f"{about} data type: {first.datatype} is inferred from model {first.model} while "
                f"{tensor.datatype} is inferred from model {tensor.model}"
            )
        if not first.agrees_on_shape(tensor):
            raise ConfigError(
                f"{about} shape: {list(first.shape)} is inferred from model {first.model} while "
                f"{list(tensor.shape)} is inferred from model {tensor.model}"
            )


def _fit(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(shape) == len(other) and all(
        -1 in (length, other_length) or length == other_length
        for length, other_length in zip(shape, other, strict=True)
    )


FindModel = Callable[[str, int], ServedModel]
"""Finds a model by name and version, -1 for the newest. Raises ConfigError."""


class TensorSource(NamedTuple):
    """The node of an ensemble's graph, or the request, that produces a tensor of the ensemble."""

    node: str  # REQUEST_OP: the request
    name: str  # the tensor's name in the node's outputs, or in the request
    batched: bool  # whether it has a batch axis
    axes: tuple[BatchAxis, ...] = ()  # conversions that add or remove the batch axis between the steps

    def convert_to(self, dims: Sequence[int], *, batched: bool) -> TensorSource:
        """Return this source with the conversion that adds or removes the batch axis for a receiving model.

        The source is unchanged if both or neither have a batch axis. dims: the receiver's shape without the
        batch axis. batched: whether the receiver has a batch axis.
        """
        if self.batched == batched:
            return self
        return self._replace(batched=batched, axes=(*self.axes, BatchAxis(tuple(dims), batched)))


def check_ensemble(config: ModelConfig) -> list[str]:
    """Return an error message, in Triton's words, for each mistake in an ensemble's config.pbtxt.

    The step models are not read; `build_ensemble_dag` checks their tensors.
    """
    errors = [*_find_setting_errors(config)] or [*_find_step_errors(config)]
    return errors or [*_find_flow_errors(config)]


def _find_setting_errors(config: ModelConfig) -> Iterator[str]:
    name = config.name
    if not config.HasField("ensemble_scheduling"):
        yield f"ensemble scheduling must be set for ensemble {name} whose platform is ensemble"
    elif config.platform != "ensemble" and (config.platform or config.backend):
        yield f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble"
    elif config.backend:
        yield f"Ensemble model '{name}' must have platform type 'ensemble' and empty backend type"
    if config.instance_group:
        yield f"instance group should not be specified for ensemble '{name}'"
    if config.HasField("optimization"):
        yield f"optimization should not be specified for ensemble '{name}'"
    if config.model_warmup:
        yield f"model_warmup can not be specified for ensemble '{name}'"
    if config.HasField("ensemble_scheduling") and not config.ensemble_scheduling.step:
        yield f"must specify 'step' for ensemble '{name}'"


def _find_step_errors(config: ModelConfig) -> Iterator[str]:
    produced: set[str] = set()
    for number, step in enumerate(config.ensemble_scheduling.step):
        for field in ("model_name", "input_map", "output_map"):
            if not getattr(step, field):
                yield f"must specify '{field}' in step {number} of ensemble '{config.name}'"
        for tensor in step.output_map.values():
            if tensor in produced:
                yield (
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble "
                    f"'{config.name}' step {number}"
                )
            produced.add(tensor)


def _find_flow_errors(config: ModelConfig) -> Iterator[str]:
    """Yield an error for each tensor of an ensemble that nothing produces, or nothing uses."""
    steps, name = config.ensemble_scheduling.step, config.name
    used = {tensor for step in steps for tensor in step.input_map.values()}
    sources = {tensor: step.input_map.values() for step in steps for tensor in step.output_map.values()}
    ready = {tensor.name for tensor in config.input}
    for _ in steps:
        ready |= {tensor for tensor, inputs in sources.items() if ready.issuperset(inputs)}
    for tensor in config.input:
        if tensor.name not in used:
            yield f"ensemble input '{tensor.name}' for ensemble '{name}' is not used"
        if tensor.name in sources:
            yield f"ensemble input '{tensor.name}' for ensemble '{name}' is the output of a step, too"
    outputs = [tensor.name for tensor in config.output]
    for output in outputs:
        if output not in used.union(sources, ready):
            yield f"ensemble output '{output}' for ensemble '{name}' is not used"
        elif output not in ready:
            missing = next((tensor for tensor in sorted(used - ready) if tensor != output), "")
            reason = f": at least one of its depending tensors, '{missing}', is not connected"
            yield f"output '{output}' for ensemble '{name}' is not written{reason if missing else ''}"
    for inner in sorted(used.union(sources).difference(outputs)):
        if inner not in ready:  # Triton also refuses a step's output that nothing uses
            yield f"ensemble tensor '{inner}' is unused in ensemble '{name}'"


def check_decoupled_steps(ensemble: str, graph: Dag, decoupled: Sequence[str]) -> None:
    """Raise ConfigError if two decoupled steps of an ensemble do not depend on each other.

    Decoupled steps send several responses each, and no rule pairs the responses of two steps. decoupled:
    names of nodes in the graph.
    """
    for first, second in itertools.combinations(decoupled, 2):
        if not (_feeds(graph, first, second) or _feeds(graph, second, first)):
            raise ConfigError(
                f"in ensemble {ensemble}, steps {first} and {second} are decoupled, and neither gets the "
                "other's outputs: run one behind the other, or call one from a Python model"
            )


def _feeds(graph: Dag, first: str, second: str) -> bool:
    """Return whether outputs of node `first` reach node `second`, directly or through other nodes."""
    sources = [
        edge.source for edge in graph.nodes[second].inputs if edge.tensors and edge.source in graph.nodes
    ]
    return first in sources or any(_feeds(graph, first, source) for source in sources)


def list_step_models(config: ModelConfig) -> list[str]:
    """Return the names of the models that an ensemble's steps run, each once."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def build_ensemble_dag(config: ModelConfig, find: FindModel) -> Dag:
    """Build the graph that serves an ensemble, from a config.pbtxt that passed `check_ensemble`.

    find: returns a model by name and version. Raises ConfigError for a step whose tensors do not fit its
    model, and for steps in a circle.
    """
    nodes: list[Node] = []
    declarations = EnsembleTensors(config)
    batched = config.max_batch_size > 0
    tensors = {tensor.name: TensorSource(REQUEST_OP, tensor.name, batched) for tensor in config.input}
    pending = list(enumerate(config.ensemble_scheduling.step, 1))
    while pending:
        ready = [
            (number, step) for number, step in pending if all(t in tensors for t in step.input_map.values())
        ]
        if not ready:
            stuck = ", ".join(step.model_name for _, step in pending)
            raise ConfigError(f"circular dependency between the steps of ensemble '{config.name}': {stuck}")
        for number, step in ready:
            model = find(step.model_name, step.model_version)
            declarations.add_step_model(model, step.input_map, step.output_map)
            feeds = {feed: tensors[tensor] for feed, tensor in step.input_map.items()}
            step_outputs = _add_step(nodes, str(number), model, feeds)
            for output, tensor in step.output_map.items():
                tensors[tensor] = step_outputs[output]
        pending = [entry for entry in pending if entry not in ready]
    dims = {
        tensor.name: tensor.reshape.shape if tensor.HasField("reshape") else tensor.dims
        for tensor in config.output
    }
    outputs = sorted(dims)  # the order in which Triton answers
    return _build_answering_dag(
        nodes, {name: tensors[name].convert_to(dims[name], batched=batched) for name in outputs}
    )


def _add_step(
    nodes: list[Node], number: str, model: ServedModel, inputs: Mapping[str, TensorSource]
) -> dict[str, TensorSource]:
    """Add the graph nodes of one ensemble step to `nodes`; a nested ensemble adds one node per inner step.

    Returns the source of each output of the step's model, by the output's name.
    """
    assert model.signature is not None
    batched = model.signature.max_batch_size > 0
    dims = {spec.name: spec.shape[1:] if batched else spec.shape for spec in model.signature.inputs}
    inputs = {name: source.convert_to(dims[name], batched=batched) for name, source in inputs.items()}
    if model.op:
        nodes.append(Node(number, model.op, tuple(_build_edges(inputs))))
        return {spec.name: TensorSource(number, spec.name, batched) for spec in model.signature.outputs}
    graph = model.graph
    renamed = {node: f"{number}.{node}" for node in graph.nodes}
    for node in graph.nodes.values():
        feeds: dict[str, TensorSource] = {}
        for edge in node.inputs:
            for name, names in (edge.tensors or {}).items():
                inner = edge.source != REQUEST_OP
                source = TensorSource(renamed[edge.source], name, batched) if inner else inputs.get(name)
                if source is not None:
                    for feed in (names,) if isinstance(names, str) else names:
                        axes = tuple(edge.batch_axes.get(feed, ()))
                        feeds[feed] = source._replace(axes=(*source.axes, *axes))
        nodes.append(Node(renamed[node.name], node.op, tuple(_build_edges(feeds))))
    answers = {graph.response: graph.answer or {}, **graph.carried}
    return {
        new: TensorSource(renamed[node_name], old, batched, tuple(graph.answer_axes.get(new, ())))
        for node_name, names in answers.items()
        for old, new in names.items()
    }


def _build_edges(feeds_by_name: Mapping[str, TensorSource]) -> list[Edge]:
    """Build the incoming edges of a graph node: one edge per source node, with all tensors from that node.

    feeds_by_name: the source of each input of the node's model.
    """
    by_node: dict[str, dict[str, list[str]]] = {}
    axes: dict[str, dict[str, BatchAxes]] = {}
    for feed, source in feeds_by_name.items():
        by_node.setdefault(source.node, {}).setdefault(source.name, []).append(feed)
        if source.axes:
            axes.setdefault(source.node, {})[feed] = source.axes
    return [
        Edge(
            node,
            {name: feeds[0] if len(feeds) == 1 else tuple(feeds) for name, feeds in names.items()},
            axes.get(node, {}),
        )
        for node, names in by_node.items()
    ]


def _build_answering_dag(nodes: Sequence[Node], outputs: Mapping[str, TensorSource]) -> Dag:
    """Build the graph of these nodes.

    The last node that produces an output of the ensemble sends the response. Outputs of other nodes are
    passed on to that node.
    """
    makers = {source.node for source in outputs.values()}
    last = next(node.name for node in reversed(nodes) if node.name in makers)
    answer: dict[str, str] = {}
    carried: dict[str, dict[str, str]] = {}
    for name, source in outputs.items():
        names = answer if source.node == last else carried.setdefault(source.node, {})
        names[source.name] = name
    waited = [
        node._replace(inputs=(*node.inputs, *(Edge(n, {}) for n in carried if n not in _get_sources(node))))
        if node.name == last
        else node
        for node in nodes
    ]
    axes = {name: source.axes for name, source in outputs.items() if source.axes}
    return Dag(tuple(waited), last, source=REQUEST_OP, answer=answer, carried=carried, answer_axes=axes)


def _get_sources(node: Node) -> set[str]:
    return {edge.source for edge in node.inputs}


def build_model_dag(op: str) -> Dag:
    """Build the graph with one node that serves a single model. op: the name of its queue and workers."""
    return Dag((Node(op, op, (Edge(FEED),)),), op, source=FEED)


def rebuild_ensembles(models: Sequence[ServedModel], changed: Collection[str]) -> list[ServedModel]:
    """Return all models, with the graph of each ensemble that uses `changed` rebuilt on the current versions.

    changed: names of models that were loaded again. An ensemble whose tensors no longer fit its models keeps
    its old graph, and so the old versions of its models.
    """
    rebuilt: dict[str, ServedModel] = {}

    def find(name: str, version: int, ensemble: ServedModel) -> ServedModel:
        candidates = _select_step_models(models, name, ensemble.repository)
        versions = [m for m in candidates if version == -1 or m.version == str(version)]
        if not versions:
            raise ConfigError(f"version {version} of model {name} is not served")
        return current(versions[-1])

    def current(model: ServedModel) -> ServedModel:
        if model.key not in rebuilt:
            rebuilt[model.key] = model
            config = None if model.op else _get_config(model)
            if config is not None and any(_depends_on(config, name, models) for name in changed):
                with contextlib.suppress(ConfigError):
                    graph = build_ensemble_dag(config, partial(find, ensemble=model))
                    rebuilt[model.key] = model._replace(graph=graph)
        return rebuilt[model.key]

    return list(map(current, models))


def _select_step_models(models: Sequence[ServedModel], name: str, repository: str) -> list[ServedModel]:
    """Return the versions of the model that a step of an ensemble runs.

    The model in the ensemble's own repository folder takes precedence. The result is empty if the name is
    only in other folders, and in several of them.
    """
    named = [model for model in models if model.public_name == name]
    same_folder = [model for model in named if model.repository == repository]
    return same_folder or (named if len({model.name for model in named}) == 1 else [])


def _depends_on(config: ModelConfig, name: str, models: Sequence[ServedModel]) -> bool:
    """Return whether the ensemble runs the model `name`, directly or in a nested ensemble."""
    steps = list_step_models(config)
    inner = [
        inner
        for model in models
        if model.public_name in steps and not model.op and (inner := _get_config(model))
    ]
    return name in steps or any(_depends_on(inner_config, name, models) for inner_config in inner)


def _get_config(model: ServedModel) -> ModelConfig | None:
    """Return the parsed config.pbtxt of an ensemble; None for a graph that a user's script defines."""
    if model.config is None or "ensemble_scheduling" not in model.config:
        return None
    return json_format.ParseDict(dict(model.config), ModelConfig(), ignore_unknown_fields=True)
