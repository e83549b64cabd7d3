"""Inputs of a model: the notation `input_ids:int64[-1,-1]`, random arrays, and arrays of .npz files."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from pipeline.errors import ConversionError
from pipeline.models.signature import sized

# Some of those in pipeline/models/tensor_spec.py, in the order in which a refusal names them.
DTYPES = ("int64", "int32", "int16", "int8", "uint8", "bool", "float64", "float32", "float16", "bfloat16")
EXAMPLE = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"

_PART = re.compile(r"(?P<name>[^:\[\]]*):(?P<dtype>[^:\[\]]*)\[(?P<shape>[^\[\]]*)\]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@dataclass(frozen=True)
class ProgramTensor:
    """The name, dtype and shape of an input or output of an exported model; a dynamic axis is -1.

    The inputs and outputs of a serving model are `Variable` objects, which have an alias and more fields.
    """

    name: str
    dtype: str  # as in pipeline/models/tensor_spec.py
    shape: tuple[int, ...]  # -1 is an axis that varies

    def __str__(self) -> str:
        return f"{self.name}:{self.dtype}[{','.join(map(str, self.shape))}]"


def parse_input_spec(text: str) -> tuple[ProgramTensor, ...]:
    """Parse the value of --input-spec, `name:dtype[dim,dim];...`, into one tensor description for each input.

    Raises ConversionError that quotes the invalid part.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise ConversionError(f"--input-spec is empty; write it like '{EXAMPLE}'.")
    specs = tuple(_parse_part(part) for part in parts)
    names = [spec.name for spec in specs]
    for name in names:
        if names.count(name) > 1:
            raise ConversionError(f"--input-spec names {name!r} twice; each input has its own name.")
    return specs


def _parse_part(part: str) -> ProgramTensor:
    match = _PART.fullmatch(part)
    if match is None:
        raise ConversionError(f"--input-spec: {part!r} is not name:dtype[dims]; write it like '{EXAMPLE}'.")
    name, dtype = match["name"].strip(), match["dtype"].strip()
    if not _NAME.fullmatch(name):
        raise ConversionError(f"--input-spec: {name!r} in {part!r} is not a name of letters, digits and _.")
    if dtype not in DTYPES:
        raise ConversionError(f"--input-spec: dtype {dtype!r} in {part!r} is not one of {', '.join(DTYPES)}.")
    return ProgramTensor(name, dtype, _parse_shape(match["shape"], part))


def _parse_shape(text: str, part: str) -> tuple[int, ...]:
    dims = []
    for dim in text.split(",") if text.strip() else ():
        if not re.fullmatch(r"-1|[1-9][0-9]{0,8}", dim.strip()):
            raise ConversionError(
                f"--input-spec: {dim.strip()!r} in {part!r} is not a dimension; use -1 where it varies."
            )
        dims.append(int(dim))
    return tuple(dims)


Array = npt.NDArray[Any]
Feeds = dict[str, Array]

# The end of the message for a model that can't run its inputs.
OTHER_INPUTS = "try other --lengths or inputs that suit the model (--sample FILE)"

BATCH_SIZES = (1, 2, 5)
LENGTHS = (16, 33, 5)  # even first: operators may keep a plan that is wrong for odd lengths
BATCHES, SHAPE_LENGTHS = (1, 8), (16, 64, 128)  # what a service is likely to run


def sample_batches(
    feeds: Sequence[ProgramTensor], id_limits: Mapping[str, int], lengths: Sequence[int] = LENGTHS
) -> list[Feeds]:
    """Generate random input batches for a model, one for each pair of a length and a batch size of 1, 2 or 5.

    id_limits: number of token ids, by input name. Dynamic axes get the length. Every call returns the same
    batches.
    """
    rng = np.random.default_rng(0)
    return [sample_feeds(feeds, id_limits, rng, size, n) for n in lengths for size in BATCH_SIZES]


def sample_rows(
    feeds: Sequence[ProgramTensor], id_limits: Mapping[str, int], lengths: Sequence[int]
) -> list[Feeds]:
    """Generate random input batches of one row: each length twice, in order and in reverse.

    id_limits: number of token ids, by input name. Every call returns the same batches.
    """
    rng = np.random.default_rng(1)
    return [sample_feeds(feeds, id_limits, rng, 1, n) for n in (*lengths, *reversed(lengths))]


def sample_feeds(
    feeds: Sequence[ProgramTensor],
    id_limits: Mapping[str, int],
    rng: np.random.Generator,
    batch: int,
    length: int,
) -> Feeds:
    """Generate one random input batch, an array for each input by name.

    A dynamic first axis gets `batch`, other dynamic axes get `length`. Integer inputs are token ids below
    their limit in `id_limits`. Integer inputs without a limit are masks: ones, then zeros.
    """
    arrays = {}
    for feed in feeds:
        shape = sized(feed.shape, batch, length)
        arrays[feed.name] = _draw_feed_values(feed, shape, id_limits.get(feed.name, 0), rng)
    return arrays


def stored_feeds(path: Path) -> Feeds:
    """Read the input arrays of an .npz file, by name.

    Raises ConversionError if the file can't be read, needs pickle, or has an empty array.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as exc:
        raise ConversionError(f"{path} is no .npz file of plain arrays ({exc}).") from exc
    for name, array in arrays.items():
        if array.size == 0:
            raise ConversionError(f"{path}: {name} has shape {list(array.shape)}; give at least one row.")
    return arrays


def _draw_feed_values(
    feed: ProgramTensor, shape: tuple[int, ...], limit: int, rng: np.random.Generator
) -> Array:
    if feed.dtype == "bfloat16":
        bits = rng.standard_normal(shape).astype(np.float32).view(np.uint32) >> 16
        return bits.astype(np.uint16)
    if feed.dtype == "string":
        return rng.integers(0, 1000, shape).astype(str).astype(object)
    if feed.dtype.startswith("float"):
        return rng.standard_normal(shape).astype(feed.dtype)
    if limit:
        return rng.integers(0, limit, shape).astype(feed.dtype)
    return _masks(shape).astype(feed.dtype)


def _masks(shape: tuple[int, ...]) -> Array:
    """Generate attention masks for a shape of (rows, length, ...): ones, at least one, then zeros.

    Rows differ in their number of ones.
    """
    if len(shape) < 2:
        return np.ones(shape, np.int64)
    length = shape[1]
    mask_lengths = np.array([max(1, length - row * length // 4 % length) for row in range(shape[0])])
    mask = np.arange(length)[None, :] < mask_lengths[:, None]
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - 2)), shape)
