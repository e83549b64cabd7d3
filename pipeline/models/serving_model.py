"""Models on disk: finds, reads and writes the files of a model, its declared tensors and its serving.yml.

    <dir>/serving_server/   model files, serving_server_conf.prototxt, serving.yml
    <dir>/serving_client/   serving_client_conf.prototxt

The prototxt is Paddle Serving's GeneralModelConfig, so that its models load here; `serving.yml` is this
project's addition and may be absent. A folder with an ONNX model alone is a model, too: the file describes
itself. Importing this module imports no framework.
"""

from __future__ import annotations

import logging
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import yaml
from pydantic import ValidationError

from pipeline.config.config_file import LocalServiceConf
from pipeline.errors import ConfigError
from pipeline.models.additions import (
    MAX_LENGTHS,
    PARITY_FILE,
    FeedPadding,
    Padding,
    additions_document,
    failed_reports,
    parse_batched,
    parse_labels,
    parse_padding,
    read_additions,
    with_max_lengths,
)
from pipeline.models.description import INPUTS_KEY, OUTPUTS_KEY, Description, describe
from pipeline.models.sequence_tensors import (
    CONSTANTS_KEY,
    STATE_KEY,
    StateTensor,
    parse_constants,
    parse_state,
)
from pipeline.models.signature import Variable, read_signature, signature_text
from pipeline.plugins import ENGINES, Library, find, load

Array = np.ndarray[Any, np.dtype[Any]]

EXAMPLE_FILE = "example.npz"  # beside the model, an array for each feed
WARMUP_SHAPES = "warmup_shapes"  # a key of serving.yml, and an attribute of an Op
MAX_ELEMENTS = 1 << 26  # of a declared shape


def read_example(
    directory: Path, additions: Mapping[str, Any], feeds: Sequence[Variable]
) -> dict[str, Array]:
    """Return example inputs of a model: arrays in example.npz, or else ones in the shapes of serving.yml.

    The arrays are keyed by alias; empty if the model has no examples. Raises ConfigError for an unknown input
    or a shape that does not fit.
    """
    file = directory / EXAMPLE_FILE
    if not file.is_file():
        return create_ones(additions.get(WARMUP_SHAPES) or {}, feeds, f"{directory}: {WARMUP_SHAPES}")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            example = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{file} can't be read: {exc}") from exc
    by_alias = {feed.alias: feed for feed in feeds}
    for alias, array in example.items():
        _check_shape(alias, array.shape, by_alias, str(file))
    return {
        alias: array.astype(object if by_alias[alias].dtype == "string" else by_alias[alias].numpy_dtype)
        for alias, array in example.items()
    }


def create_ones(
    shapes: Mapping[str, Sequence[int]], feeds: Sequence[Variable], where: str
) -> dict[str, Array]:
    """Return arrays filled with ones in these shapes, by alias of the model input.

    `where` is the place for error messages. Raises ConfigError for an unknown input or a shape that does not
    fit.
    """
    if not isinstance(shapes, Mapping):
        raise ConfigError(f"{where} is not a mapping of feeds to shapes, such as {{x: [1, 64]}}")
    by_alias = {feed.alias: feed for feed in feeds}
    arrays = {}
    for alias, shape in shapes.items():
        _check_shape(alias, shape, by_alias, where)
        feed = by_alias[alias]
        arrays[alias] = np.full(tuple(shape), "1" if feed.dtype == "string" else 1, feed.numpy_dtype)
    return arrays


def _check_shape(alias: str, shape: Any, feeds: Mapping[str, Variable], where: str) -> None:
    feed = feeds.get(alias)
    if feed is None:
        raise ConfigError(f"{where}: the model has no feed {alias!r}, only {', '.join(feeds)}")
    is_shape = isinstance(shape, Sequence) and all(type(length) is int and length > 0 for length in shape)
    if not is_shape or np.prod(shape, dtype=object) > MAX_ELEMENTS:
        raise ConfigError(f"{where}.{alias} is {shape!r}, expected lengths from 1 up, such as [1, 64]")
    fits = len(shape) == len(feed.shape) and all(
        declared in (-1, length) for declared, length in zip(feed.shape, shape, strict=True)
    )
    if not fits:
        raise ConfigError(f"{where}.{alias} is {list(shape)}, but the feed takes {list(feed.shape)}")


__all__ = [
    "BODIES_FILE",
    "CACHE_FOLDER",
    "SAMPLE_FILE",
    "EngineName",
    "FeedPadding",
    "ModelFiles",
    "ModelReader",
    "Padding",
    "ServingModel",
    "Variable",
    "find_model_files",
    "is_serving_model",
    "load_serving_model",
    "require_library",
    "write_serving_model",
]

EngineName = Literal["paddle", "onnxruntime", "pytorch"]
"""Engines that `paddlewheel convert` writes models for."""

SERVER_FOLDER, CLIENT_FOLDER = "serving_server", "serving_client"
SERVER_CONF, CLIENT_CONF = "serving_server_conf.prototxt", "serving_client_conf.prototxt"
ADDITIONS = "serving.yml"
TRITON_CONF = "config.pbtxt"
BODIES_FILE = "sample.jsonl"  # request bodies, with which `auto` measures the hooks of the Op
SAMPLE_FILE = "sample.npz"  # real rows, an array for each feed, to compare precisions for `auto`
CACHE_FOLDER = "tensorrt_cache"  # default folder of built TensorRT engines, beside the model


class ModelReader(Protocol):
    """The part of an engine plugin that recognises and reads model files.

    The part that runs models is in `pipeline.engines.base.Engine`.
    """

    @property
    def name(self) -> str:
        """Name of the engine for `local_service_conf.engine` in config.yml."""
        ...

    @property
    def title(self) -> str:
        """Name of the engine in messages, such as "ONNX Runtime"."""
        ...

    @property
    def files(self) -> str:
        """Name patterns of the engine's model files, such as "*.onnx", for messages."""
        ...

    def format_of(self, file: Path) -> str:
        """Return the format of a model file of this engine; empty for other files."""
        ...

    def params_of(self, program: Path, files: Sequence[Path]) -> Path | None:
        """Return the single weight file of a model file; None if it has none or several, one for each weight.

        files: the files in the folder. Raises ConfigError if the weight file is ambiguous.
        """
        ...

    @property
    def self_described(self) -> bool:
        """Whether model files declare their inputs and outputs, so that no prototxt is needed."""
        ...

    def signature_of(self, program: Path) -> tuple[Sequence[Variable], Sequence[Variable]]:
        """Return the inputs and outputs that a model file declares. Raises ConfigError for a damaged file."""
        ...

    @property
    def only_named(self) -> bool:
        """Whether the engine only runs a model if `local_service_conf.engine` names the engine.

        True for engines that run the files of other engines. Engines without this attribute need no name.
        """
        ...


@dataclass(frozen=True)
class ModelFiles:
    """The model file (program) and weight file in a folder, with their format and engine."""

    program: Path
    params: Path | None
    format: str
    engine: str


@dataclass(frozen=True)
class ServingModel:
    """A model on disk, read and checked: files, engine, inputs and outputs, and its serving.yml."""

    directory: Path  # of the model files
    program: Path
    params: Path | None  # None for ONNX, without weights, and for a `__model__` with a file for each weight
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    padding: Padding | None = None
    format: str = "pir"
    engine: str = "paddle"  # runs the model in its format
    labels: tuple[str, ...] = ()
    description: Description = field(default_factory=Description)  # of what clients send and get
    additions: Mapping[str, Any] = field(default_factory=dict)  # serving.yml as read
    states: tuple[StateTensor, ...] = ()  # the state of sequences
    constants: Mapping[str, Array] = field(default_factory=dict)  # inputs with the same value in each run
    failures: tuple[str, ...] = ()  # in the parity reports beside the model
    variant: str = ""  # the form that is run in place of the model's own program; empty: the program
    lowered: bool = False  # whether the program of this form computes in a lower precision

    def read_example(self) -> dict[str, Array]:
        """Return example inputs that the model accepts, by alias; empty if its files have no examples.

        Raises ConfigError.
        """
        return read_example(self.directory, self.additions, self.feeds)


def load_serving_model(directory: Path | str, engine: str | None = None) -> ServingModel:
    """Read a model's files and descriptions. No framework is imported.

    `directory` is the folder `serving_server` itself or its parent folder. `engine` selects the model file if
    the folder has models of several engines. Raises ConfigError with a sentence for each mistake.
    """
    folder = server_folder(Path(directory))
    files = find_model_files(folder, engine)
    additions = read_additions(folder / ADDITIONS)
    conf = folder / SERVER_CONF
    if conf.is_file():
        batched = parse_batched(additions.get("batched"), folder / ADDITIONS)
        feeds, fetches = read_signature(conf, batched=batched)
    else:
        feeds, fetches = _described_by_itself(files)
    feeds = with_max_lengths(feeds, additions.get(MAX_LENGTHS), folder / ADDITIONS)
    labels = parse_labels(additions.get("labels"), folder / ADDITIONS)
    return ServingModel(
        directory=folder,
        program=files.program,
        params=files.params,
        feeds=feeds,
        fetches=fetches,
        padding=parse_padding(additions.get("padding"), feeds, fetches, folder / ADDITIONS),
        format=files.format,
        engine=files.engine,
        labels=labels,
        description=describe(additions, feeds, fetches, labels, folder / ADDITIONS),
        additions=additions,
        states=parse_state(additions.get(STATE_KEY), feeds, fetches, folder / ADDITIONS),
        constants=parse_constants(additions.get(CONSTANTS_KEY), feeds, folder / ADDITIONS),
        failures=failed_reports(folder / PARITY_FILE),
    )


def write_serving_model(
    directory: Path | str,
    program: Path,
    params: Path | None,
    feeds: Sequence[Variable],
    fetches: Sequence[Variable],
    *,
    padding: Padding | None = None,
    labels: Sequence[str] = (),
    additions: Mapping[str, Any] | None = None,
    extra_files: Iterable[Path] = (),
) -> None:
    """Write a model that can be served: copy its files into `directory`, and write their descriptions.

    Everything is written to a folder beside `directory` and renamed when complete. A serving model that
    exists there is replaced; any other non-empty folder is refused. `additions` are further keys of
    serving.yml, such as "parity"; `extra_files` (vocabularies, tokenizers) are copied to serving_server/.
    """
    target = Path(directory).absolute()
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.new-", dir=target.parent))
    try:
        staging.chmod(0o755)
        server, client = staging / SERVER_FOLDER, staging / CLIENT_FOLDER
        server.mkdir()
        client.mkdir()
        for file in [program, *([params] if params else []), *extra_files]:
            if (server / file.name).exists():
                raise ConfigError(
                    f"two files named {file.name} would go to {target / SERVER_FOLDER}: rename one"
                )
            shutil.copyfile(file, server / file.name)
        description = signature_text(feeds, fetches)
        (server / SERVER_CONF).write_text(description, encoding="utf-8")
        (client / CLIENT_CONF).write_text(description, encoding="utf-8")
        document = additions_document(feeds, padding, labels, additions or {})
        if document:
            text = yaml.safe_dump(document, allow_unicode=True, sort_keys=False)
            (server / ADDITIONS).write_text(text, encoding="utf-8")
        load_serving_model(staging)  # check that the model can be read back
        _put_into_place(staging, target)
    except ConfigError as exc:
        # Messages name the caller's path.
        raise ConfigError(exc.message.replace(str(staging), str(target))) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def find_model_files(folder: Path, engine: str | None = None) -> ModelFiles:
    """Find the model file in a folder, with its weights, format and engine.

    engine: only files of this engine. A plain inference directory without descriptions is sufficient. Raises
    ConfigError when there is no model or more than one.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    programs = list(_programs(files, engine))
    if not programs:
        expected = " or ".join(reader.files for reader in _asked(engine))
        raise ConfigError(f"{folder} holds no model: expected {expected}")
    if engine is not None:
        matches = [candidate for candidate in programs if candidate[1].name == engine]
        if not matches:
            raise ConfigError(
                f"engine: {engine} does not run {programs[0][0]}: remove the key, or convert the model"
            )
        programs = matches
    if len(programs) > 1:
        names = ", ".join(path.name for path, _, _ in programs)
        raise ConfigError(f"{folder} holds several models ({names}): leave the one to be served")
    program, reader, format_ = programs[0]
    return ModelFiles(program, reader.params_of(program, files), format_, reader.name)


def _programs(files: Iterable[Path], named: str | None = None) -> Iterator[tuple[Path, ModelReader, str]]:
    """Yield the model files among these files, with their engine and format.

    `named` is the requested engine.
    """
    for path in files:
        for reader in _asked(named):
            if format_ := reader.format_of(path):
                yield path, reader, format_


def _asked(named: str | None) -> list[ModelReader]:
    """Return the engines that may run a model: the requested engine, and those that need no request."""
    readers = _readers().values()
    return [reader for reader in readers if reader.name == named or not getattr(reader, "only_named", False)]


def find_programs(engine: str, folder: Path) -> list[Path]:
    """Return the model files in a folder that the engine of this name runs."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    return [path for path, reader, _ in _programs(files, engine) if reader.name == engine]


def _readers() -> Mapping[str, ModelReader]:
    return {name: load(plugin) for name, plugin in find(ENGINES).items()}


def require_library(model: ModelFiles | ServingModel) -> None:
    """Raise ConfigError if the library of the model's engine is not installed.

    The library is not imported: if importing an installed library fails, the worker reports the error.
    """
    engine = _readers()[model.engine]
    library: Library | None = getattr(engine, "library", None)
    if library is not None and not library.is_installed:
        raise ConfigError(
            f"{model.program} needs {engine.title}, which is not installed here: "
            f"pip install '{library.requirement}'"
        )


def _described_by_itself(files: ModelFiles) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    reader = _readers()[files.engine]
    if not reader.self_described:
        raise ConfigError(f"{files.program} needs a {SERVER_CONF} beside it, which tells its feeds")
    feeds, fetches = reader.signature_of(files.program)
    return tuple(feeds), tuple(fetches)


def is_serving_model(directory: Path) -> bool:
    """Whether a directory, or its folder serving_server, holds a model that can be served."""
    return _server_folder_in(directory) is not None


def _server_folder_in(directory: Path) -> Path | None:
    for folder in (directory, directory / SERVER_FOLDER):
        if (folder / SERVER_CONF).is_file():
            return folder
    return directory if directory.is_dir() and _describes_itself(directory) else None


def _describes_itself(folder: Path) -> bool:
    """Whether the folder has a model file that declares its inputs and outputs and needs no prototxt."""
    files = (path for path in folder.iterdir() if path.is_file())
    return any(reader.self_described for _, reader, _ in _programs(files))


def server_folder(directory: Path) -> Path:
    """Return the folder with the files of a model: `directory`, or its folder serving_server.

    Raises ConfigError, with a hint, for a directory without a model.
    """
    folder = _server_folder_in(directory)
    if folder is not None:
        return folder
    if not directory.is_dir():
        what = "not a directory" if directory.exists() else "not there"
        raise ConfigError(f"the serving model {directory} is {what}: check the path")
    if (directory / TRITON_CONF).is_file() or any(directory.glob(f"*/{TRITON_CONF}")):
        repository = directory.parent if (directory / TRITON_CONF).is_file() else directory
        raise ConfigError(
            f"{directory} is of a Triton model repository: `paddlewheel serve --model-repository "
            f"{repository}` serves it"
        )
    raise ConfigError(
        f"{directory} has neither {SERVER_CONF} nor {SERVER_FOLDER}/{SERVER_CONF}, nor versions 1/, 2/, ...: "
        "convert the model with `paddlewheel convert serving INFERENCE_DIR OUT`"
    )


def _refuse_foreign(target: Path) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise ConfigError(f"{target} is a file: name another directory")
    foreign = sorted({path.name for path in target.iterdir()} - {SERVER_FOLDER, CLIENT_FOLDER})
    if foreign:
        raise ConfigError(
            f"{target} holds {foreign[0]}, which is no part of a serving model: name another directory"
        )


def _put_into_place(staging: Path, target: Path) -> None:
    """Rename the folder of a new model to its final name.

    An old model is moved aside first and removed last.
    """
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old)
    staging.rename(target)
    shutil.rmtree(old)


UNVERSIONED = "1"  # version of a model without version folders


class ChosenVersion(NamedTuple):
    """A version of a model that was selected: its name, and its folder."""

    directory: Path  # of the serving model, without symbolic links, so that it stays the same
    version: str


def choose_version(directory: Path, requested: int | None = None) -> ChosenVersion:
    """Return the requested version of a model, or the highest.

    Versions are folders 1/, 2/, ... in `directory`. A directory that is a model itself has no other versions.
    Raises ConfigError.
    """
    directory = directory.resolve()
    if is_serving_model(directory):
        if requested is not None:
            raise ConfigError(
                f"{directory} is a serving model without versions: remove model_version {requested}, or move "
                f"the model to {directory / str(requested)}"
            )
        return ChosenVersion(directory, UNVERSIONED)
    versions = _versions_in(directory)
    if requested is not None and requested not in versions:
        available = ", ".join(map(str, versions)) or "none"
        raise ConfigError(
            f"{directory} has no version {requested}, model_version asks for it; there: {available}"
        )
    if not versions:
        return ChosenVersion(directory, UNVERSIONED)  # loading it raises the error
    version = str(requested or versions[-1])
    return ChosenVersion(directory / version, version)


def list_older_versions(chosen: ChosenVersion) -> list[ChosenVersion]:
    """Return the versions below the chosen one, newest first; none for a model without versions."""
    folder = chosen.directory.parent
    if chosen.directory.name != chosen.version or is_serving_model(folder):
        return []
    older = [version for version in _versions_in(folder) if version < int(chosen.version)]
    return [ChosenVersion(folder / str(version), str(version)) for version in reversed(older)]


def _versions_in(directory: Path) -> list[int]:
    if not directory.is_dir():
        return []
    names = (path.name for path in directory.iterdir() if path.is_dir())
    return sorted(int(name) for name in names if re.fullmatch(r"[1-9]\d{0,17}", name))


log = logging.getLogger(__name__)

KEY = "local_service_conf"
SETTINGS = ("ir_optim", "precision")


def merge_model_settings(model: ServingModel, conf: LocalServiceConf) -> LocalServiceConf:
    """Return `conf` with the engine settings in the model's serving.yml. Keys in config.yml win.

    If the model's file itself has the lower precision, the result has precision fp32 and graph optimisation,
    whatever config.yml says: the engine computes what is in the file, and fuses operators for it. Raises
    ConfigError for keys that are not in SETTINGS, and for values that are invalid in config.yml.
    """
    if model.lowered:
        return conf.model_copy(update={"precision": "fp32", "ir_optim": True})
    section = model.additions.get(KEY)
    if section is None:
        return conf
    where = f"{model.directory / ADDITIONS}: {KEY}"
    if not isinstance(section, dict) or section.keys() - set(SETTINGS):
        raise ConfigError(f"{where} may have {' and '.join(SETTINGS)}: put other keys in config.yml")
    try:
        checked = LocalServiceConf.model_validate(section)
    except ValidationError as exc:
        error = exc.errors()[0]
        raise ConfigError(f"{where}.{error['loc'][0]}: {error['input']!r}: {error['msg']}") from exc
    settings = {key: getattr(checked, key) for key in section}
    for key, value in settings.items():
        if key in conf.model_fields_set and getattr(conf, key) != value:
            log.warning(
                "%s.%s is %s, but config.yml has %s, which goes first", where, key, value, getattr(conf, key)
            )
    return conf.model_copy(update={key: settings[key] for key in settings.keys() - conf.model_fields_set})


LABELS_KEY = "labels"
SERVICE_KEYS = (LABELS_KEY, INPUTS_KEY, OUTPUTS_KEY)


def described_by(model: ServingModel, file: Path) -> ServingModel:
    """Return the model with the labels, inputs and outputs of the service's own description file.

    Raises ConfigError for an invalid file.
    """
    if not file.is_file():
        raise ConfigError(f"{file} is not a file: the service's description of its model is missing")
    keys = read_additions(file)
    if unknown := sorted(keys.keys() - set(SERVICE_KEYS)):
        raise ConfigError(f"{file} may have {', '.join(SERVICE_KEYS)}, and has {unknown[0]}")
    return with_service_keys(model, keys, file)


def with_service_keys(model: ServingModel, keys: Mapping[str, Any], file: Path) -> ServingModel:
    """Return the model with these keys in place of the same keys of its serving.yml.

    `file` is the file that is named in messages.
    """
    labels = tuple(keys.get(LABELS_KEY) or model.labels)
    additions = {**model.additions, **keys}
    description = describe(additions, model.feeds, model.fetches, labels, file)
    return replace(model, labels=labels, description=description, additions=additions)
