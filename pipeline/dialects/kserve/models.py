"""FRONT PROCESS: models that KServe clients see: the whole service, models of its Ops or of a repository."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

from pipeline.api.app import App, ServedModel
from pipeline.api.dag import MESSAGE
from pipeline.api.examples import build_row
from pipeline.api.model_names import get_public_name
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import UnknownVersion
from pipeline.front.http.openapi import Schema
from pipeline.front.repository import LoadFailed, Repository, Standing
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.models.serving_model import UNVERSIONED
from pipeline.models.tensor_spec import Signature
from pipeline.triton.config_file import LABEL, get_runner

_MAX_VERSION = (1 << 63) - 1
_NUMBER = re.compile(r"[ \t-\r]*([+-]?0*[0-9]{1,19})(?![0-9])")
_VALUE: Schema = {"type": ["string", "number", "boolean", "array"], "items": {"type": "string"}}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": _VALUE,
    "description": "Passed to the Ops as they are.",
}
ERROR: Schema = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}


@dataclass(frozen=True)
class KServeModel:
    """A model as KServe clients see it: the whole service, the model of one step, or a model in a repository.

    The steps of a service are its Ops.
    """

    name: str
    op: str  # name of the Op; empty for the service and for an ensemble
    signature: Signature
    version: str = UNVERSIONED
    takes_messages: bool = False  # whether the app unpacks Paddle Serving's message itself
    key: str = ""  # key of the model in the scheduler
    config: Mapping[str, Any] | None = None  # Triton's ModelConfig; None outside of a repository
    is_decoupled: bool = False  # whether the model sends any number of responses to a request
    namespace: str = ""  # the repository's folder, with --model-namespacing
    batch_rule: BatchRule | None = None  # of delayed batches; None: any requests share one

    @property
    def is_ensemble(self) -> bool:
        """Whether the model is an ensemble in a model repository."""
        return self.config is not None and not self.op

    @property
    def reads_sequences(self) -> bool:
        """Whether the model's code can read the sequence id and flags of a request.

        Requests of a sequence to other models are rejected, because these would ignore the sequence.
        """
        return not self.op or (self.config is not None and get_runner(self.config) == "python")

    @cached_property
    def counts_rows(self) -> bool:
        """Whether a request counts as many rows as its tensors have, even if the model does not batch."""
        return self.config is None and self.signature.has_rows

    @cached_property
    def nullable_inputs(self) -> Set[str]:
        """Names of the inputs whose elements may be missing: null in JSON."""
        return frozenset(spec.name for spec in self.signature.inputs if spec.nullable)

    @cached_property
    def default_priority(self) -> int:
        """Priority level of requests that set none, from config.pbtxt. 0: the model has no priorities."""
        batching = {} if self.config is None else self.config.get("dynamic_batching", {})
        return int(batching.get("default_priority_level", 0))

    @property
    def metric_labels(self) -> dict[str, str]:
        """Labels of the model's metrics: its namespace, and its `metric_tags`, each prefixed with "_"."""
        tags = {} if self.config is None else self.config.get("metric_tags", {})
        labels = {"namespace": self.namespace} if self.namespace else {}
        return labels | {f"_{name}": value for name, value in tags.items() if LABEL.fullmatch(name)}

    @property
    def platform(self) -> str:
        """Platform in the model metadata, as Triton names it, or paddlewheel_model or paddlewheel_service."""
        if self.config is not None:
            return str(self.config["platform"] or self.config["backend"])
        return "paddlewheel_model" if self.op else "paddlewheel_service"

    def metadata(self, versions: Sequence[str] = ()) -> dict[str, Any]:
        """Return the model metadata of KServe v2 as JSON: name, versions, platform, inputs and outputs.

        versions: all served versions; by default, only the version of this object.
        """
        return {
            "name": self.name,
            "versions": list(versions) or [self.version],
            "platform": self.platform,
            "inputs": [spec.as_dict() for spec in self.signature.inputs],
            "outputs": [spec.as_dict() for spec in self.signature.outputs],
        }


class _AppModels:
    """The models of an app by key (`name:version`) and by name."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.app = scheduler.app
        self.served = {model.key: model for model in self.app.models}
        self.keys: dict[str, list[str]] = {}  # keys by name and identifier, the oldest version first
        for model in self.app.models:
            for name in {model.name, model.public_name}:
                self.keys.setdefault(name, []).append(model.key)
        place = self.app.repository
        is_namespace = place is not None and place.namespacing
        self.declared = {  # models with known tensors
            model.key: KServeModel(
                model.public_name,
                model.op,
                model.signature,
                scheduler.version(model.key),
                model.graph.source == MESSAGE,
                model.key,
                model.config,
                model.is_decoupled,
                model.repository if is_namespace else "",
                _find_batch_rule(self.app, model),
            )
            for model in self.app.models
            if model.signature is not None
        }


def _find_batch_rule(app: App, model: ServedModel) -> BatchRule | None:
    if model.config is None or not model.op:
        return None
    padding = app.config.op[model.op].padding
    return find_batch_rule(model.config, () if padding is None else padding.feeds)


class KServeModels:
    """Finds models by name and version for KServe requests, and reports whether they are ready."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        self._scheduler = scheduler
        self._repository = repository
        self._cached = _AppModels(scheduler)

    @property
    def _app_models(self) -> _AppModels:
        """The current models.

        The property is computed again after a repository has loaded or unloaded a model.
        """
        if self._cached.app is not self._scheduler.app:
            self._cached = _AppModels(self._scheduler)
        return self._cached

    def all(self) -> Iterable[KServeModel]:
        """Return all models whose tensors are known, also unloaded models, sorted by name and version."""
        models = [model for key in self._app_models.served if (model := self._current(key)) is not None]
        return sorted(models, key=lambda model: (model.name, int(model.version)))

    def loaded(self) -> Iterable[KServeModel]:
        """Return the models that are not unloaded, in the order of names and versions."""
        return [model for model in self.all() if not self._scheduler.has_unloaded(model.key)]

    def unavailable(self) -> Mapping[str, tuple[str, str]]:
        """Return version and reason of each model that can't be served, by the model's identifier."""
        return self._scheduler.app.unavailable

    def repository_names(self) -> list[str]:
        """Return the names of all models in the repository, loaded or not; empty without a repository."""
        return self._repository.names()

    def is_ambiguous(self, name: str) -> bool:
        """Return whether several repository folders hold a model of this name, so that none is served."""
        return self._repository.is_ambiguous(name)

    def loading_versions(self, name: str) -> list[str]:
        """Return the versions of a model that is being loaded and not served yet."""
        return self._repository.loading_versions(name)

    def versions(self, name: str) -> list[str]:
        """Return the loaded versions of a model, ascending; empty for an unknown name."""
        keys = [key for key in self._app_models.keys.get(name, ()) if not self._scheduler.has_unloaded(key)]
        return [model.version for key in keys if (model := self._current(key)) is not None]

    def find_model(self, name: str, version: str = "") -> KServeModel:
        """Return the loaded model that a request names; for an empty version, the newest.

        Raises KServeRefusal for an unknown or unloaded model (HTTP 404), for a name that models in several
        repositories have (400), and for a version that is no number (400). Raises UnknownVersion (404) for a
        version that is not loaded.
        """
        number = parse_version(version) if version else None
        app_models = self._app_models
        keys, served = app_models.keys.get(name, ()), app_models.served
        if number is None and len(keys) == 1 and not self._scheduler.has_unloaded(keys[0]):
            only = self._current(keys[0])  # the case of most requests
            if only is not None:
                return only
        models = [model for key in keys if (model := self._current(key)) is not None]
        if not models and name not in map(get_public_name, self.unavailable()):
            raise KServeRefusal(f"Request for unknown model: '{name}' is not found", "NOT_FOUND")
        loaded = [model for model in models if not self._scheduler.has_unloaded(model.key)]
        if not loaded:
            raise KServeRefusal(f"Request for unknown model: '{name}' has no available versions", "NOT_FOUND")
        if (count := len({served[model.key].name for model in loaded})) > 1:
            raise KServeRefusal(
                f"There are {count} identifiers of model '{name}' in global map, model namespace must be "
                "provided to resolve ambiguity."
            )
        if number is None:
            return loaded[-1]
        for model in loaded:
            if number == int(model.version):
                return model
        raise UnknownVersion(name, str(number))

    def _current(self, key: str) -> KServeModel | None:
        """Return a model by key, with the version that it serves now; None while its tensors are unknown."""
        version, model = self._scheduler.version(key), self._app_models.declared.get(key)
        if model is not None:
            if model.version != version:
                model = self._app_models.declared[key] = replace(model, version=version)
            return model
        served = self._app_models.served[key]
        signature = self._scheduler.pools[served.op].signature  # changes when the Op is loaded again
        if signature is None:
            return None
        return KServeModel(served.name, served.op, signature, version, key=key)

    def answering_op(self, model: KServeModel) -> str:
        """Return the name of the Op (step of the service) whose output is the model's response."""
        return self._app_models.served[model.key].answering_op

    def is_ready(self, name: str, version: str = "") -> bool:
        """Return whether a model with this name and version is loaded and can answer requests now."""
        try:
            return self.ready(self.find_model(name, version))
        except (KServeRefusal, UnknownVersion):
            return False

    def ready(self, model: KServeModel) -> bool:
        """Return whether the model can answer requests now."""
        return self._scheduler.model_ready(model.key)

    # Loading and unloading:

    def list_ops(self, name: str) -> list[str]:
        """Return the names of the Ops (steps) that load and unload with a model; empty for unknown names."""
        return [
            op for key in self._app_models.keys.get(name, ()) for op in self._app_models.served[key].graph.ops
        ]

    def ops(self, model: KServeModel) -> list[str]:
        """Return the names of the Ops (queues with workers) that execute the steps of a model."""
        return list(self._app_models.served[model.key].graph.ops)

    def joint_ops(self, model: KServeModel) -> list[str]:
        """Return the name of the Op whose workers run all steps of an ensemble, or an empty list."""
        return list(filter(None, [self._app_models.served[model.key].joint_op]))

    def standing(self, model: KServeModel) -> Standing:
        """Return a model's state in the repository index, such as READY, with the reason.

        If an Op of the model is not READY, the model has the state of the first of these Ops.
        """
        standings = [self._repository.standing(part) for part in (*self._by_itself(model), *self.ops(model))]
        return next((standing for standing in standings if standing.state != "READY"), standings[0])

    def _by_itself(self, model: KServeModel) -> tuple[str, ...]:
        """Return the key of an ensemble that was unloaded without its steps' models; otherwise empty."""
        return (model.key,) if model.is_ensemble and self._scheduler.is_unloaded(model.key) else ()

    def failure(self, model: KServeModel) -> LoadFailed | None:
        """Return the error of the model's last failed load; None if there is none."""
        return self._repository.failures.get(model.op)


def parse_version(version: str) -> int:
    """Return the number at the start of a version text, as Triton parses it.

    Raises KServeRefusal (HTTP 400) for a text without a number, and for a negative or too large number.
    """
    number = _NUMBER.match(version)
    if number is None or abs(int(number[1])) > _MAX_VERSION:
        raise KServeRefusal(
            f"failed to get model version from specified version string '{version[:100]}' (details: stol), "
            "version should be an integral value > 0"
        )
    if int(number[1]) < 0:
        raise KServeRefusal(
            f"invalid model version specified '{version[:100]}' , version should be an integral value > 0"
        )
    return int(number[1])


def example_row(app: App, model: KServeModel) -> Mapping[str, Any] | None:
    """Return an example of a valid row: values by input name. None if there is no example."""
    if model.signature.open:
        return app.examples.key_values
    return build_row(model.signature, {} if model.op else app.examples.row)


def get_description(app: App) -> Mapping[str, Any]:
    """Return the description of the service's answering model: its row schema and its parameters.

    Empty for a model without a description.
    """
    return {} if app.default is None else app.described.get(app.default.answering_op, {})


def get_parameter_schema(app: App, model: KServeModel) -> Schema:
    """Return the OpenAPI schema of the member `parameters`, with descriptions of the model's parameters."""
    meanings = {} if model.op else get_description(app).get("parameters", {})
    schemas = {name: {**_VALUE, "description": meaning} for name, meaning in meanings.items()}
    return {**_PARAMETERS, "properties": schemas} if schemas else _PARAMETERS


def describe_model(model: KServeModel) -> str:
    """Return the text that names a model in /openapi.json, such as "the service"."""
    return f"the model of Op {model.op}" if model.op else "the service"


def describe_model_zh(model: KServeModel) -> str:
    """Return the Chinese text that names a model in /openapi.json."""
    return f" Op {model.op} 的模型" if model.op else "服务"


class ShapedTensor(Protocol):
    """Interface of a request's input tensor, of which only the shape is needed."""

    @property
    def shape(self) -> Sequence[int]: ...


class BatchRule(NamedTuple):
    """Triton's rule for delayed batches: the properties that must be equal for all requests of a batch."""

    inputs: tuple[str, ...]  # whose shapes agree, but for the batch axis
    by_name: bool  # whether the requests have the same inputs, because some are optional

    def build_key(self, inputs: Mapping[str, ShapedTensor]) -> tuple[Any, ...]:
        """Return a key that is equal for requests that may share a batch.

        inputs: the input tensors of a request, by name.
        """
        shapes = tuple(tuple(inputs[name].shape[1:]) if name in inputs else None for name in self.inputs)
        return (shapes, tuple(sorted(inputs))) if self.by_name else (shapes,)


def find_batch_rule(config: Mapping[str, Any], padded: Collection[str]) -> BatchRule | None:
    """Return the batch rule of a model from its config.pbtxt; None if any of its requests may share a batch.

    padded: inputs that are padded to one length. A model without a queue delay needs no rule, because its
    worker sorts the requests that it gets together.
    """
    if not config.get("dynamic_batching", {}).get("max_queue_delay_microseconds"):
        return None
    inputs = [tensor for tensor in config["input"] if not tensor["allow_ragged_batch"]]
    compared = [t["name"] for t in inputs if -1 in t["dims"] and t["name"] not in padded]
    by_name = any(tensor["optional"] for tensor in config["input"])
    return BatchRule(tuple(compared), by_name) if compared or by_name else None
