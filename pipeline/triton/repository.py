"""Reader of Triton model repositories: models that can be served, and the load errors of other models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import json_format

from client.protos.kserve_v2_pb2 import ModelConfig
from pipeline.api.app import ServedModel
from pipeline.api.buckets import Bucket
from pipeline.api.dag import Dag
from pipeline.api.model_names import build_identifier, get_public_name, split_identifier
from pipeline.api.run_resources import (
    ResourceLimits,
    RunNeeds,
    find_kind_error,
    find_resource_error,
    parse_run_needs,
)
from pipeline.errors import ConfigError
from pipeline.models.serving_model import find_model_files
from pipeline.plugins import ENGINES, find
from pipeline.process.helper_process import cancel_helpers
from pipeline.triton import ensemble
from pipeline.triton.bucket_copy import copy_bucket
from pipeline.triton.config_file import (
    FILE,
    NO_DEFAULTS,
    PYTHON_RUNTIME,
    Defaults,
    check_config,
    check_tensors,
    describe_ineffective_accelerators,
    describe_ineffective_settings,
    fill_default_fields,
    find_cpu_reason,
    find_python_backend,
    get_backend,
    get_device_keys,
    get_engine_options,
    message_to_dict,
    move_to_cpu,
    read_config,
    requests_gpu,
)
from pipeline.triton.joint_steps import PARAMETER, build_joint_section, find_obstacle, parse_workers
from pipeline.triton.model_folder import (
    NO_VERSION,
    PYTORCH,
    build_signature,
    detect_backend,
    fill_from_program,
    find_agent_error,
    find_optional_feeds,
    find_program,
    read_program_facts,
    select_versions,
)
from pipeline.triton.padding_proof import load_padding_proof
from pipeline.triton.python_backend.auto_complete import has_auto_complete, run_auto_complete
from pipeline.triton.python_backend.environment import NOT_INSTALLED, find_requirements
from pipeline.triton.ragged_batch import is_ragged
from pipeline.triton.repository_op import find_sample_error
from pipeline.triton.sequence_batching import keeps_sequences, list_hidden_tensors
from pipeline.tuning.choice import Choice, Timed

MAX_READ_AT_ONCE = 8  # models whose code, engine or padding proof runs in a helper process at the same time
_RUN_HERE = ("python", "identity", "ensemble")
PLACEMENT = "paddlewheel.placement"  # a parameter: process or thread, for the instances of an engine's model
PADDING = "paddlewheel.padding"  # a parameter: off, or the inputs that may be padded, with the padding values
DUPLICATE = "model appears in two or more repositories"
NOT_AVAILABLE = "ensemble {} contains models that are not available or ambiguous: {}"
_NAME = re.compile(r"[^\s/?#:.][^\s/?#:]*")


class UnavailableModel(NamedTuple):
    """A model of the repository that can't be served: its version and the reason."""

    version: str  # empty: no version, or the reason holds for all versions
    reason: str
    polled: bool = False  # True: not even its configuration is valid
    has_versions: bool = True  # False: its folder has no version to load


class RepositoryContent(NamedTuple):
    """The models read from a repository, their sections of config.yml, and errors of models that failed.

    A section belongs to one model version, whose queue and workers form an Op named "model:version".
    """

    models: list[ServedModel]
    sections: dict[str, dict[str, Any]]  # sections of config.yml by Op
    unavailable: dict[str, UnavailableModel]  # by model name
    notes: list[str]  # log lines about models
    padding: dict[str, str]  # by Op with open lengths: whether its rows may be padded, and why
    choices: dict[str, Choice]  # by Op: run times, by which batches of padded rows are cut

    @property
    def lines(self) -> tuple[str, ...]:
        """Log lines: notes about models, and whether rows of unequal length are padded to share a batch."""
        padding_lines = (
            f"Model {op.rpartition(':')[0]}, rows of unequal length: {why}"
            for op, why in self.padding.items()
        )
        return (*self.notes, *padding_lines)


@dataclass(frozen=True)
class ModelRepository:
    """Folders of a Triton model repository, and the options for reading models from them."""

    folders: Sequence[Path]  # each holds a folder per model
    strict: bool = False  # whether configurations must be complete
    strict_devices: bool = False  # whether a model that requests an unusable GPU is an error
    install_requirements: bool = False  # whether pip installs the requirements.txt of Python models
    defaults: Defaults = NO_DEFAULTS  # for settings that a configuration leaves out
    joins_steps: bool = False  # whether workers may run all steps of an ensemble: no model is ever replaced
    backend_directory: Path | None = None  # with a folder for each backend that is written in Python
    resource_limits: ResourceLimits | None = None  # of the rate limiter; None: the server has none
    buckets: Sequence[Bucket] = ()  # that are copied to some of the folders
    namespacing: bool = False  # whether several folders may hold models of one name
    # By model name: folder and configuration in place of those on disk.
    overrides: Mapping[str, tuple[Path | None, ModelConfig | None]] = field(default_factory=dict)

    def copy_buckets(self) -> None:
        """Copy the files that have changed in buckets to their folders.

        Raises ConfigError for a bucket that can't be read, after the other buckets are copied.
        """
        errors = []
        for bucket in self.buckets:
            try:
                copy_bucket(bucket)
            except ConfigError as exc:
                errors.append(exc.message)
        if errors:
            raise ConfigError("; ".join(errors))

    def names(self) -> list[str]:
        """Return the sorted names of all model folders.

        Raises ConfigError for an unreadable repository folder.
        """
        on_disk = {path.name for folder in self.folders for path in _list_model_folders(folder)}
        return sorted(on_disk.union(self.overrides))

    def is_ambiguous(self, name: str) -> bool:
        """Return whether several repository folders have this model although names must be unique."""
        return not self.namespacing and sum((folder / name).is_dir() for folder in self.folders) > 1

    def find_identifiers(self, name: str) -> list[str]:
        """Return the identifier of each model of this name: the name, or `NAME#1`, `NAME#2`, ... for several.

        The number is the position of the repository folder. If a load request has replaced the model's
        folder, its model is the only one of this name.
        """
        replaced = self.overrides.get(name, (None, None))[0] is not None
        if not self.namespacing or replaced:
            return [name]
        places = [place for place, folder in enumerate(self.folders, 1) if (folder / name).is_dir()]
        return [name] if len(places) < 2 else [build_identifier(name, place) for place in places]

    def resolve(self, name: str, repository: Path) -> str:
        """Return the identifier of the model that a model in a repository folder means by a name.

        The model of that name in the same folder takes precedence. If the name is ambiguous, it is returned
        unchanged, and no model has that identifier.
        """
        identifiers = self.find_identifiers(name)
        if len(identifiers) == 1:
            return identifiers[0]
        candidates = (
            build_identifier(name, n) for n, folder in enumerate(self.folders, 1) if folder == repository
        )
        return next((identifier for identifier in candidates if identifier in identifiers), name)

    def read_models(self, names: Sequence[str] | None = None) -> RepositoryContent:
        """Read and check the named models (None: all), and the models that their ensembles use.

        Does not raise for an invalid model; the result's `unavailable` has its error.
        """
        names = self.names() if names is None else names
        return _RepositoryReader(self).read_all(
            [identifier for name in names for identifier in self.find_identifiers(name)]
        )

    def read_config(self, identifier: str) -> ModelConfig:
        """Parse a model's config.pbtxt, or copy the configuration that overrides it.

        Absent fields are not filled in. Raises ConfigError.
        """
        _, override = self.overrides.get(get_public_name(identifier), (None, None))
        if override is None:
            return read_config(self.find_folder(identifier))
        config = ModelConfig()
        config.CopyFrom(override)
        return config

    def count_workers(self, name: str) -> int:
        """Return how many workers a model has once it is loaded: instances times versions, 0 for an ensemble.

        The workers of all models with this name are added. A model that can't be read now counts as 1.
        """
        return sum(map(self._count_model_workers, self.find_identifiers(name)))

    def _count_model_workers(self, identifier: str) -> int:
        try:
            config = self.read_config(identifier)
        except (ConfigError, OSError):
            return 1
        versions = len(self._select_versions(identifier)) or 1
        return 0 if get_backend(config) == "ensemble" else versions * _count_instances(config)

    def find_versions(self, name: str) -> list[str]:
        """Return the versions that the version_policy of the models of this name selects.

        Empty for an unreadable model.
        """
        return [version for each in self.find_identifiers(name) for version in self._select_versions(each)]

    def _select_versions(self, identifier: str) -> list[str]:
        try:
            return select_versions(self.find_folder(identifier), self.read_config(identifier))
        except (ConfigError, OSError):
            return []

    def find_folder(self, identifier: str) -> Path:
        """Return the folder of a model.

        Raises ConfigError unless exactly one repository folder has this model.
        """
        name, place = split_identifier(identifier)
        override, _ = self.overrides.get(name, (None, None))
        if override is not None:
            return override
        if 0 < place <= len(self.folders):
            return self.folders[place - 1] / name
        paths = [path for folder in self.folders for path in _list_model_folders(folder) if path.name == name]
        if len(paths) != 1:
            why = f"{DUPLICATE}: {' and '.join(map(str, paths))}" if paths else "there is no such folder"
            raise ConfigError(f"{name}: {why}")
        return paths[0]


class _RepositoryReader:
    """Reads each model of a repository once, the models of an ensemble before the ensemble.

    Threads read all models but ensembles, in parallel: a model's code may hang, and must not delay other
    models.
    """

    def __init__(self, repository: ModelRepository) -> None:
        self.served = RepositoryContent([], {}, {}, [], {}, {})
        self._repository = repository
        self._by_name: dict[str, list[ServedModel]] = {}
        self._backend_program: Path | None = None  # of the model being read, see `find_python_backend`
        self._open_names: list[str] = []  # the model being read, after the ensembles that need it
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: dict[str, Future[_RepositoryReader]] = {}  # by model: a reader in a thread

    def read_all(self, names: Sequence[str]) -> RepositoryContent:
        """Read these models and the models that their ensembles use; return all of them, with load errors."""
        with ThreadPoolExecutor(MAX_READ_AT_ONCE, "model") as self._threads:
            try:
                self._read_ahead(names)
                for name in names:
                    self.read_with_dependencies(name)
                self._refuse_other_kinds()
            except KeyboardInterrupt:
                self._threads.shutdown(wait=False, cancel_futures=True)
                cancel_helpers()
                raise
        return self.served

    def _refuse_other_kinds(self) -> None:
        """Withdraw models whose rate limiter resource is global there and of a device in an earlier model.

        The same goes for the reverse.
        """
        if self._repository.resource_limits is None:
            return
        needs: list[RunNeeds] = []
        for name, models in list(self._by_name.items()):
            model_needs = [each for model in models for each in model.run_needs]
            if error := find_kind_error([*needs, *model_needs]):
                self._withdraw(name, UnavailableModel(models[-1].version, f"Invalid argument: {error}"))
            else:
                needs += model_needs

    def _withdraw(self, name: str, why: UnavailableModel) -> None:
        """Remove a model that has already been read from the result, and the ensembles that run the model."""
        served = self.served
        ops = {model.op for model in self._by_name.pop(name, ()) if model.op}
        served.unavailable[name] = why
        served.models[:] = [model for model in served.models if model.name != name]
        for op in ops:
            for table in (served.sections, served.padding, served.choices):
                table.pop(op, None)
        for model in [model for model in served.models if ops.intersection(model.graph.ops)]:
            self._withdraw(model.name, UnavailableModel("", NOT_AVAILABLE.format(model.name, name)))

    def _read_ahead(self, names: Sequence[str]) -> None:
        """Start to read these models in the background, one thread per model, except for ensembles.

        names: identifiers of the models.
        """
        unread = [
            name
            for name in names
            if name not in self._by_name
            and name not in self._ahead
            and name not in self.served.unavailable
            and not self._is_ensemble(name)
        ]
        if self._threads is not None and len(unread) > 1:
            for name in unread:
                self._ahead[name] = self._threads.submit(_read_alone, self._repository, name)

    def _is_ensemble(self, name: str) -> bool:
        try:
            return get_backend(self._repository.read_config(name)) == "ensemble"
        except (ConfigError, OSError):  # reading the model reports the error
            return False

    def _merge(self, other: _RepositoryReader) -> None:
        """Add the models and load errors of another reader to those of this reader."""
        served, content = self.served, other.served
        served.models.extend(content.models)
        served.notes.extend(content.notes)
        served.sections.update(content.sections)
        served.unavailable.update(content.unavailable)
        served.padding.update(content.padding)
        served.choices.update(content.choices)
        self._by_name |= other._by_name

    def read_with_dependencies(self, name: str) -> None:
        """Read a model; for an ensemble, read the models of its steps first.

        name: the model's identifier. Errors go to `served.unavailable`.
        """
        if name in self._by_name or name in self.served.unavailable:
            return
        if name in self._ahead:
            reader = self._ahead.pop(name).result()
            if len(reader._by_name) + len(reader.served.unavailable) == 1:  # else it has become an ensemble
                self._merge(reader)
                return
        self._open_names.append(name)
        try:
            self._by_name[name] = list(self._read_model(name))
            self.served.models.extend(self._by_name[name])
        except _ModelUnavailable as exc:
            self.served.unavailable[name] = exc.model
        except ConfigError as exc:
            self.served.unavailable[name] = UnavailableModel("", exc.message, polled=True)
        except OSError as exc:  # the folder changed while it was read, for example
            self.served.unavailable[name] = UnavailableModel("", f"{name} can't be read: {exc}", polled=True)
        finally:
            self._open_names.pop()

    def _read_model(self, identifier: str) -> Iterator[ServedModel]:
        name = get_public_name(identifier)
        check_name(name)
        folder = self._repository.find_folder(identifier)
        config = self._repository.read_config(identifier)
        if config.name not in ("", name):
            raise ConfigError(f"{folder / FILE}: name is {config.name!r}, and the folder's is {name!r}")
        config.name = name
        backend = get_backend(config) or self._detect_backend(folder, config)
        if config.runtime == PYTHON_RUNTIME:
            config.runtime = ""
        self._backend_program = find_python_backend(self._repository.backend_directory, backend, folder)
        if self._backend_program is not None:
            config.runtime, backend = PYTHON_RUNTIME, "python"
        errors = [*check_config(config, backend), *_find_ensemble_errors(config, backend)]
        if errors:
            raise ConfigError("; ".join(errors))
        versions = select_versions(folder, config)
        if not versions:
            raise _ModelUnavailable(UnavailableModel("", NO_VERSION.format(name), has_versions=False))
        if error := find_agent_error(config, folder):  # before any file of the model is run
            raise _ModelUnavailable(UnavailableModel(versions[-1], error))
        self._check_devices(config, backend, versions[-1])
        self._fill_config(config, folder, backend, versions)
        if errors := check_tensors(config, backend):
            raise _ModelUnavailable(UnavailableModel(versions[-1], f"Invalid argument: {'; '.join(errors)}"))
        document = message_to_dict(config)
        if error := find_sample_error(document, folder):
            raise _ModelUnavailable(UnavailableModel(versions[-1], error))
        limits = self._repository.resource_limits
        if limits is not None and (error := find_resource_error(parse_run_needs(document), limits)):
            raise _ModelUnavailable(UnavailableModel(versions[-1], f"Invalid argument: {error}"))
        yield from self._build_models(identifier, config, document, backend, folder, versions)

    def _check_devices(self, config: ModelConfig, backend: str, version: str) -> None:
        if not requests_gpu(config) or not (why := find_cpu_reason(backend)):
            return
        if self._repository.strict_devices:
            message = f"Invalid argument: instance_group of model {config.name} asks for KIND_GPU, and {why}"
            raise _ModelUnavailable(UnavailableModel(version, message))
        move_to_cpu(config)
        self.served.notes.append(f"Model {config.name}: its KIND_GPU runs on the CPU, for {why}")

    def _fill_config(self, config: ModelConfig, folder: Path, backend: str, versions: Sequence[str]) -> None:
        if backend == "python" and not self._repository.strict:
            self._run_auto_complete(config, folder / versions[-1])
        fill_default_fields(config, backend)
        if backend in _RUN_HERE or backend not in find(ENGINES):  # check_tensors reports an unknown backend
            return
        program = find_program(folder / versions[-1], config.default_model_filename)
        if not config.default_model_filename:
            self._name_program(config, folder / versions[-1], backend)
            program = find_program(folder / versions[-1], config.default_model_filename)
        if not program.is_file():
            raise _ModelUnavailable(
                UnavailableModel(
                    versions[-1], f"Internal: unable to find '{program}' for model '{config.name}'"
                )
            )
        max_batch_size = self._repository.defaults.max_batch_size(backend)
        try:
            facts = read_program_facts(program, backend, config)
        except ConfigError as exc:
            raise _ModelUnavailable(UnavailableModel(versions[-1], f"Internal: {exc.message}")) from exc
        errors = fill_from_program(
            config,
            facts,
            max_batch_size,
            strict=self._repository.strict,
            optional_feeds=find_optional_feeds(program),
        )
        if errors:
            message = f"Invalid argument: {FILE} does not agree with {program}: {'; '.join(errors)}"
            raise _ModelUnavailable(UnavailableModel(versions[-1], message))
        fill_default_fields(config, backend)  # dynamic batching may have come with it

    def _name_program(self, config: ModelConfig, folder: Path, backend: str) -> None:
        """Set default_model_filename to the only model file in a version's folder, or to PyTorch's model.pt.

        This is for engines without a fixed file name. Raises _ModelUnavailable without exactly one file.
        """
        if backend == PYTORCH and (folder / "model.pt").is_file():
            config.default_model_filename = "model.pt"
            return
        try:
            config.default_model_filename = find_model_files(folder, backend).program.name
        except ConfigError as exc:
            raise _ModelUnavailable(UnavailableModel(folder.name, f"Internal: {exc.message}")) from exc

    def _run_auto_complete(self, config: ModelConfig, folder: Path) -> None:
        """Complete a config.pbtxt, in place, by running `auto_complete_config` of a Python model.

        folder: the version's folder. Raises _ModelUnavailable if the model's code fails.
        """
        program = self._backend_program or folder / (config.default_model_filename or "model.py")
        if not program.is_file():
            return  # the worker reports the error
        if config.input and config.output and not has_auto_complete(program):
            return  # spares a process
        try:
            install = self._repository.install_requirements
            completed_config, lines = run_auto_complete(
                program, message_to_dict(config), install_requirements=install
            )
            config.Clear()
            json_format.ParseDict(completed_config, config, ignore_unknown_fields=True)
        except (ConfigError, json_format.ParseError) as exc:
            message = exc.message if isinstance(exc, ConfigError) else f"auto_complete_config: {exc}"
            raise _ModelUnavailable(UnavailableModel(folder.name, message)) from exc
        self.served.notes.extend(f"Model {config.name}, auto_complete_config: {line}" for line in lines)

    def _detect_backend(self, folder: Path, config: ModelConfig) -> str:
        if self._repository.strict:
            raise ConfigError(f"{folder / FILE} names no backend, and completing it is disabled")
        for version in select_versions(folder, config):
            if backend := detect_backend(folder / version):
                return backend
        _, dot, backend = folder.name.partition(".")
        if dot:  # as in Triton, the model `model.NAME` has the backend NAME
            return backend
        raise ConfigError(
            f"Invalid model name: Could not determine backend for model '{folder.name}' with no backend in "
            "model configuration. Expected model name of the form 'model.<backend_name>'. No version holds a "
            "model.onnx or model.py either"
        )

    def _build_models(
        self,
        identifier: str,
        config: ModelConfig,
        document: Mapping[str, Any],
        backend: str,
        folder: Path,
        versions: Sequence[str],
    ) -> Iterator[ServedModel]:
        try:
            signature = build_signature(config, folder)
        except ConfigError as exc:
            raise _ModelUnavailable(UnavailableModel(versions[-1], exc.message)) from exc
        graph = None if backend != "ensemble" else self._build_graph(config, folder.parent)
        if graph is not None and self._find_decoupled_steps(graph):
            document = {**document, "model_transaction_policy": {"decoupled": True}}
        self.served.notes.extend(describe_ineffective_accelerators(config, backend))
        self.served.notes.extend(describe_ineffective_settings(config))
        if backend == "python" and not self._repository.install_requirements:
            for path in find_requirements(folder, versions[-1]):
                self.served.notes.append(f"Model {config.name}: {NOT_INSTALLED.format(path)}")
        for version in versions:
            op = f"{identifier}:{version}"
            dag = graph or ensemble.build_model_dag(op)
            joint_op = "" if graph is None else self._add_joint_op(config, f"{op}:steps", graph)
            yield ServedModel(identifier, dag, signature, version, document, str(folder), joint_op)
            if graph is None:
                threads = self._repository.defaults.threads(backend)
                section = build_section(config, backend, folder / version, threads)
                self.served.sections[op] = section
                self._add_padding(op, config, backend, folder / version)

    def _add_joint_op(self, config: ModelConfig, op: str, graph: Dag) -> str:
        """Add an Op whose workers run all steps of an ensemble, if config.pbtxt asks for it.

        op: name of the Op. Returns the name, or an empty text if no Op was added.
        """
        workers, served = parse_workers(config), self.served
        if not workers:
            return ""
        obstacle = "models can be loaded and unloaded"
        if config.response_cache.enable:
            obstacle = "the ensemble has a response cache"
        elif self._repository.joins_steps:
            limits_runs = self._repository.resource_limits is not None
            obstacle = find_obstacle(graph, self._models_by_op(), served.sections, limits_runs=limits_runs)
        if obstacle:
            served.notes.append(f"Ensemble {config.name}: {PARAMETER} has no effect, for {obstacle}")
            return ""
        served.sections[op] = build_joint_section(graph, served.sections, workers)
        return op

    def _add_padding(self, op: str, config: ModelConfig, backend: str, folder: Path) -> None:
        """Let rows of unequal length share a batch, if padding is declared in config.pbtxt or proven.

        A trial on the model may prove padding. op: name of the version's section, "model:version". Models
        whose dims are all fixed, and models without batching, need no padding.
        """
        served, section = self.served, self.served.sections[op]
        setting = config.parameters[PADDING].string_value if PADDING in config.parameters else ""
        if backend in _RUN_HERE or section["batch_size"] == 1 or keeps_sequences(config):
            return
        if is_ragged(config):
            return
        if setting == "off":
            served.padding[op] = f"equal lengths only, as parameter {PADDING} says"
            return
        declared = _parse_padding(setting, [tensor.name for tensor in config.input]) if setting else {}
        tensors = [tensor for side in (config.input, config.output) for tensor in side]
        if any(tensor.HasField("reshape") for tensor in tensors if not setting or tensor.name in declared):
            return
        if not setting and not any(-1 in tensor.dims for tensor in config.input):
            return
        proof = load_padding_proof(find_program(folder, config.default_model_filename), backend)
        padding = {"feeds": declared} if setting else proof.section
        served.padding[op] = f"padded, as parameter {PADDING} says" if setting else proof.why
        if padding is not None:
            section["padding"] = padding
            if proof.points and "device_type" not in section["local_service_conf"]:
                precision = section["local_service_conf"].get("precision", "fp32")
                served.choices[op] = Choice((Timed(backend, precision, points=proof.points),))

    def _build_graph(self, config: ModelConfig, repository: Path) -> Dag:
        """Return the graph of an ensemble in a repository folder, after reading the models of its steps.

        As in Triton, all models with the name of a step are read. The step runs only one of them.
        """
        source, steps = self._repository, ensemble.list_step_models(config)
        names = set(source.names())
        identifiers = [each for name in steps if name in names for each in source.find_identifiers(name)]
        self._read_ahead(identifiers)
        resolved = {name: source.resolve(name, repository) for name in steps}
        for identifier in identifiers:
            if identifier in self._open_names and identifier in resolved.values():
                loop = " -> ".join([*self._open_names[self._open_names.index(identifier) :], identifier])
                raise ConfigError(f"circular dependency between ensembles: {loop}")
            if identifier not in self._open_names:
                self.read_with_dependencies(identifier)
        missing = [name for name, identifier in resolved.items() if identifier not in self._by_name]
        if missing:
            message = NOT_AVAILABLE.format(config.name, ", ".join(missing))
            raise _ModelUnavailable(UnavailableModel("", message))
        try:
            graph = ensemble.build_ensemble_dag(
                config, lambda name, version: self._find_model(resolved[name], version)
            )
            ensemble.check_decoupled_steps(config.name, graph, self._find_decoupled_steps(graph))
            return graph
        except ConfigError as exc:
            raise _ModelUnavailable(UnavailableModel("", exc.message)) from exc

    def _find_decoupled_steps(self, graph: Dag) -> list[str]:
        """Return the nodes of an ensemble's graph whose models send any number of responses."""
        by_op = self._models_by_op()
        return [node.name for node in graph.nodes.values() if by_op[node.op].is_decoupled]

    def _models_by_op(self) -> dict[str, ServedModel]:
        return {model.op: model for models in self._by_name.values() for model in models if model.op}

    def _find_model(self, identifier: str, version: int) -> ServedModel:
        models = self._by_name[identifier]
        if version == -1:
            return models[-1]
        for model in models:
            if model.version == str(version):
                return model
        raise ConfigError(f"version {version} of model {get_public_name(identifier)} is not served")


def _find_ensemble_errors(config: ModelConfig, backend: str) -> list[str]:
    return ensemble.check_ensemble(config) if backend == "ensemble" else []


def _read_alone(repository: ModelRepository, name: str) -> _RepositoryReader:
    reader = _RepositoryReader(repository)
    reader.read_with_dependencies(name)
    return reader


def check_name(name: str) -> None:
    """Raise ConfigError unless `name` can be the name of a model and of its folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:100]!r} can't be the name of a model: it begins with '.', or holds blanks, '/', '?', "
            "'#' or ':'"
        )


class _ModelUnavailable(ConfigError):
    """Raised while a model is read: its configuration is valid, but the model can't be served.

    The reader catches it, and lists the model as unavailable.
    """

    def __init__(self, model: UnavailableModel) -> None:
        super().__init__(model.reason)
        self.model = model


def build_section(config: ModelConfig, backend: str, folder: Path, threads: int) -> dict[str, Any]:
    """Build the section of config.yml (instances, batching, engine) of a model version from config.pbtxt.

    folder: the version's folder. threads: default for the CPU threads of one inference.
    """
    sequences = keeps_sequences(config)
    batching = sequences or config.WhichOneof("scheduling_choice") == "dynamic_batching"
    max_batch_size = config.max_batch_size
    section: dict[str, Any] = {
        "concurrency": _count_instances(config),
        "batch_size": max(1, max_batch_size) if batching else 1,
        "auto_batching_timeout": _get_queue_delay_us(config) / 1000,
    }
    if max_batch_size:
        section["max_batch_rows"] = max_batch_size
    if PLACEMENT in config.parameters:
        section["placement"] = _parse_placement(config.parameters[PLACEMENT].string_value, backend)
    if backend not in _RUN_HERE:
        program = find_program(folder, config.default_model_filename)
        section["local_service_conf"] = {
            "model_config": str(read_program_facts(program, backend, config).folder),
            "engine": backend,
            "lenient_feeds": True,
            "fetch_list": [tensor.name for tensor in (*config.output, *list_hidden_tensors(config)[1])],
            **get_engine_options(config, backend, threads),
            **get_device_keys(config, backend),
        }
        if backend == PYTORCH and "," not in section["local_service_conf"].get("devices", ""):
            section.setdefault("placement", "thread")  # instances on one device share the weights
    return section


def _get_queue_delay_us(config: ModelConfig) -> int:
    """Return how long a batch waits for more requests, in microseconds."""
    if not keeps_sequences(config):
        return config.dynamic_batching.max_queue_delay_microseconds
    direct = config.sequence_batching.direct
    # As in Triton, the delay of `direct` counts only beside a share of slots.
    delay_us = direct.max_queue_delay_microseconds if direct.minimum_slot_utilization else 0
    return delay_us or config.sequence_batching.oldest.max_queue_delay_microseconds


def _count_instances(config: ModelConfig) -> int:
    return sum(group.count or 1 for group in config.instance_group if not group.passive) or 1


def _parse_placement(text: str, backend: str) -> str:
    """Return whether instances are processes or threads: the parameter `paddlewheel.placement`.

    Raises ConfigError for an unknown value.
    """
    if text not in ("auto", "process", "thread"):
        raise ConfigError(f"parameter {PLACEMENT} is {text!r}: write process, thread or auto")
    if text == "thread" and backend in _RUN_HERE:
        raise ConfigError(
            f"parameter {PLACEMENT} is 'thread', and instances of the backend {backend} are processes: "
            "remove the parameter"
        )
    return text


def _parse_padding(text: str, inputs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Parse the parameter `paddlewheel.padding` into the padding rule (axis and value) of each named input.

    Raises ConfigError for a malformed parameter or an unknown input.
    """
    padded = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        try:
            padded[name] = {"axis": 1, "value": float(value)}
        except ValueError:
            raise ConfigError(
                f"parameter {PADDING} is {text!r}: write off, or each input as NAME=VALUE, between commas"
            ) from None
        if name not in inputs:
            raise ConfigError(f"parameter {PADDING} names {name!r}; the inputs are {', '.join(inputs)}")
    return padded


def _list_model_folders(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as exc:
        raise ConfigError(f"the model repository {folder} can't be read: {exc.strerror}") from exc
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith("."):
            yield Path(entry.path)
