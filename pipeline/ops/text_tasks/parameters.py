"""Parses the parameters of text requests, such as `top_k`, `threshold` and the client's own labels.

KServe clients send `parameters`, key/value clients a key of the same name. A parameter holds for its own
request alone.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import InvalidInput
from pipeline.models.description import MAX_LABEL_LENGTH, MAX_LABELS, MAX_TEMPLATE_LENGTH, SLOT
from pipeline.models.sentence_files import MAX_DIMENSIONS
from pipeline.ops.text_tasks.split_tokens import printed_texts

MAX_TOP_K = 1000  # of `top_k`
_WORDS = {"true": True, "1": True, "false": False, "0": False}


class Parameter(NamedTuple):
    """A parameter that requests of a text task may have: its name, its parser and its documentation."""

    name: str
    read: Callable[[str, Any], Any]  # parses the value that was sent under a name; raises InvalidInput
    meaning: str  # a sentence for the docs page


def read_parameters(
    accepted: Sequence[Parameter], inputs: Mapping[str, Any], sent_parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the parsed parameters of a request, by name.

    accepted: parameters of the task. inputs: inputs of the request. sent_parameters: the `parameters` in the
    request. Raises InvalidInput for a value that can't be used, and for a misspelt name.
    """
    by_name = {parameter.name: parameter for parameter in accepted}
    for name in sent_parameters:
        _refuse_misspelt(name, by_name)
    for name in inputs:
        if name not in by_name and isinstance(inputs[name], str) and not name.isdigit():
            _refuse_misspelt(name, by_name)
    values = {}
    for name, parameter in by_name.items():
        sent = sent_parameters[name] if name in sent_parameters else inputs.get(name)
        if isinstance(sent, np.ndarray):
            sent = _of_array(sent)
        if sent is not None:
            values[name] = parameter.read(name, sent)
    return values


def _of_array(tensor: np.ndarray[Any, Any]) -> Any:
    """Return a tensor's values as a list, or a single value alone. Bytes are decoded to texts."""
    values = [
        value.decode(errors="replace") if isinstance(value, bytes) else value
        for value in tensor.ravel().tolist()
    ]
    return values[0] if len(values) == 1 else values


def count(name: str, value: Any) -> int:
    """Parse a number of labels, 1 to MAX_TOP_K. `name` is the parameter's name. Raises InvalidInput."""
    return _whole(name, value, MAX_TOP_K)


def size(name: str, value: Any) -> int:
    """Parse a number of vector dimensions, 1 to MAX_DIMENSIONS.

    `name` is the parameter's name. Raises InvalidInput.
    """
    return _whole(name, value, MAX_DIMENSIONS)


def share(name: str, value: Any) -> float:
    """Parse a number from 0 to 1. `name` is the parameter's name. Raises InvalidInput."""
    number = _number(name, value, "a number from 0 to 1")
    if not 0 <= number <= 1:
        raise InvalidInput(f"{name!r} is {_shown(value)}: send a number from 0 to 1")
    return number


def flag(name: str, value: Any) -> bool:
    """Parse a boolean: true, false, 1 or 0. `name` is the parameter's name. Raises InvalidInput."""
    if isinstance(value, bool):
        return value
    switch = _WORDS.get(str(value).strip().lower())
    if switch is None:
        raise InvalidInput(f"{name!r} is {_shown(value)}: send true or false")
    return switch


def labels_sent(name: str, value: Any) -> tuple[str, ...]:
    """Parse labels from a list, a JSON list, or a text with commas. Raises InvalidInput for duplicates.

    `name` is the parameter's name.
    """
    many = _listed(name, value)
    if not many:
        raise InvalidInput(f"{name!r} is empty: send one label or more")
    if len(many) > MAX_LABELS:
        raise InvalidInput(f"{name!r} has {len(many)} labels; {MAX_LABELS} are allowed in a request")
    for number, label in enumerate(many):
        if not isinstance(label, str) or not label.strip():
            raise InvalidInput(f"label {number} of {name!r} is {_shown(label)}: labels are texts, not empty")
        if len(label) > MAX_LABEL_LENGTH:
            raise InvalidInput(
                f"label {number} of {name!r} has {len(label)} characters; {MAX_LABEL_LENGTH} are allowed"
            )
    labels = tuple(label.strip() for label in many)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InvalidInput(f"{name!r} has {twice!r} twice: send each label once")
    return labels


def name_sent(name: str, value: Any) -> str:
    """Return a parameter's value that is itself a name, such as the name of a prompt.

    Raises InvalidInput for other types.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name!r} is {_shown(value)}: send a name")
    return value


def template(name: str, value: Any) -> str:
    """Return the hypothesis template of zero-shot classification: a text with `{}` once for the label.

    Raises InvalidInput.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name!r} is {_shown(value)}: send a text with {SLOT} where a label goes")
    if len(value) > MAX_TEMPLATE_LENGTH:
        raise InvalidInput(f"{name!r} has {len(value)} characters; {MAX_TEMPLATE_LENGTH} are allowed")
    if value.count(SLOT) != 1:
        raise InvalidInput(f"{name!r} has {value.count(SLOT)} times {SLOT}: put it once, where a label goes")
    return value


def _refuse_misspelt(name: str, accepted: Mapping[str, Parameter]) -> None:
    if name in accepted:
        return
    near = difflib.get_close_matches(name[:40].lower(), accepted, 1, 0.8)
    if near:
        raise InvalidInput(f"{name[:40]!r} is no parameter; did you mean {near[0]!r}?")


def _whole(name: str, value: Any, maximum: int) -> int:
    expected = f"a whole number from 1 to {maximum}"
    number = _number(name, value, expected)
    if number != int(number) or not 1 <= number <= maximum:
        raise InvalidInput(f"{name!r} is {_shown(value)}: send {expected}")
    return int(number)


def _number(name: str, value: Any, expected: str) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise InvalidInput(f"{name!r} is {_shown(value)}: send {expected}")
    return number


def _listed(name: str, value: Any) -> Sequence[Any]:
    if isinstance(value, str) and not value.lstrip().startswith(("[", "array(")):
        return [label for label in value.split(",") if label.strip()]
    if not isinstance(value, str | list | tuple | np.ndarray):
        raise InvalidInput(f"{name!r} is {_shown(value)}: send a list of texts, or texts between commas")
    return printed_texts(value if isinstance(value, str | np.ndarray) else list(value), name)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
