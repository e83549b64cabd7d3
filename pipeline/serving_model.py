"""A serving model on disk: model files, their feeds and fetches, and what may be padded.

    <dir>/serving_server/   model files, serving_server_conf.prototxt, serving.yml
    <dir>/serving_client/   serving_client_conf.prototxt

The prototxt is Paddle Serving's GeneralModelConfig, so that its models load here; `serving.yml` is this
project's addition and may be absent. Importing this module imports no framework.
"""

from __future__ import annotations

import difflib
import math
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import yaml

from pipeline.errors import ConfigError
from pipeline.prototxt import Message, format_prototxt, read_prototxt

Format = Literal["pir", "pdmodel", "onnx"]
T = TypeVar("T")

SERVER_FOLDER, CLIENT_FOLDER = "serving_server", "serving_client"
SERVER_CONF, CLIENT_CONF = "serving_server_conf.prototxt", "serving_client_conf.prototxt"
ADDITIONS = "serving.yml"

# GeneralModelConfig's numbers; 9 is the one its tensors on the wire use for bool.
DTYPES = {
    0: "int64",
    1: "float32",
    2: "int32",
    3: "float64",
    4: "int16",
    5: "float16",
    6: "bfloat16",
    7: "uint8",
    8: "int8",
    9: "bool",
    20: "string",
}
_DTYPE_NUMBERS = {name: number for number, name in DTYPES.items()}

MAX_VARIABLES = 1024
MAX_RANK = 16
MAX_ADDITIONS_BYTES = 1 << 20


@dataclass(frozen=True)
class Variable:
    """A feed or fetch of the model.

    `name` is the program's, `alias` what requests and Ops use. `dtype` is NumPy's name ("int64", "float32"),
    or "bfloat16" or "string". `shape` starts with the batch axis; -1 is any length. `is_lod` marks Paddle's
    ragged tensors, whose stored shape can't be trusted.
    """

    name: str
    alias: str
    dtype: str
    shape: tuple[int, ...]
    is_lod: bool = False

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of its arrays: bfloat16 travels as uint16, strings as object."""
        return np.dtype({"bfloat16": "uint16", "string": "object"}.get(self.dtype, self.dtype))


@dataclass(frozen=True)
class FeedPadding:
    """`axis` of a feed may be filled up with `value` without changing the answer."""

    axis: int
    value: float = 0


@dataclass(frozen=True)
class Padding:
    """What was proven safe to pad, by alias; `fetches` gives the axis to cut back to the row's own length."""

    feeds: Mapping[str, FeedPadding]
    fetches: Mapping[str, int]


@dataclass(frozen=True)
class ServingModel:
    """What `load_serving_model` found.

    `directory` is the folder of the model files. `params` is None for ONNX and for programs without weights.
    `additions` is serving.yml as read, the keys this module does not interpret included.
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


def load_serving_model(directory: Path | str) -> ServingModel:
    """Read `directory`, the folder `serving_server` itself or the one that holds it.

    Raises ConfigError, one sentence a flaw.
    """
    folder = _server_folder(Path(directory))
    conf = folder / SERVER_CONF
    message = read_prototxt(conf)
    feeds = _variables(message, "feed", conf)
    fetches = _variables(message, "fetch", conf)
    program, params, format_ = find_model_files(folder)
    additions = _read_additions(folder / ADDITIONS)
    return ServingModel(
        directory=folder,
        program=program,
        params=params,
        feeds=feeds,
        fetches=fetches,
        padding=_padding(additions.get("padding"), feeds, fetches, folder / ADDITIONS),
        format=format_,
        labels=_labels(additions.get("labels"), folder / ADDITIONS),
        additions=additions,
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
        description = _description(feeds, fetches)
        (server / SERVER_CONF).write_text(description, encoding="utf-8")
        (client / CLIENT_CONF).write_text(description, encoding="utf-8")
        document = _additions(padding, labels, additions or {})
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


def find_model_files(folder: Path) -> tuple[Path, Path | None, Format]:
    """The program, its parameters and its format, whatever their names.

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
    if not candidates and program.name == "__model__":
        raise ConfigError(f"{program.parent} has no __params__: save the model with all weights in one file")
    # A program without weights is saved without a parameter file.
    return candidates[0] if candidates else None


def _is_pir(path: Path) -> bool:
    """Whether a .json file is a Paddle program; tokenizers and configurations have that suffix too."""
    with path.open("rb") as file:
        return b'"magic":"pir"' in file.read(512).replace(b" ", b"")


def _server_folder(directory: Path) -> Path:
    for folder in (directory, directory / SERVER_FOLDER):
        if (folder / SERVER_CONF).is_file():
            return folder
    if not directory.is_dir():
        raise ConfigError(f"the serving model {directory} is not a directory: check model_config")
    raise ConfigError(
        f"{directory} has neither {SERVER_CONF} nor {SERVER_FOLDER}/{SERVER_CONF}: "
        "convert the model with `python -m convert serving INFERENCE_DIR OUT`"
    )


def _variables(message: Message, kind: Literal["feed", "fetch"], conf: Path) -> tuple[Variable, ...]:
    unknown = message.keys() - {"feed_var", "fetch_var"}
    if unknown:
        raise ConfigError(f"{conf}: unknown field {min(unknown)!r}; a model has feed_var and fetch_var")
    entries = message.get(f"{kind}_var", [])
    if not 0 < len(entries) <= MAX_VARIABLES:
        raise ConfigError(f"{conf}: {len(entries)} entries of {kind}_var, expected 1 to {MAX_VARIABLES}")
    variables = tuple(_variable(entry, kind, f"{conf}: {kind}_var {i}") for i, entry in enumerate(entries))
    for what in ("name", "alias"):
        seen: set[str] = set()
        for variable in variables:
            value: str = getattr(variable, what)
            if value in seen:
                raise ConfigError(f"{conf}: two entries of {kind}_var have the {what} {value!r}")
            seen.add(value)
    return variables


def _variable(entry: object, kind: str, where: str) -> Variable:
    if not isinstance(entry, dict):
        raise ConfigError(f"{where} is not a message in braces")
    type_field = f"{kind}_type"
    unknown = entry.keys() - {"name", "alias_name", "is_lod_tensor", type_field, "shape"}
    if unknown:
        raise ConfigError(f"{where}: unknown field {min(unknown)!r}")
    name = _single(entry, "name", str, "", where)
    alias = _single(entry, "alias_name", str, "", where) or name
    if not alias:
        raise ConfigError(f"{where} has no name")
    number = _single(entry, type_field, int, 0, where)  # proto2's default
    if number not in DTYPES:
        known = ", ".join(f"{n} {dtype}" for n, dtype in DTYPES.items())
        raise ConfigError(f"{where} ({alias}): {type_field} {number} is not one of {known}")
    is_lod = _single(entry, "is_lod_tensor", bool, False, where)
    return Variable(name or alias, alias, DTYPES[number], _shape(entry, f"{where} ({alias})"), is_lod)


def _single(entry: Message, key: str, kind: type[T], default: T, where: str) -> T:
    values = entry.get(key)
    if not values:
        return default
    value = values[-1]  # text format: the last one counts
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ConfigError(f"{where}: {key} is {value!r}, expected {kind.__name__}")
    return value


def _shape(entry: Message, where: str) -> tuple[int, ...]:
    dims = [dim for dim in entry.get("shape", []) if isinstance(dim, int) and not isinstance(dim, bool)]
    if len(dims) != len(entry.get("shape", [])) or any(dim < -1 for dim in dims):
        raise ConfigError(f"{where}: shape {entry['shape']} is not a list of lengths, -1 for any")
    if len(dims) > MAX_RANK:
        raise ConfigError(f"{where}: shape has {len(dims)} axes, at most {MAX_RANK} are served")
    # Paddle Serving leaves the batch axis out or stores it as -1.
    return tuple(dims) if dims[:1] == [-1] else (-1, *dims)


def _read_additions(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    with path.open("rb") as file:
        data = file.read(MAX_ADDITIONS_BYTES + 1)
    if len(data) > MAX_ADDITIONS_BYTES:
        raise ConfigError(f"{path} is over {MAX_ADDITIONS_BYTES} bytes")
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(exc).split())}") from exc
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path} is not a mapping of names (padding, labels, parity)")
    for key in document.keys() - {"padding", "labels", "parity"}:
        # Further keys are notes of the conversion, but a misspelt one would be lost in silence.
        near = difflib.get_close_matches(key.lower(), ("padding", "labels", "parity"), 1, 0.75)
        if near:
            raise ConfigError(f"{path}: unknown key {key!r}, did you mean {near[0]!r}?")
    return document


def _labels(value: object, path: Path) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise ConfigError(f"{path}: labels is not a list of strings (quote numbers and yes/no)")
    return tuple(value)


def _padding(
    value: object, feeds: Sequence[Variable], fetches: Sequence[Variable], path: Path
) -> Padding | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() - {"feeds", "fetches"}:
        raise ConfigError(f"{path}: padding is not a mapping with feeds and fetches")
    padded = {}
    for alias, entry in _mapping(value.get("feeds"), f"{path}: padding.feeds").items():
        where = f"{path}: padding.feeds.{alias}"
        if not isinstance(entry, dict) or "axis" not in entry or entry.keys() - {"axis", "value"}:
            raise ConfigError(f"{where} is not of the form {{axis: 1, value: 0}}")
        number = entry.get("value", 0)
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise ConfigError(f"{where}: value {number!r} is not a number")
        padded[alias] = FeedPadding(_free_axis(alias, entry["axis"], feeds, where), number)
    cut = {
        alias: _free_axis(alias, axis, fetches, f"{path}: padding.fetches.{alias}")
        for alias, axis in _mapping(value.get("fetches"), f"{path}: padding.fetches").items()
    }
    return Padding(padded, cut)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a mapping")
    return value


def _free_axis(alias: str, axis: object, variables: Sequence[Variable], where: str) -> int:
    """The axis, after a look that the variable has it with any length."""
    variable = next((v for v in variables if v.alias == alias), None)
    if variable is None:
        raise ConfigError(f"{where}: the model has only {', '.join(v.alias for v in variables)}")
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 < axis < len(variable.shape):
        raise ConfigError(f"{where}: axis {axis!r} is not one of 1 to {len(variable.shape) - 1}")
    if variable.shape[axis] != -1:
        raise ConfigError(f"{where}: axis {axis} always has length {variable.shape[axis]}, nothing to pad")
    return axis


def _description(feeds: Sequence[Variable], fetches: Sequence[Variable]) -> str:
    def entry(variable: Variable, kind: str) -> dict[str, Sequence[object]]:
        if variable.dtype not in _DTYPE_NUMBERS:
            known = ", ".join(_DTYPE_NUMBERS)
            raise ConfigError(f"{kind} {variable.alias!r}: dtype {variable.dtype!r} is not one of {known}")
        return {
            "name": [variable.name],
            "alias_name": [variable.alias],
            "is_lod_tensor": [variable.is_lod],
            f"{kind}_type": [_DTYPE_NUMBERS[variable.dtype]],
            "shape": list(variable.shape),
        }

    return format_prototxt(
        {"feed_var": [entry(v, "feed") for v in feeds], "fetch_var": [entry(v, "fetch") for v in fetches]}
    )


def _additions(
    padding: Padding | None, labels: Sequence[str], additions: Mapping[str, Any]
) -> dict[str, Any]:
    document: dict[str, Any] = {}
    if padding is not None:
        feeds = {alias: {"axis": p.axis, "value": p.value} for alias, p in padding.feeds.items()}
        document["padding"] = {"feeds": feeds, "fetches": dict(padding.fetches)}
    if labels:
        document["labels"] = list(labels)
    return document | dict(additions)


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
