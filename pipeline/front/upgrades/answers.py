"""Comparison of two answers to one request by kind: classes, scores, texts and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
import numpy as np

_MAX_CHARS = 200  # of a value in a report
_SUM_TOLERANCE = 1e-3  # of probabilities that a model has rounded

Array = np.ndarray[Any, np.dtype[Any]]


class Kind(StrEnum):
    """The kind of a model output. It decides how two values of the output are compared."""

    CLASSES = "classes"  # integers, and the largest of several probabilities: equal
    SCORES = "scores"  # numbers from 0 to 1: equal within an absolute tolerance
    TEXTS = "texts"  # equal
    TENSORS = "tensors"  # other numbers: equal within a tolerance relative to the largest


@dataclass(frozen=True)
class Tolerances:
    """Differences between numbers that count as equal when answers of two model versions are compared."""

    scores: float = 0.01  # absolute
    tensors: float = 0.001  # relative to the largest number of the old answer, at least 1


class Difference(NamedTuple):
    """The first difference between two answers, for reports of model upgrades."""

    output: str  # name of the output, with the place inside: "boxes.0"
    kind: Kind
    old: str
    new: str


def find_difference(old: Any, new: Any, tolerances: Tolerances, output: str = "") -> Difference | None:
    """Return the first difference between two answers; None if they agree.

    Outputs that only the new answer has are no difference: clients do not read them yet.

    old, new: outputs by name, or, in recursive calls, values inside an output.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return _compare_mappings(old, new, tolerances, output)
    if isinstance(old, str | bytes) and isinstance(new, str | bytes):
        return _compare_texts(_as_text(old), _as_text(new), tolerances, output)
    old_array, new_array = _as_array(old), _as_array(new)
    if old_array is not None and new_array is not None:
        return _compare_arrays(old_array, new_array, tolerances, output)
    if isinstance(old, list | tuple | np.ndarray) and isinstance(new, list | tuple | np.ndarray):
        return _compare_lists(_as_list(old), _as_list(new), tolerances, output)
    return None if type(old) is type(new) and old == new else _differ(output, Kind.TEXTS, old, new)


def _compare_mappings(
    old: Mapping[Any, Any], new: Mapping[Any, Any], tolerances: Tolerances, output: str
) -> Difference | None:
    for name, value in old.items():
        place = f"{output}.{name}" if output else str(name)
        if name not in new:
            return _differ(place, Kind.TEXTS, value, "no output of this name")
        difference = find_difference(value, new[name], tolerances, place)
        if difference is not None:
            return difference
    return None


def _compare_lists(old: list[Any], new: list[Any], tolerances: Tolerances, output: str) -> Difference | None:
    if len(old) != len(new):
        return _differ(output, Kind.TEXTS, f"{len(old)} elements", f"{len(new)} elements")
    for index, (value, new_value) in enumerate(zip(old, new, strict=True)):
        difference = find_difference(
            value, new_value, tolerances, f"{output}.{index}" if output else str(index)
        )
        if difference is not None:
            return difference
    return None


def _compare_texts(old: str, new: str, tolerances: Tolerances, output: str) -> Difference | None:
    """Compare two texts.

    If both are JSON numbers, lists or objects, as some hooks return, compare the values.
    """
    if old == new:
        return None
    old_numbers, new_numbers = _parse_printed(old), _parse_printed(new)
    if old_numbers is None or new_numbers is None:
        return _differ(output, Kind.TEXTS, old, new)
    return find_difference(old_numbers, new_numbers, tolerances, output)


def _parse_printed(text: str) -> Any:
    """Return the JSON value of a text that is a number, a list or an object; None for other texts."""
    if not text[:1].lstrip("-").strip("[{") or text[:1].isdigit():
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return None
    return None


def _compare_arrays(old: Array, new: Array, tolerances: Tolerances, output: str) -> Difference | None:
    is_float = old.dtype.kind == "f" or new.dtype.kind == "f"
    if old.shape != new.shape:
        return _differ(
            output, Kind.TENSORS if is_float else Kind.CLASSES, f"shape {old.shape}", f"shape {new.shape}"
        )
    if not is_float:
        return None if np.array_equal(old, new) else _differ(output, Kind.CLASSES, old, new)
    old, new = old.astype(np.float64), new.astype(np.float64)
    if np.array_equal(old, new, equal_nan=True):
        return None
    finite = np.isfinite(old)
    if not np.array_equal(finite, np.isfinite(new)) or not np.array_equal(
        old[~finite], new[~finite], equal_nan=True
    ):
        return _differ(output, Kind.TENSORS, old, new)
    if not _are_scores(old):
        change = np.max(np.abs(new - old)[finite], initial=0.0)
        largest = max(1.0, float(np.max(np.abs(old[finite]), initial=0.0)))
        return None if change <= tolerances.tensors * largest else _differ(output, Kind.TENSORS, old, new)
    if _are_probabilities(old) and not np.array_equal(old.argmax(-1), new.argmax(-1)):
        return _differ(output, Kind.CLASSES, old, new)
    change = np.max(np.abs(new - old), initial=0.0)
    return None if change <= tolerances.scores else _differ(output, Kind.SCORES, old, new)


def _are_scores(values: Array) -> bool:
    """Return whether all values are numbers from 0 to 1. False if any is NaN."""
    return bool(np.all((values >= 0.0) & (values <= 1.0)))


def _are_probabilities(scores: Array) -> bool:
    """Return whether each row has the probabilities of several classes, whose sum is 1."""
    if not scores.ndim or scores.shape[-1] < 2:
        return False
    return bool(np.all(np.abs(scores.sum(-1) - 1.0) <= _SUM_TOLERANCE))


def _as_text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def _as_list(value: list[Any] | tuple[Any, ...] | Array) -> list[Any]:
    return np.atleast_1d(value).tolist() if isinstance(value, np.ndarray) else list(value)


def _as_array(value: Any) -> Array | None:
    """Return a value as an array of numbers; None for other values, such as arrays of texts."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        array = np.asarray(value)
        return array if array.dtype.kind in "biuf" else None
    if not isinstance(value, list | tuple) or not value:
        return None
    if not all(isinstance(element, bool | int | float | np.number | list | tuple) for element in value):
        return None
    try:
        array = np.asarray(value)
    except ValueError:  # of unequal lengths
        return None
    return array if array.dtype.kind in "biuf" else None


def _differ(output: str, kind: Kind, old: Any, new: Any) -> Difference:
    return Difference(output, kind, _shorten(old), _shorten(new))


def _shorten(value: Any) -> str:
    """Return a value as text of at most `_MAX_CHARS` characters."""
    if isinstance(value, np.ndarray):
        value = value.tolist() if value.size <= _MAX_CHARS else [*value.ravel()[:_MAX_CHARS].tolist(), "..."]
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}..."
