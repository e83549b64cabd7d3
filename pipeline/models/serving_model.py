"""A serving model on disk: model files, their feeds and fetches, and what may be padded.

    <dir>/serving_server/   model files, serving_server_conf.prototxt, serving.yml
    <dir>/serving_client/   serving_client_conf.prototxt

The prototxt is Paddle Serving's GeneralModelConfig, so that its models load here; `serving.yml` is this
project's addition and may be absent. A folder with an ONNX model alone is one, too: the file describes
itself. Importing this module imports no framework.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

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
from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.signature import DTYPES, Variable, read_signature, signature_text

__all__ = [
    "CACHE_FOLDER",
    "DTYPES",
    "Engine",
    "FeedPadding",
    "Format",
    "Padding",
    "ServingModel",
    "Variable",
    "engine_of",
    "find_model_files",
    "is_serving_model",
    "load_serving_model",
    "write_serving_model",
]

Format = Literal["pir", "pdmodel", "onnx"]
Engine = Literal["paddle", "onnxruntime"]

SERVER_FOLDER, CLIENT_FOLDER = "serving_server", "serving_client"
SERVER_CONF, CLIENT_CONF = "serving_server_conf.prototxt", "serving_client_conf.prototxt"
ADDITIONS = "serving.yml"
CACHE_FOLDER = "tensorrt_cache"  # what TensorRT keeps beside a model, where config.yml names no folder for it


@dataclass(frozen=True)
class ServingModel:
    """What `load_serving_model` found.

    `directory` is the folder of the model files. `params` is None for ONNX, for programs without weights and
    for a `__model__` with a file for each weight.
    `additions` is serving.yml as read, the keys this module does not interpret included. `failures` are what
    the parity reports beside the model tell to be wrong with it.
    """

    directory: Path
    program: Path
    params: Path | None
    feeds: tuple[Variable, ...]
    fetches: tuple[Variable, ...]
    padding: Padding | None = None
    format: Format = "pir"
    labels: tuple[str, ...] = ()
    additions: Mapping[str, Any] = field(default_factory=dict)
    failures: tuple[str, ...] = ()


def load_serving_model(directory: Path | str, engine: Engine | None = None) -> ServingModel:
    """Read `directory`, the folder `serving_server` itself or the one that holds it.

    `engine` chooses where the folder holds models of both. Raises ConfigError, one sentence a flaw.
    """
    folder = _server_folder(Path(directory))
    program, params, format_ = find_model_files(folder, engine)
    additions = read_additions(folder / ADDITIONS)
    conf = folder / SERVER_CONF
    if conf.is_file():
        batched = parse_batched(additions.get("batched"), folder / ADDITIONS)
        feeds, fetches = read_signature(conf, batched=batched)
    else:
        graph = inspect_onnx(program)
        feeds, fetches = graph.feeds, graph.fetches
    feeds = with_max_lengths(feeds, additions.get(MAX_LENGTHS), folder / ADDITIONS)
    return ServingModel(
        directory=folder,
        program=program,
        params=params,
        feeds=feeds,
        fetches=fetches,
        padding=parse_padding(additions.get("padding"), feeds, fetches, folder / ADDITIONS),
        format=format_,
        labels=parse_labels(additions.get("labels"), folder / ADDITIONS),
        additions=additions,
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
    """Copy the model files and write the descriptions beside them.

    Everything is written to a folder beside `directory` and renamed when complete. A serving model that
    stands there already is replaced; any other non-empty folder is refused. `additions` are further keys of
    serving.yml ("parity", say); `extra_files` (vocabularies, tokenizers) go to serving_server/.
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
        load_serving_model(staging)  # what can't be read back is not put into place
        _put_into_place(staging, target)
    except ConfigError as exc:
        # Flaws are told with the path the caller knows.
        raise ConfigError(exc.message.replace(str(staging), str(target))) from exc
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def engine_of(directory: Path | str, engine: Engine | None = None) -> Engine:
    """The engine that runs the serving model there. Raises ConfigError."""
    _, _, format_ = find_model_files(_server_folder(Path(directory)), engine)
    return _engine_of_format(format_)


def _engine_of_format(format_: Format) -> Engine:
    return "onnxruntime" if format_ == "onnx" else "paddle"


def find_model_files(folder: Path, engine: Engine | None = None) -> tuple[Path, Path | None, Format]:
    """The program, its parameters and its format, whatever their names; those that `engine` runs if given.

    Also finds them in a plain inference directory without descriptions. Raises ConfigError when there is none
    or more than one.
    """
    files = sorted(path for path in folder.iterdir() if path.is_file())
    programs: list[tuple[Path, Format]] = []
    for path in files:
        if path.suffix == ".pdmodel" or path.name == "__model__":
            programs.append((path, "pdmodel"))
        elif path.suffix == ".onnx":
            programs.append((path, "onnx"))
        elif path.suffix == ".json" and _is_pir(path):
            programs.append((path, "pir"))
    if not programs:
        raise ConfigError(
            f"{folder} holds no model: expected *.json or *.pdmodel with *.pdiparams, __model__ or *.onnx"
        )
    if engine is not None:
        own = [program for program in programs if _engine_of_format(program[1]) == engine]
        if not own:
            raise ConfigError(
                f"engine: {engine} does not run {programs[0][0]}: remove the key, or convert the model"
            )
        programs = own
    if len(programs) > 1:
        names = ", ".join(path.name for path, _ in programs)
        raise ConfigError(f"{folder} holds several models ({names}): leave the one to be served")
    program, format_ = programs[0]
    if format_ == "onnx":
        return program, None, format_
    return program, _params_of(program, files), format_


def _params_of(program: Path, files: Sequence[Path]) -> Path | None:
    candidates = [path for path in files if path.suffix == ".pdiparams" or path.name == "__params__"]
    if len(candidates) > 1:
        names = ", ".join(path.name for path in candidates)
        raise ConfigError(
            f"{program.parent} holds several parameter files ({names}): leave that of {program.name}"
        )
    # A program without weights is saved without a parameter file, a `__model__` with one for each weight.
    return candidates[0] if candidates else None


def _is_pir(path: Path) -> bool:
    """Whether a .json file is a Paddle program; tokenizers and configurations have that suffix too."""
    with path.open("rb") as file:
        return b'"magic":"pir"' in file.read(512).replace(b" ", b"")


def is_serving_model(directory: Path) -> bool:
    """Whether `load_serving_model` would look into it, or into the folder serving_server there."""
    return _server_folder_in(directory) is not None


def _server_folder_in(directory: Path) -> Path | None:
    for folder in (directory, directory / SERVER_FOLDER):
        if (folder / SERVER_CONF).is_file():
            return folder
    return directory if any(directory.glob("*.onnx")) else None


def _server_folder(directory: Path) -> Path:
    folder = _server_folder_in(directory)
    if folder is not None:
        return folder
    if not directory.is_dir():
        what = "not a directory" if directory.exists() else "not there"
        raise ConfigError(f"the serving model {directory} is {what}: check the path")
    raise ConfigError(
        f"{directory} has neither {SERVER_CONF} nor {SERVER_FOLDER}/{SERVER_CONF}, nor versions 1/, 2/, ...: "
        "convert the model with `python -m convert serving INFERENCE_DIR OUT`"
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
    """Rename; an old model is moved aside first and removed last."""
    if not target.exists():
        staging.rename(target)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(old)
    staging.rename(target)
    shutil.rmtree(old)
