"""Files beside a model: serving.yml with padding, labels and notes, parity.json with its parity checks."""

from __future__ import annotations

import difflib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable

PARITY_FILE = "parity.json"
# Keys of serving.yml that are interpreted.
KEYS = {
    "batched",
    "constants",
    "digests",
    "inputs",
    "labels",
    "local_service_conf",
    "max_lengths",
    "outputs",
    "padding",
    "parity",
    "sentence",
    "state",
    "warmup_shapes",
}
MAX_LENGTHS = "max_lengths"
MAX_BYTES = 1 << 20


@dataclass(frozen=True)
class FeedPadding:
    """An axis of a model input that may be padded with a value without changing the outputs."""

    axis: int
    value: float = 0


@dataclass(frozen=True)
class Padding:
    """Model inputs that may be padded, and the outputs whose lengths follow the padded inputs."""

    feeds: Mapping[str, FeedPadding]  # by alias
    fetches: Mapping[str, int]  # by alias, the axis that is cut back to the row's own length
    max_length: int | None = None  # longer rows are never padded; None: only the model's limit


def read_additions(path: Path) -> dict[str, Any]:
    """Return the content of a serving.yml; empty if there is no file.

    Raises ConfigError if the file is not a mapping or has a misspelt key. Other unknown keys are allowed.
    """
    if not path.exists():
        return {}
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ConfigError(f"{path} is over {MAX_BYTES} bytes")
    try:
        document = yaml.safe_load(data)
    except yaml.YAMLError as exc:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(exc).split())}") from exc
    if document is None:
        return {}
    if not isinstance(document, dict) or not all(isinstance(key, str) for key in document):
        raise ConfigError(f"{path} is not a mapping of names (padding, labels, parity)")
    for key in document.keys() - KEYS:
        # Further keys are notes of the conversion, but a misspelt key would be ignored silently.
        near = difflib.get_close_matches(key.lower(), sorted(KEYS), 1, 0.75)
        if near:
            raise ConfigError(f"{path}: unknown key {key!r}, did you mean {near[0]!r}?")
    return document


def write_additions(path: Path, document: Mapping[str, Any]) -> None:
    """Write this content to serving.yml, and replace an existing file atomically.

    Raises ConfigError if the file can't be written.
    """
    text = yaml.safe_dump(dict(document), allow_unicode=True, sort_keys=False)
    partial = path.with_name(f".{path.name}.new")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as exc:
        raise ConfigError(f"{path} can't be written ({exc.strerror})") from exc
    finally:
        partial.unlink(missing_ok=True)


def failed_reports(path: Path) -> tuple[str, ...]:
    """Return the failures in a model's parity.json, the reports of comparisons with its source model.

    Empty if all reports passed or there is no file. Raises ConfigError if the file is not a list of reports.
    """
    if not path.exists():
        return ()
    try:
        with path.open("rb") as file:
            reports = json.loads(file.read(MAX_BYTES))
        if not isinstance(reports, list):
            raise TypeError("no list")
        return tuple(
            str(report.get("failure") or report["step"]) for report in reports if not report["passed"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ConfigError(
            f"{path} holds no parity reports: check the model again (paddlewheel convert check) or remove it"
        ) from exc


def parse_batched(value: object, path: Path) -> bool:
    """Check the value of `batched` in serving.yml: whether every input begins with the batch axis.

    If the key is absent, the value is true. If it is false, the declared shapes are complete, without a
    further batch axis. Raises ConfigError for other types.
    """
    if value is not None and not isinstance(value, bool):
        raise ConfigError(f"{path}: batched is {value!r}, expected true or false")
    return value is not False


def parse_labels(value: object, path: Path) -> tuple[str, ...]:
    """Check the value of `labels` in serving.yml, and return the class names. Raises ConfigError."""
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(label, str) for label in value):
        raise ConfigError(f"{path}: labels is not a list of strings (quote numbers and yes/no)")
    return tuple(value)


def parse_padding(
    value: object, feeds: Sequence[Variable], fetches: Sequence[Variable], path: Path
) -> Padding | None:
    """Check the value of `padding` in serving.yml: which inputs may be padded; None if it is absent.

    Raises ConfigError for inputs, outputs and axes that the model lacks.
    """
    if value is None:
        return None
    if not isinstance(value, dict) or value.keys() - {"feeds", "fetches", "max_length"}:
        raise ConfigError(f"{path}: padding is not a mapping with feeds, fetches and max_length")
    max_length = value.get("max_length")
    if max_length is not None and (type(max_length) is not int or max_length < 1):
        raise ConfigError(f"{path}: padding.max_length {max_length!r} is not a whole number from 1 up")
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
    return Padding(padded, cut, max_length)


def with_max_lengths(feeds: Sequence[Variable], value: object, path: Path) -> tuple[Variable, ...]:
    """Return the model inputs with their greatest lengths from serving.yml.

    value: {input_ids: {axis: 1, length: 512}}. Raises ConfigError.
    """
    longest = {}
    for alias, entry in _mapping(value, f"{path}: {MAX_LENGTHS}").items():
        where = f"{path}: {MAX_LENGTHS}.{alias}"
        if not isinstance(entry, dict) or entry.keys() != {"axis", "length"}:
            raise ConfigError(f"{where} is not of the form {{axis: 1, length: 512}}")
        length = entry["length"]
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise ConfigError(f"{where}: length {length!r} is not a whole number from 1 up")
        longest[alias] = (_free_axis(alias, entry["axis"], feeds, where), length)
    return tuple(replace(feed, longest=longest.get(feed.alias)) for feed in feeds)


def _mapping(value: object, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{where} is not a mapping")
    return value


def _free_axis(alias: str, axis: object, variables: Sequence[Variable], where: str) -> int:
    """Return the axis if it is a dynamic axis of this input or output; otherwise raise ConfigError."""
    variable = next((v for v in variables if v.alias == alias), None)
    if variable is None:
        raise ConfigError(f"{where}: the model has only {', '.join(v.alias for v in variables)}")
    if not isinstance(axis, int) or isinstance(axis, bool) or not 0 < axis < len(variable.shape):
        raise ConfigError(f"{where}: axis {axis!r} is not one of 1 to {len(variable.shape) - 1}")
    if variable.shape[axis] != -1:
        raise ConfigError(f"{where}: axis {axis} always has length {variable.shape[axis]}, so leave it out")
    return axis


def additions_document(
    feeds: Sequence[Variable], padding: Padding | None, labels: Sequence[str], additions: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the content of a model's serving.yml, without keys that have their default value.

    additions: further keys, which are put last.
    """
    document: dict[str, Any] = {}
    if not all(feed.has_rows for feed in feeds):
        document["batched"] = False
    if padding is not None:
        padded = {alias: {"axis": p.axis, "value": p.value} for alias, p in padding.feeds.items()}
        document["padding"] = {"feeds": padded, "fetches": dict(padding.fetches)}
        if padding.max_length is not None:
            document["padding"]["max_length"] = padding.max_length
    if labels:
        document["labels"] = list(labels)
    return document | dict(additions)
