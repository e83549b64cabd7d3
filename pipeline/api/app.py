"""The description of a service and its models, passed as JSON from the user's script to the server.

Worker processes receive the same description.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec
from pydantic import BaseModel

from pipeline.api.buckets import Bucket
from pipeline.api.cache_settings import CacheSettings
from pipeline.api.dag import FEED, Dag, Edge, Node
from pipeline.api.examples import Examples
from pipeline.api.header_patterns import NO_PATTERNS, HeaderPatterns
from pipeline.api.metrics_settings import (
    DEFAULT_METRICS,
    FIRST_RESPONSE,
    FIRST_RESPONSE_BUCKETS,
    MetricsSettings,
)
from pipeline.api.model_names import get_public_name
from pipeline.api.queue_policy import ModelBatching, parse_dynamic_batching
from pipeline.api.restrictions import NO_RESTRICTIONS, Restrictions
from pipeline.api.run_resources import ResourceLimits, RunNeeds, parse_run_needs
from pipeline.api.sequences import SequenceRules, parse_rules
from pipeline.config.config_file import ServiceConfig
from pipeline.errors import ConfigError
from pipeline.models.tensor_spec import Signature
from pipeline.plugins import Plugin
from pipeline.tuning.choice import Choice


class ServedModel(NamedTuple):
    """A model that clients request by name: a script's DAG, the model of one step (Op), or a Triton ensemble.

    Several models may share an Op, with its queue, workers and model version. Each step of an ensemble names
    the Op that runs it. A nested ensemble is expanded into its steps.
    """

    name: str
    graph: Dag
    signature: Signature | None = None  # None: the signature of its only Op, once a worker has loaded it
    version: str = ""  # empty: the version that its Op runs, or none
    config: Mapping[str, Any] | None = None  # Triton's ModelConfig; None: derived from the Op's section
    folder: str = ""  # the model's folder in a repository
    joint_op: str = ""  # the Op whose workers run all steps of an ensemble; empty: only the Ops of its steps

    @property
    def key(self) -> str:
        """Unique key of the model and its version: `name:version`, or the name without a version."""
        return f"{self.name}:{self.version}" if self.version else self.name

    @property
    def public_name(self) -> str:
        """The name in requests, which models of several repositories may share (`--model-namespacing`)."""
        return self.name if self.config is None else get_public_name(self.name)

    @property
    def repository(self) -> str:
        """The folder of the model's repository; empty for a model of a script."""
        return str(Path(self.folder).parent) if self.folder else ""

    @property
    def op(self) -> str:
        """The name of the step (Op) whose workers run a single model; empty for a DAG of several steps."""
        return self.graph.ops[0] if self.graph.source == FEED else ""

    @property
    def answering_op(self) -> str:
        """The name of the step (Op) whose output becomes the response."""
        return self.graph.nodes[self.graph.response].op

    @property
    def batching(self) -> ModelBatching:
        """Dynamic batching settings: preferred batch sizes, order of responses and queue limits."""
        return ModelBatching() if self.config is None else parse_dynamic_batching(self.config)

    @property
    def run_needs(self) -> tuple[RunNeeds, ...]:
        """Resources that each instance holds during a run, by instance number; empty without any."""
        return () if self.config is None else parse_run_needs(self.config)

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is a Triton ensemble. Errors of an ensemble name the step that failed."""
        return self.graph.answer is not None

    @property
    def is_decoupled(self) -> bool:
        """Whether the model sends any number of responses to a request (`model_transaction_policy`)."""
        policy = {} if self.config is None else self.config.get("model_transaction_policy", {})
        return bool(policy.get("decoupled"))

    @property
    def uses_cache(self) -> bool:
        """Whether the server's response cache, if it has one, may answer requests (`response_cache`).

        A hit would overtake earlier requests, and so break `preserve_ordering`.
        """
        cache = {} if self.config is None else self.config.get("response_cache", {})
        return bool(cache.get("enable")) and not self.batching.in_order

    @property
    def first_response_buckets(self) -> tuple[float, ...]:
        """Upper bounds of the histogram of first responses, in milliseconds (`model_metrics`)."""
        metrics = {} if self.config is None else self.config.get("model_metrics", {})
        for control in metrics.get("metric_control", ()):
            if control["metric_identifier"]["family"] == FIRST_RESPONSE:
                return tuple(map(float, control["histogram_options"]["buckets"]))
        return FIRST_RESPONSE_BUCKETS

    @property
    def max_inflight_requests(self) -> int:
        """Maximum responses of a decoupled step that later steps process at a time; 0: no limit is set."""
        scheduling = {} if self.config is None else self.config.get("ensemble_scheduling", {})
        return int(scheduling.get("max_inflight_requests", 0))

    @property
    def load_hint(self) -> str:
        """A phrase for error messages that tells clients how to load the unloaded model."""
        return f"POST /v2/repository/models/{self.public_name}/load loads it"

    def describe_step(self, node: str) -> str:
        """Return a phrase for error messages that names a step of the ensemble, its model and version.

        `node` is the name of the step.
        """
        model, _, version = self.graph.nodes[node].op.rpartition(":")
        step = f"('{get_public_name(model)}' version {version})" if model else f"('{version}')"
        return f"in ensemble '{self.name}', step {node} {step}"


def write_models(models: Iterable[ServedModel]) -> str:
    """Serialize models as JSON, for `read_models` in another process."""
    return json.dumps(msgspec.to_builtins(list(models)))


def read_models(text: str) -> list[ServedModel]:
    """Parse the JSON of `write_models`, and return the models."""
    return msgspec.convert(json.loads(text), list[ServedModel])


def answered_by(models: Iterable[ServedModel], op: str) -> dict[str, ServedModel]:
    """Return the models whose response is the output of the Op (step) named `op`, by `ServedModel.key`."""
    return {model.key: model for model in models if op in (model.answering_op, model.joint_op)}


class ModelSource(Protocol):
    """Interface of an object that lists the models of a server: a service script or a model repository."""

    def models(self) -> list[ServedModel]:
        """Return the models to serve. Raises ConfigError.

        The first model answers requests that name no model.
        """
        ...


class ScriptModels:
    """Lists the models of a service script: the DAG under the service's name, and each step's (Op's) model.

    An Op with the service's name is served as `<name>_model`. Requests for the model of an Op fail if its
    workers load none.
    """

    def __init__(self, name: str, dag: Dag, signature: Signature) -> None:
        """`name` is the service's name, `signature` has the input and output tensors of the whole DAG."""
        self._name = name
        self._dag = dag
        self._signature = signature

    def models(self) -> list[ServedModel]:
        """Return the whole DAG as a model, then the model of each of its steps (Ops)."""
        models = {self._name: ServedModel(self._name, self._dag, self._signature)}
        for op in self._dag.ops:
            if not op.startswith("@"):
                name = f"{op}_model" if op == self._name else op
                models[name] = ServedModel(name, Dag((Node(op, op, (Edge(FEED),)),), op, source=FEED))
        return list(models.values())


def collect_models(source: ModelSource) -> tuple[ServedModel, ...]:
    """Return the models of a script or a repository, and check the graph of each.

    Raises ConfigError with all mistakes.
    """
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


class RepositoryPlace(NamedTuple):
    """Folders of a Triton model repository, and the server options for loading models from them."""

    folders: tuple[str, ...]
    strict: bool = False  # a model's configuration must be complete
    strict_readiness: bool = True  # the server is not ready while a model can't be served
    poll_s: int = 0  # seconds between scans for changes; 0: never
    strict_devices: bool = False  # a model whose GPU is missing is not served
    starts: int = 0  # workers that start at the same time; 0: one per core
    defaults: tuple[Any, ...] = ()  # default settings of models, see `pipeline.triton.config_file`
    grpc_arguments: tuple[tuple[str, int], ...] = ()  # channel arguments of the gRPC port, by gRPC's names
    install_requirements: bool = False  # pip installs the requirements.txt of Python models
    cache: CacheSettings | None = None  # of the response cache; None: the server has none
    backend_directory: str = ""  # with a folder for each backend that is written in Python; empty: none
    metrics: MetricsSettings = DEFAULT_METRICS
    load_retries: int = 0  # further tries of a load that fails
    resource_limits: ResourceLimits | None = None  # of the rate limiter; None: the server has none
    buckets: tuple[Bucket, ...] = ()  # that are copied to some of the folders
    namespacing: bool = False  # several folders may hold models of one name

    @property
    def addresses(self) -> list[str]:
        """Folders or bucket URLs of the repositories, as written on the command line."""
        addresses = {bucket.folder: bucket.address for bucket in self.buckets}
        return [addresses.get(folder, folder) for folder in self.folders]

    @property
    def backend_path(self) -> Path | None:
        """The folder of backends that are written in Python; None if there is none."""
        return Path(self.backend_directory) if self.backend_directory else None


@dataclass(frozen=True)
class App:
    """The description of a service and its models, sent to the server process and its workers.

    Workers run the user's script again, with the same arguments and working directory.
    """

    name: str
    models: tuple[ServedModel, ...]  # the first answers requests that name no model
    config: ServiceConfig
    script: str  # the file that called run_service
    arguments: tuple[str, ...]  # its sys.argv[1:]
    folder: str  # its working directory
    examples: Examples  # requests that the Ops declare as answerable
    module: str = ""  # the script's module name, after `python -m app.web_service`
    raw_bodies: Mapping[str, str] = field(default_factory=dict)  # by media type, the input of a raw HTTP body
    described: Mapping[str, Any] = field(default_factory=dict)  # by Op, `Description.as_dict` of its model
    repository: RepositoryPlace | None = None  # None: the models come from the script
    notes: tuple[str, ...] = ()  # remarks about the models, for the log
    exit_on_error: bool = True  # a failed Op ends the service; False: its models are unavailable
    repository_error: str = ""  # why the repository can't be read; the server is then not ready
    unavailable: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Models that can't be served from the start: by name, the version (empty for all) and the reason."""
    without_versions: tuple[str, ...] = ()  # names of unavailable models whose folder has no version to load
    dialects: tuple[Plugin, ...] = ()  # added by the front, for workers
    choices: Mapping[str, Choice] = field(default_factory=dict)  # by Op with `auto`, the fastest choice
    restrictions: Restrictions = NO_RESTRICTIONS  # APIs that require a header
    header_patterns: HeaderPatterns = NO_PATTERNS  # headers that become parameters of requests
    sequences: Mapping[str, SequenceRules] = field(default_factory=dict)  # by Op of a script

    @property
    def default(self) -> ServedModel | None:
        """The model that answers requests without a model name; None if the models come from a repository."""
        return self.models[0] if self.repository is None else None

    @cached_property
    def ops(self) -> tuple[str, ...]:
        """Names of all Ops of the service, in the topological order of each model's graph.

        An Op is a step of the service, with its workers and queue.
        """
        return tuple(dict.fromkeys(m.graph.nodes[node].op for m in self.models for node in m.graph.order))

    @cached_property
    def joint_ops(self) -> tuple[str, ...]:
        """Names of the Ops whose workers run all steps of an ensemble.

        They exist besides the Ops of the steps.
        """
        return tuple(model.joint_op for model in self.models if model.joint_op)

    @property
    def requires_all_models(self) -> bool:
        """Whether the server is ready only while every model can be served (Triton's --strict-readiness)."""
        return self.repository is None or self.repository.strict_readiness

    @property
    def has_failed_models(self) -> bool:
        """Whether a version of a model could not be loaded, or a model has no version to load.

        A model with an invalid configuration does not count, as in Triton.
        """
        return any(
            version or name in self.without_versions for name, (version, _) in self.unavailable.items()
        )

    def get_batching(self, op: str) -> ModelBatching:
        """Return the dynamic batching settings of the model that is the only step run by the Op named `op`.

        Returns the defaults for an Op without a model configuration.
        """
        configured = (m for m in self.models if m.op == op and m.config is not None)
        return next((model.batching for model in configured), ModelBatching())

    def get_run_needs(self, op: str) -> tuple[RunNeeds, ...]:
        """Return the resources of the instances of the Op named `op` in a run, by number of the instance.

        Empty for a model that needs no resources, and for a server without a rate limiter.
        """
        if self.repository is None or self.repository.resource_limits is None:
            return ()
        return next((model.run_needs for model in self.models if model.op == op), ())

    def get_sequence_rules(self, op: str) -> SequenceRules | None:
        """Return the rules for the sequences of the Op named `op`; None if its requests form no sequences."""
        configured = (model.config for model in self.models if model.op == op and model.config is not None)
        return self.sequences.get(op) or next(filter(None, map(parse_rules, configured)), None)

    def to_json(self) -> str:
        """Serialize the description as JSON, for `from_json`.

        Python's json encoder is used, because file names and arguments may have bytes that are not UTF-8.
        """
        return json.dumps(msgspec.to_builtins(self, enc_hook=_encode_config))

    @classmethod
    def from_json(cls, text: str | bytes) -> App:
        """Build the description from the JSON of `to_json`."""
        return msgspec.convert(json.loads(text), cls, dec_hook=_decode_config)


def _encode_config(config: Any) -> Any:
    """Convert a pydantic model to plain values, without its defaults.

    Defaults are left out because a worker's model may set keys that config.yml does not set.
    """
    return config.model_dump(mode="json", by_alias=True, exclude_unset=True)


def _decode_config(kind: type[BaseModel], fields: Any) -> BaseModel:
    return kind.model_validate(fields)


def write_app(app: App) -> int:
    """Write the service's description to a memory file that survives exec, and return the file descriptor."""
    fd = os.memfd_create("paddlewheel-app", 0)
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(app.to_json().encode())
    os.lseek(fd, 0, os.SEEK_SET)
    os.set_inheritable(fd, True)
    return fd


def read_app(fd: int) -> App:
    """Return the service's description from the file descriptor of `write_app`, and close the descriptor."""
    with os.fdopen(fd, "rb") as file:
        return App.from_json(file.read())
