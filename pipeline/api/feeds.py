"""Parses the input tensors of a key/value request: texts with lists of numbers become NumPy arrays."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.api.examples import short_body, short_example
from pipeline.engines.feeds import LOD_SUFFIX, Array, check_promised
from pipeline.errors import InvalidInput
from pipeline.models.serving_model import Variable

_PRINTED = re.compile(r"\s*array\((\[.*\])(?:,\s*(?:dtype=[\w']+|shape=\([\d, ]*\)))*\)\s*", re.DOTALL)
_POINT = re.compile(r"\.(?!\d)")  # NumPy prints 1.0 as 1.
_WORD = re.compile(r"\b[a-zA-Z]{3,}\b")
_WORDS = {"nan": "NaN", "inf": "Infinity", "True": "true", "False": "false"}


def read_feeds(
    inputs: Mapping[str, Any], variables: Sequence[Variable], *, alike: Sequence[str] = ()
) -> dict[str, Array]:
    """Return the model's input arrays, parsed from the request's values and checked, by tensor name.

    `inputs` are a request's values by name; `variables` describe the model's inputs, and values under other
    names are ignored. A value is an ndarray, or a text with a JSON list of numbers, `[[1, 2, 3]]`, or an
    array as NumPy prints it, `array([[1, 2, 3]])`. The arrays have the variables' dtypes and fit their
    shapes. If all shapes begin with the batch axis, the arrays have equal numbers of rows. `alike` names
    inputs that must have equal shapes, such as ids and their mask: padding would hide a difference. Raises
    InvalidInput that names the input.
    """
    feeds: dict[str, Any] = {}
    for variable in variables:
        value = inputs.get(variable.alias)
        if value is None:
            hint = short_body(variables)
            raise InvalidInput(f"feed {variable.alias!r} is missing; send each under its name: {hint}")
        feeds[variable.alias] = _parse_numbers(value, variable) if isinstance(value, str) else value
        if variable.is_lod:
            lod = variable.alias + LOD_SUFFIX
            feeds[lod] = inputs.get(lod, _one_sequence(feeds[variable.alias]))
    checked = check_promised(variables, feeds)
    if all(variable.has_rows for variable in variables):
        rows = {v.alias: checked[v.alias].shape[:1] for v in variables if not v.is_lod}
        _check_equal("rows", rows)
    _check_equal("shape", {name: checked[name].shape for name in alike})
    return checked


def _parse_numbers(text: str, variable: Variable) -> Array:
    """Parse a JSON list of numbers into an array of the variable's dtype. Raises InvalidInput.

    Floats are rounded; an integer dtype must hold each number exactly.
    """
    where = f"feed {variable.alias!r}"
    if variable.dtype == "string":
        return _parse_strings(text, variable)
    try:
        numbers = np.asarray(json.loads(_as_json(text, where)))
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"{where} is not a list of numbers with rows of equal length, like {short_example(variable)}"
        ) from None
    if numbers.size == 0:
        raise InvalidInput(f"{where} is an empty list; it takes one like {short_example(variable)}")
    if numbers.dtype.kind not in "biuf":
        raise InvalidInput(f"{where} holds something that is no number {variable.dtype} can hold")
    if variable.dtype == "bfloat16":
        return _to_bfloat16(numbers)
    dtype = variable.numpy_dtype
    with np.errstate(invalid="ignore", over="ignore"):  # lossy casts are refused below
        array = numbers.astype(dtype)
    survived = np.isfinite(array) == np.isfinite(numbers) if dtype.kind == "f" else array == numbers
    if not survived.all():
        worst = numbers[~survived].flat[0]
        raise InvalidInput(f"{where} holds {worst.item()}, which is no {variable.dtype}")
    return array


def _parse_strings(text: str, variable: Variable) -> Array:
    """Parse a JSON list of texts into an object array of `str`. Raises InvalidInput."""
    try:
        array = np.array(json.loads(text), object)
    except (ValueError, RecursionError):
        array = np.empty(0, object)
    if not array.size or not all(isinstance(element, str) for element in array.flat):
        raise InvalidInput(
            f"feed {variable.alias!r} is not a list of texts with rows of equal length, like "
            f"{short_example(variable)}"
        )
    return array


def _to_bfloat16(numbers: Array) -> Array:
    """Round numbers to the nearest bfloat16, ties to even, and return their bits as uint16."""
    with np.errstate(over="ignore"):
        bits = numbers.astype(np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), bits >> 16, rounded).astype(np.uint16)


def _one_sequence(array: Any) -> Any:
    return np.array([0, len(array)]) if isinstance(array, np.ndarray) and array.ndim else None


def _as_json(text: str, where: str) -> str:
    """Return the JSON list in the text of a printed array, `array([[1, 2]])`. Other texts are unchanged.

    `PipelineClient` sends printed arrays. Raises InvalidInput for an array that NumPy has abbreviated.
    """
    printed = _PRINTED.fullmatch(text)
    if printed is None:
        return text
    if "..." in text:
        raise InvalidInput(
            f"{where} was shortened by NumPy's repr; send a tensor, in PipelineClient "
            "by predict(..., pack_tensor_format=True), or str(array.tolist())"
        )
    return _WORD.sub(lambda word: _WORDS.get(word[0], word[0]), _POINT.sub(".0", printed[1]))


def _check_equal(what: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    if len(set(shapes.values())) > 1:
        actual = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise InvalidInput(f"the feeds differ in {what}: {actual}; they belong together and must be equal")
