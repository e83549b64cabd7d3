"""The feeds and fetches of a model, and the prototxt (GeneralModelConfig) that describes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.models.dtypes import BY_NAME, BY_PADDLE
from pipeline.models.prototxt import Message, format_prototxt, read_prototxt

T = TypeVar("T")

MAX_VARIABLES = 1024
MAX_RANK = 16


@dataclass(frozen=True)
class Variable:
    """A feed or fetch of the model.

    `name` is the program's, `alias` what requests and Ops use. `dtype` is NumPy's name ("int64", "float32"),
    or "bfloat16" or "string". In `shape` -1 is any length; it starts with the batch axis, -1, unless the
    model has none or a fixed one. `is_lod` marks Paddle's ragged tensors, whose stored shape can't be
    trusted. `longest` is a pair of an open axis and the greatest length that the model takes there (a BERT of
    512 positions: (1, 512)); None where none is known.
    """

    name: str
    alias: str
    dtype: str
    shape: tuple[int, ...]
    is_lod: bool = False
    longest: tuple[int, int] | None = None

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """The dtype of its arrays."""
        known = BY_NAME.get(self.dtype)  # a program may have others, which can't be served
        return np.dtype(self.dtype) if known is None else known.numpy

    @property
    def has_rows(self) -> bool:
        """Whether its first axis is the batch, of any length."""
        return self.shape[:1] == (-1,)


def sized(shape: Sequence[int], rows: int, length: int) -> tuple[int, ...]:
    """A shape that a feed of this one can have: `rows` on the batch axis, `length` on the other open ones.

    Of a recurrent state the batch axis is the second: [layers, batch, width].
    """
    state = len(shape) > 2 and shape[0] > 1
    batch_axis = 1 if state else 0
    lengths = (rows if axis == batch_axis else length for axis in range(len(shape)))
    return tuple(dim if dim >= 0 else wanted for dim, wanted in zip(shape, lengths, strict=True))


def read_signature(conf: Path, *, batched: bool = True) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Feeds and fetches of a prototxt. Raises ConfigError with file and place.

    A batch axis that is left out is added, as Paddle Serving means it; not where `batched` is false.
    """
    message = read_prototxt(conf)
    return _variables(message, "feed", conf, batched), _variables(message, "fetch", conf, batched)


def signature_text(feeds: Sequence[Variable], fetches: Sequence[Variable]) -> str:
    """The prototxt of these feeds and fetches. Raises ConfigError for a dtype it has no number for."""

    def entry(variable: Variable, kind: str) -> dict[str, Sequence[object]]:
        dtype = BY_NAME.get(variable.dtype)
        if dtype is None or dtype.paddle is None:
            known = ", ".join(dtype.name for dtype in BY_PADDLE.values())
            raise ConfigError(f"{kind} {variable.alias!r}: dtype {variable.dtype!r} is not one of {known}")
        return {
            "name": [variable.name],
            "alias_name": [variable.alias],
            "is_lod_tensor": [variable.is_lod],
            f"{kind}_type": [dtype.paddle],
            "shape": list(variable.shape),
        }

    return format_prototxt(
        {"feed_var": [entry(v, "feed") for v in feeds], "fetch_var": [entry(v, "fetch") for v in fetches]}
    )


def _variables(
    message: Message, kind: Literal["feed", "fetch"], conf: Path, batched: bool
) -> tuple[Variable, ...]:
    unknown = message.keys() - {"feed_var", "fetch_var"}
    if unknown:
        raise ConfigError(f"{conf}: unknown field {min(unknown)!r}; a model has feed_var and fetch_var")
    entries = message.get(f"{kind}_var", [])
    if not 0 < len(entries) <= MAX_VARIABLES:
        raise ConfigError(f"{conf}: {len(entries)} entries of {kind}_var, expected 1 to {MAX_VARIABLES}")
    variables = tuple(
        _variable(entry, kind, f"{conf}: {kind}_var {i}", batched) for i, entry in enumerate(entries)
    )
    for what in ("name", "alias"):
        seen: set[str] = set()
        for variable in variables:
            value: str = getattr(variable, what)
            if value in seen:
                raise ConfigError(f"{conf}: two entries of {kind}_var have the {what} {value!r}")
            seen.add(value)
    return variables


def _variable(entry: object, kind: str, where: str, batched: bool) -> Variable:
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
    if number not in BY_PADDLE:
        known = ", ".join(f"{n} {dtype.name}" for n, dtype in BY_PADDLE.items())
        raise ConfigError(f"{where} ({alias}): {type_field} {number} is not one of {known}")
    is_lod = _single(entry, "is_lod_tensor", bool, False, where)
    shape = _shape(entry, f"{where} ({alias})")
    if batched and shape[:1] != (-1,):  # Paddle Serving leaves the batch axis out or stores it as -1
        shape = (-1, *shape)
    return Variable(name or alias, alias, BY_PADDLE[number].name, shape, is_lod)


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
    return tuple(dims)
