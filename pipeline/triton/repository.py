"""ModelRepository: the models in the folders of a Triton model repository, and why others can't be served."""

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
from pipeline.api.dag import Dag
from pipeline.api.served_models import ServedModel
from pipeline.errors import ConfigError
from pipeline.models.serving_model import find_model_files
from pipeline.plugins import ENGINES, find
from pipeline.process.helper_process import cancel_helpers
from pipeline.triton import ensemble
from pipeline.triton.config_file import (
    FILE,
    NO_DEFAULTS,
    Defaults,
    check_config,
    complete,
    flaws_of_tensors,
    get_backend,
    message_to_dict,
    read_config,
)
from pipeline.triton.devices import asks_for_gpu, get_device_keys, move_to_cpu, why_not
from pipeline.triton.engine_options import get_engine_options, without_effect
from pipeline.triton.model_folder import (
    NO_VERSION,
    backend_of_files,
    build_signature,
    complete_by_file,
    find_program,
    read_program_facts,
    select_versions,
)
from pipeline.triton.padding_proof import load_padding_proof
from pipeline.triton.python_backend.auto_complete import completed, completes
from pipeline.triton.python_backend.environment import NOT_INSTALLED, find_requirements
from pipeline.triton.repository_agents import find_agent_error
from pipeline.triton.repository_op import find_sample_error as flaw_of_warmup
from pipeline.tuning.choice import Choice, Timed

MAX_READ_AT_ONCE = 8  # models whose code, engine or padding proof runs in a helper process meanwhile
_RUN_HERE = ("python", "identity", "ensemble")
PADDING = "paddlewheel.padding"  # a parameter: off, or the inputs that may be padded and with what
_NAME = re.compile(r"[^\s/?#:.][^\s/?#:]*")


class Unavailable(NamedTuple):
    """A model that can't be served. version: empty where there is none, or the reason is of all.

    polled: not even its configuration can be used.
    """

    version: str
    reason: str
    polled: bool = False


class Served(NamedTuple):
    """What the folders hold. sections: of config.yml, by Op. unavailable: by the model. notes: of models.
    padding: by Op, whether its rows may be padded, and why; nothing where no length is open. choices: by Op,
    how it is run, with what runs cost, by which batches of padded rows are cut."""

    models: list[ServedModel]
    sections: dict[str, dict[str, Any]]
    unavailable: dict[str, Unavailable]
    notes: list[str]
    padding: dict[str, str]
    choices: dict[str, Choice]

    @property
    def lines(self) -> tuple[str, ...]:
        """For the log: the notes, and what was found of padding."""
        found = (
            f"Model {op.rpartition(':')[0]}, rows of unequal length: {why}"
            for op, why in self.padding.items()
        )
        return (*self.notes, *found)


@dataclass(frozen=True)
class ModelRepository:
    """folders: each has a folder for each model. strict: a configuration may leave nothing out.

    strict_devices: a model that asks for a GPU where it can't have one is not served. install_requirements:
    pip installs what the requirements.txt of a Python model names. defaults: for what a
    model's configuration leaves out. given: what stands in place of the folder and of the configuration of a
    model, by its name.
    """

    folders: Sequence[Path]
    strict: bool = False
    strict_devices: bool = False
    install_requirements: bool = False
    defaults: Defaults = NO_DEFAULTS
    given: Mapping[str, tuple[Path | None, ModelConfig | None]] = field(default_factory=dict)

    def names(self) -> list[str]:
        """The names of all that may be a model. Raises ConfigError for a folder that can't be read."""
        return sorted({path.name for folder in self.folders for path in _folders_in(folder)})

    def read(self, names: Sequence[str] | None = None) -> Served:
        """The models of these names, all without, with those that their ensembles need."""
        return _Reading(self).read_all(self.names() if names is None else names)

    def read_config(self, name: str) -> ModelConfig:
        """Return a copy of a model's configuration as its author wrote it. Raises ConfigError."""
        _, given = self.given.get(name, (None, None))
        if given is None:
            return read_config(self.find_folder(name))
        config = ModelConfig()
        config.CopyFrom(given)
        return config

    def count_workers(self, name: str) -> int:
        """Return how many workers a model has once it is loaded; 1 for one that can't be read now."""
        try:
            config = self.read_config(name)
            versions = select_versions(self.find_folder(name), config)
        except (ConfigError, OSError):
            return 1
        return 0 if get_backend(config) == "ensemble" else len(versions) * _count_instances(config)

    def find_folder(self, name: str) -> Path:
        """The folder of a model. Raises ConfigError where there is none, or more than one."""
        given, _ = self.given.get(name, (None, None))
        if given is not None:
            return given
        found = [path for folder in self.folders for path in _folders_in(folder) if path.name == name]
        if len(found) != 1:
            why = "there is no such folder" if not found else f"it is in {' and in '.join(map(str, found))}"
            raise ConfigError(f"{name}: {why}")
        return found[0]


class _Reading:
    """Reads models, each once, ensembles after those that they need.

    Other models are read in threads: the code of a model may hang, and must not delay the others.
    """

    def __init__(self, repository: ModelRepository) -> None:
        self.served = Served([], {}, {}, [], {}, {})
        self._repository = repository
        self._by_name: dict[str, list[ServedModel]] = {}
        self._under_way: list[str] = []
        self._threads: ThreadPoolExecutor | None = None
        self._ahead: dict[str, Future[_Reading]] = {}  # by the model, its own reading in a thread

    def read_all(self, names: Sequence[str]) -> Served:
        """Return these models, with those that their ensembles need."""
        with ThreadPoolExecutor(MAX_READ_AT_ONCE, "model") as self._threads:
            try:
                self._read_ahead(names)
                for name in names:
                    self.add(name)
            except KeyboardInterrupt:
                self._threads.shutdown(wait=False, cancel_futures=True)
                cancel_helpers()
                raise
        return self.served

    def _read_ahead(self, names: Sequence[str]) -> None:
        """Begin to read models, but for ensembles, each in a thread."""
        fresh = [
            name
            for name in names
            if name not in self._by_name
            and name not in self._ahead
            and name not in self.served.unavailable
            and not self._is_ensemble(name)
        ]
        if self._threads is not None and len(fresh) > 1:
            for name in fresh:
                self._ahead[name] = self._threads.submit(_read_alone, self._repository, name)

    def _is_ensemble(self, name: str) -> bool:
        try:
            return get_backend(self._repository.read_config(name)) == "ensemble"
        except (ConfigError, OSError):  # reading the model says so
            return False

    def _merge(self, other: _Reading) -> None:
        """Add the models of another reading."""
        served, others = self.served, other.served
        served.models.extend(others.models)
        served.notes.extend(others.notes)
        served.sections.update(others.sections)
        served.unavailable.update(others.unavailable)
        served.padding.update(others.padding)
        served.choices.update(others.choices)
        self._by_name |= other._by_name

    def add(self, name: str) -> None:
        """Add a model, with those that it needs."""
        if name in self._by_name or name in self.served.unavailable:
            return
        if name in self._ahead:
            alone = self._ahead.pop(name).result()
            if len(alone._by_name) + len(alone.served.unavailable) == 1:  # else it is an ensemble by now
                self._merge(alone)
                return
        self._under_way.append(name)
        try:
            self._by_name[name] = list(self._read_model(name))
            self.served.models.extend(self._by_name[name])
        except _Unavailable as exc:
            self.served.unavailable[name] = exc.model
        except ConfigError as exc:
            self.served.unavailable[name] = Unavailable("", exc.message, polled=True)
        except OSError as exc:  # its folder is changed meanwhile, say
            self.served.unavailable[name] = Unavailable("", f"{name} can't be read: {exc}", polled=True)
        finally:
            self._under_way.pop()

    def _read_model(self, name: str) -> Iterator[ServedModel]:
        check_name(name)
        folder = self._repository.find_folder(name)
        config = self._repository.read_config(name)
        if config.name not in ("", name):
            raise ConfigError(f"{folder / FILE}: name is {config.name!r}, and the folder's is {name!r}")
        config.name = name
        backend = get_backend(config) or self._backend_of_files(folder, config)
        if flaws := check_config(config, backend):
            raise ConfigError("; ".join(flaws))
        versions = select_versions(folder, config)
        if not versions:
            raise _Unavailable(Unavailable("", NO_VERSION.format(name)))
        if error := find_agent_error(config, folder):  # before any file of the model is run
            raise _Unavailable(Unavailable(versions[-1], error))
        self._check_devices(config, backend, versions[-1])
        self._complete(config, folder, backend, versions)
        if flaws := flaws_of_tensors(config, backend):
            raise _Unavailable(Unavailable(versions[-1], f"Invalid argument: {'; '.join(flaws)}"))
        document = message_to_dict(config)
        if flaw := flaw_of_warmup(document, folder):
            raise _Unavailable(Unavailable(versions[-1], flaw))
        yield from self._versions(config, document, backend, folder, versions)

    def _check_devices(self, config: ModelConfig, backend: str, version: str) -> None:
        if not asks_for_gpu(config) or not (why := why_not(backend)):
            return
        if self._repository.strict_devices:
            told = f"Invalid argument: instance_group of model {config.name} asks for KIND_GPU, and {why}"
            raise _Unavailable(Unavailable(version, told))
        move_to_cpu(config)
        self.served.notes.append(f"Model {config.name}: its KIND_GPU runs on the CPU, for {why}")

    def _complete(self, config: ModelConfig, folder: Path, backend: str, versions: Sequence[str]) -> None:
        if backend == "python" and not self._repository.strict:
            self._complete_by_model(config, folder / versions[-1])
        complete(config, backend)
        if backend in _RUN_HERE or backend not in find(ENGINES):  # flaws_of_tensors tells of that
            return
        program = find_program(folder / versions[-1], config.default_model_filename)
        if not config.default_model_filename:
            self._name_program(config, folder / versions[-1], backend)
            program = find_program(folder / versions[-1], config.default_model_filename)
        if not program.is_file():
            raise _Unavailable(
                Unavailable(versions[-1], f"Internal: unable to find '{program}' for model '{config.name}'")
            )
        most = self._repository.defaults.max_batch_size(backend)
        try:
            facts = read_program_facts(program, backend)
        except ConfigError as exc:
            raise _Unavailable(Unavailable(versions[-1], f"Internal: {exc.message}")) from exc
        flaws = complete_by_file(config, facts, most, strict=self._repository.strict)
        if flaws:
            told = f"Invalid argument: {FILE} does not agree with {program}: {'; '.join(flaws)}"
            raise _Unavailable(Unavailable(versions[-1], told))
        complete(config, backend)  # dynamic batching may have come with it

    def _name_program(self, config: ModelConfig, folder: Path, backend: str) -> None:
        """Put in the name of the only program that the engine runs, where that is not always the same."""
        try:
            config.default_model_filename = find_model_files(folder, backend).program.name
        except ConfigError as exc:
            raise _Unavailable(Unavailable(folder.name, f"Internal: {exc.message}")) from exc

    def _complete_by_model(self, config: ModelConfig, folder: Path) -> None:
        """Put in what the model's `auto_complete_config` says."""
        program = folder / (config.default_model_filename or "model.py")
        if not program.is_file():
            return  # the worker tells
        if config.input and config.output and not completes(program):
            return  # spares a process
        try:
            install = self._repository.install_requirements
            made, lines = completed(program, message_to_dict(config), install_requirements=install)
            config.Clear()
            json_format.ParseDict(made, config, ignore_unknown_fields=True)
        except (ConfigError, json_format.ParseError) as exc:
            told = exc.message if isinstance(exc, ConfigError) else f"auto_complete_config: {exc}"
            raise _Unavailable(Unavailable(folder.name, told)) from exc
        self.served.notes.extend(f"Model {config.name}, auto_complete_config: {line}" for line in lines)

    def _backend_of_files(self, folder: Path, config: ModelConfig) -> str:
        if self._repository.strict:
            raise ConfigError(f"{folder / FILE} names no backend, and completing it is disabled")
        for version in select_versions(folder, config):
            if backend := backend_of_files(folder / version):
                return backend
        raise ConfigError(
            f"{folder / FILE} names no backend, and no version holds a file that tells: model.onnx, model.py"
        )

    def _versions(
        self,
        config: ModelConfig,
        document: Mapping[str, Any],
        backend: str,
        folder: Path,
        versions: Sequence[str],
    ) -> Iterator[ServedModel]:
        try:
            signature = build_signature(config, folder)
        except ConfigError as exc:
            raise _Unavailable(Unavailable(versions[-1], exc.message)) from exc
        graph = None if backend != "ensemble" else self._graph(config)
        self.served.notes.extend(without_effect(config, backend))
        if backend == "python" and not self._repository.install_requirements:
            for path in find_requirements(folder, versions[-1]):
                self.served.notes.append(f"Model {config.name}: {NOT_INSTALLED.format(path)}")
        for version in versions:
            op = f"{config.name}:{version}"
            own = graph or ensemble.dag_of_model(op)
            yield ServedModel(config.name, own, signature, version, document, str(folder))
            if graph is None:
                threads = self._repository.defaults.threads(backend)
                section = build_section(config, backend, folder / version, threads)
                self.served.sections[op] = section
                self._add_padding(op, config, backend, folder / version)

    def _add_padding(self, op: str, config: ModelConfig, backend: str, folder: Path) -> None:
        """Let rows of unequal length share runs, where the configuration says so or it is proven.

        Not those of a model without open lengths, or of one whose requests run alone.
        """
        served, section = self.served, self.served.sections[op]
        told = config.parameters[PADDING].string_value if PADDING in config.parameters else ""
        reshaped = any(one.HasField("reshape") for side in (config.input, config.output) for one in side)
        if backend in _RUN_HERE or section["batch_size"] == 1 or reshaped:
            return
        if told == "off":
            served.padding[op] = f"equal lengths only, as parameter {PADDING} says"
            return
        declared = _padded(told, [one.name for one in config.input]) if told else {}
        if not told and not any(-1 in one.dims for one in config.input):
            return
        proof = load_padding_proof(find_program(folder, config.default_model_filename), backend)
        padding = {"feeds": declared} if told else proof.section
        served.padding[op] = f"padded, as parameter {PADDING} says" if told else proof.why
        if padding is not None:
            section["padding"] = padding
            if proof.points and "device_type" not in section["local_service_conf"]:
                precision = section["local_service_conf"].get("precision", "fp32")
                served.choices[op] = Choice((Timed(backend, precision, points=proof.points),))

    def _graph(self, config: ModelConfig) -> Dag:
        if flaws := ensemble.check_ensemble(config):
            raise ConfigError("; ".join(flaws))
        missing = []
        self._read_ahead([name for name in ensemble.models_in(config) if name in self._repository.names()])
        for name in ensemble.models_in(config):
            if name in self._under_way:
                loop = " -> ".join([*self._under_way[self._under_way.index(name) :], name])
                raise ConfigError(f"circular dependency between ensembles: {loop}")
            if name in self._repository.names():
                self.add(name)
            if name not in self._by_name:
                missing.append(name)
        if missing:
            told = f"ensemble {config.name} contains models that are not available or ambiguous: "
            raise _Unavailable(Unavailable("", told + ", ".join(missing)))
        try:
            return ensemble.build_ensemble_dag(config, self._find)
        except ConfigError as exc:
            raise _Unavailable(Unavailable("", exc.message)) from exc

    def _find(self, name: str, version: int) -> ServedModel:
        models = self._by_name[name]
        if version == -1:
            return models[-1]
        for model in models:
            if model.version == str(version):
                return model
        raise ConfigError(f"version {version} of model {name} is not served")


def _read_alone(repository: ModelRepository, name: str) -> _Reading:
    reading = _Reading(repository)
    reading.add(name)
    return reading


def check_name(name: str) -> None:
    """Raises ConfigError for what can't be the name of a model, and of its folder."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name[:100]!r} can't be the name of a model: it begins with '.', or holds blanks, '/', '?', "
            "'#' or ':'"
        )


class _Unavailable(ConfigError):
    """Why a model whose configuration can be used is not served all the same."""

    def __init__(self, told: Unavailable) -> None:
        super().__init__(told.reason)
        self.model = told


def build_section(config: ModelConfig, backend: str, folder: Path, threads: int) -> dict[str, Any]:
    """The Op's section of config.yml that the configuration comes to."""
    batching = config.WhichOneof("scheduling_choice") == "dynamic_batching"
    most = config.max_batch_size
    section: dict[str, Any] = {
        "concurrency": _count_instances(config),
        "batch_size": max(1, most) if batching else 1,
        "auto_batching_timeout": config.dynamic_batching.max_queue_delay_microseconds / 1000,
    }
    if most:
        section["max_batch_rows"] = most
    if backend not in _RUN_HERE:
        program = find_program(folder, config.default_model_filename)
        section["local_service_conf"] = {
            "model_config": str(read_program_facts(program, backend).folder),
            "engine": backend,
            "fetch_list": [one.name for one in config.output],
            **get_engine_options(config, backend, threads),
            **get_device_keys(config, backend),
        }
    return section


def _count_instances(config: ModelConfig) -> int:
    return sum(group.count or 1 for group in config.instance_group) or 1


def _padded(text: str, inputs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """What the parameter says: the inputs that may be padded, and with what. Raises ConfigError."""
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


def _folders_in(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as exc:
        raise ConfigError(f"the model repository {folder} can't be read: {exc.strerror}") from exc
    for entry in entries:
        if entry.is_dir() and not entry.name.startswith("."):
            yield Path(entry.path)
