"""Declared inputs (feeds) and outputs (fetches) of a model, read from its prototxt (GeneralModelConfig)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from client.protos.model_files_pb2 import FeedVar, FetchVar, GeneralModelConfig
from pipeline.errors import ConfigError
from pipeline.models.protobuf_text import format_message, read_message
from pipeline.models.tensor_spec import BY_NAME, BY_PADDLE

MAX_BYTES = 4 << 20
MAX_VARIABLES = 1024
MAX_RANK = 16


@dataclass(frozen=True)
class Variable:
    """An input (feed) or output (fetch) tensor of a model: its names, dtype and shape.

    Clients see a `TensorSpec` instead, which is sent to the front process, and which Ops without a model
    declare.
    """

    name: str  # the program's
    alias: str  # what requests and Ops call it
    dtype: str  # as in `dtypes`: NumPy's name, or "bfloat16" or "string"
    # -1 is any length. It starts with the batch axis, -1, unless the model has none or a fixed one.
    shape: tuple[int, ...]
    is_lod: bool = False  # one of Paddle's ragged tensors, whose stored shape can't be trusted
    # An open axis and the greatest length that the model takes there, of a BERT of 512 positions (1, 512).
    longest: tuple[int, int] | None = None

    @cached_property
    def numpy_dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the tensor's arrays."""
        dtype = BY_NAME.get(self.dtype)  # None: a program's dtype that can't be served
        return np.dtype(self.dtype) if dtype is None else dtype.numpy

    @property
    def has_rows(self) -> bool:
        """Whether the first axis is a dynamic batch axis."""
        return self.shape[:1] == (-1,)


def sized(shape: Sequence[int], rows: int, length: int) -> tuple[int, ...]:
    """Return a shape with `rows` on a dynamic batch axis and `length` on other dynamic axes.

    For a recurrent state, the batch axis is the second axis: [layers, batch, width].
    """
    state = len(shape) > 2 and shape[0] > 1
    batch_axis = 1 if state else 0
    lengths = (rows if axis == batch_axis else length for axis in range(len(shape)))
    return tuple(dim if dim >= 0 else size for dim, size in zip(shape, lengths, strict=True))


def read_signature(conf: Path, *, batched: bool = True) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Return the inputs and outputs that a model's prototxt declares.

    If `batched` is true, the batch axis that Paddle Serving's files leave out is added. Raises ConfigError
    with the file and the line or entry.
    """
    try:
        config = read_message(conf, GeneralModelConfig, MAX_BYTES)
    except FileNotFoundError as exc:
        raise ConfigError(f"{conf} can't be read: {exc.strerror}") from exc
    return parse_signature(config, conf, batched=batched)


def parse_signature(
    config: GeneralModelConfig, conf: Path, *, batched: bool = True
) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Return the inputs and outputs that a parsed prototxt declares, as `read_signature` does.

    `conf` is the file that is named in messages. Raises ConfigError that names the entry.
    """
    return (
        _parse_variables(config.feed_var, "feed", conf, batched),
        _parse_variables(config.fetch_var, "fetch", conf, batched),
    )


def signature_text(feeds: Sequence[Variable], fetches: Sequence[Variable]) -> str:
    """Return the prototxt of a model with these inputs and outputs.

    Raises ConfigError for a dtype that Paddle Serving does not support.
    """
    config = GeneralModelConfig()
    for feed in feeds:
        config.feed_var.add(feed_type=_dtype_number(feed, "feed"), **_shared_fields(feed))
    for fetch in fetches:
        config.fetch_var.add(fetch_type=_dtype_number(fetch, "fetch"), **_shared_fields(fetch))
    return format_message(config)


def _shared_fields(variable: Variable) -> dict[str, Any]:
    return {
        "name": variable.name,
        "alias_name": variable.alias,
        "is_lod_tensor": variable.is_lod,
        "shape": variable.shape,
    }


def _dtype_number(variable: Variable, kind: str) -> int:
    dtype = BY_NAME.get(variable.dtype)
    if dtype is None or dtype.paddle is None:
        names = ", ".join(dtype.name for dtype in BY_PADDLE.values())
        raise ConfigError(f"{kind} {variable.alias!r}: dtype {variable.dtype!r} is not one of {names}")
    return dtype.paddle


def _parse_variables(
    entries: Sequence[FeedVar | FetchVar], kind: str, conf: Path, batched: bool
) -> tuple[Variable, ...]:
    if not 0 < len(entries) <= MAX_VARIABLES:
        raise ConfigError(f"{conf}: {len(entries)} entries of {kind}_var, expected 1 to {MAX_VARIABLES}")
    variables = tuple(
        _parse_variable(entry, kind, f"{conf}: {kind}_var {i}", batched) for i, entry in enumerate(entries)
    )
    for attribute in ("name", "alias"):
        values: set[str] = set()
        for variable in variables:
            value: str = getattr(variable, attribute)
            if value in values:
                raise ConfigError(f"{conf}: two entries of {kind}_var have the {attribute} {value!r}")
            values.add(value)
    return variables


def _parse_variable(entry: FeedVar | FetchVar, kind: str, where: str, batched: bool) -> Variable:
    alias = entry.alias_name or entry.name
    if not alias:
        raise ConfigError(f"{where} has no name")
    type_field = f"{kind}_type"
    number = getattr(entry, type_field)
    if number not in BY_PADDLE:
        numbers = ", ".join(f"{n} {dtype.name}" for n, dtype in BY_PADDLE.items())
        raise ConfigError(f"{where} ({alias}): {type_field} {number} is not one of {numbers}")
    shape = tuple(entry.shape)
    if any(dim < -1 for dim in shape):
        raise ConfigError(f"{where} ({alias}): shape {list(shape)} is not a list of lengths, -1 for any")
    if len(shape) > MAX_RANK:
        raise ConfigError(f"{where} ({alias}): shape has {len(shape)} axes, at most {MAX_RANK} are served")
    if batched and shape[:1] != (-1,):  # Paddle Serving leaves the batch axis out or stores it as -1
        shape = (-1, *shape)
    return Variable(entry.name or alias, alias, BY_PADDLE[number].name, shape, entry.is_lod_tensor)
