"""Feeds from a key/value request: texts with lists of numbers, and tensors, become arrays for the model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.engines.feeds import Array, check_promised
from pipeline.errors import InvalidInput
from pipeline.models.serving_model import Variable
from pipeline.models.signature import sized

_PRINTED = re.compile(r"\s*array\((\[.*\])(?:,\s*(?:dtype=[\w']+|shape=\([\d, ]*\)))*\)\s*", re.DOTALL)
_POINT = re.compile(r"\.(?!\d)")  # NumPy prints 1.0 as 1.
_WORD = re.compile(r"\b[a-zA-Z]{3,}\b")
_WORDS = {"nan": "NaN", "inf": "Infinity", "True": "true", "False": "false"}


def read_feeds(
    inputs: Mapping[str, Any], variables: Sequence[Variable], *, alike: Sequence[str] = ()
) -> dict[str, Array]:
    """One array per variable, from the input named as its alias; other inputs are left alone.

    An input is an ndarray, or a text with a JSON list of numbers, `[[1, 2, 3]]`, or of an array as NumPy
    prints it, `array([[1, 2, 3]])`. The arrays have the variables' dtypes, fit their shapes and, where each
    begins with the batch, have equally many rows. `alike` names feeds that have equal shapes within a
    request, ids and their mask say: padding would hide that they don't. Raises InvalidInput that names the
    feed.
    """
    feeds = {}
    for variable in variables:
        given = inputs.get(variable.alias)
        if given is None:
            example = example_body(variables)
            raise InvalidInput(f"feed {variable.alias!r} is missing; send each under its name: {example}")
        feeds[variable.alias] = _from_text(given, variable) if isinstance(given, str) else given
    checked = check_promised(variables, feeds)
    if all(variable.has_rows for variable in variables):
        _check_equal("rows", {name: array.shape[:1] for name, array in checked.items()})
    _check_equal("shape", {name: checked[name].shape for name in alike})
    return checked


def example_body(variables: Sequence[Variable], length: int = 3) -> str:
    """A JSON body with one row of ones for every feed; -1 is `length`, long rows are shortened to `...`."""
    values = [_example(variable, length) for variable in variables]
    return json.dumps(
        {"key": [variable.alias for variable in variables], "value": values}, ensure_ascii=False
    )


def _from_text(text: str, variable: Variable) -> Array:
    """The array of a JSON list. A number that the feed's dtype can't hold exactly is refused where it is
    of integers; floats are rounded."""
    where = f"feed {variable.alias!r}"
    if variable.dtype in ("bfloat16", "string"):
        raise InvalidInput(f"{where} is {variable.dtype}, which has no form as text; send it as a tensor")
    try:
        numbers = np.asarray(json.loads(_as_json(text, where)))
    except (ValueError, RecursionError):
        raise InvalidInput(
            f"{where} is not a list of numbers with rows of equal length, like {_example(variable, 3)}"
        ) from None
    if numbers.size == 0:
        raise InvalidInput(f"{where} is an empty list; it takes one like {_example(variable, 3)}")
    if numbers.dtype.kind not in "biuf":
        raise InvalidInput(f"{where} holds something that is no number {variable.dtype} can hold")
    wanted = variable.numpy_dtype
    with np.errstate(invalid="ignore", over="ignore"):  # what doesn't survive is refused below
        array = numbers.astype(wanted)
    survived = np.isfinite(array) == np.isfinite(numbers) if wanted.kind == "f" else array == numbers
    if not survived.all():
        worst = numbers[~survived].flat[0]
        raise InvalidInput(f"{where} holds {worst.item()}, which is no {variable.dtype}")
    return array


def _as_json(text: str, where: str) -> str:
    """The JSON of an array as NumPy prints it, and `PipelineClient` sends it; else the text itself."""
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
        given = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
        raise InvalidInput(f"the feeds differ in {what}: {given}; they belong together and must be equal")


def _example(variable: Variable, length: int) -> str:
    shape = sized(variable.shape, 1, length)
    if np.prod(shape) > 16:
        return "[" * len(shape) + "1, 1, ..." + "]" * len(shape)
    ones = np.ones(shape, "int64" if variable.numpy_dtype.kind in "iu" else variable.numpy_dtype)
    return json.dumps(ones.tolist())
