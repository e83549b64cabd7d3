"""Inputs of a program: random inputs, or arrays of a file."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from convert.programs.input_spec import ProgramTensor
from pipeline.errors import ConversionError
from pipeline.models.signature import sized

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
    """Generate a batch for each length and batch size; the same on every call."""
    rng = np.random.default_rng(0)
    return [sample_feeds(feeds, id_limits, rng, size, n) for n in lengths for size in BATCH_SIZES]


def sample_rows(
    feeds: Sequence[ProgramTensor], id_limits: Mapping[str, int], lengths: Sequence[int]
) -> list[Feeds]:
    """Generate batches of one: each length twice, in order and in reverse; the same on every call."""
    rng = np.random.default_rng(1)
    return [sample_feeds(feeds, id_limits, rng, 1, n) for n in (*lengths, *reversed(lengths))]


def sample_feeds(
    feeds: Sequence[ProgramTensor],
    id_limits: Mapping[str, int],
    rng: np.random.Generator,
    batch: int,
    length: int,
) -> Feeds:
    """Generate one batch. Open axes get `length`, an open batch axis gets `batch`.

    Integers are ids below the limit of their embedding, or else masks: ones, then zeros.
    """
    arrays = {}
    for feed in feeds:
        shape = sized(feed.shape, batch, length)
        arrays[feed.name] = _values(feed, shape, id_limits.get(feed.name, 0), rng)
    return arrays


def stored_feeds(path: Path) -> Feeds:
    """Read the arrays of an .npz file. Raises ConversionError."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError, TypeError, zipfile.BadZipFile) as exc:
        raise ConversionError(f"{path} is no .npz file of plain arrays ({exc}).") from exc
    for name, array in arrays.items():
        if array.size == 0:
            raise ConversionError(f"{path}: {name} has shape {list(array.shape)}; give at least one row.")
    return arrays


def _values(feed: ProgramTensor, shape: tuple[int, ...], limit: int, rng: np.random.Generator) -> Array:
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
    """Generate masks: ones, at least one, then zeros, of a different length in each row."""
    if len(shape) < 2:
        return np.ones(shape, np.int64)
    length = shape[1]
    mask_lengths = np.array([max(1, length - row * length // 4 % length) for row in range(shape[0])])
    mask = np.arange(length)[None, :] < mask_lengths[:, None]
    return np.broadcast_to(mask.reshape(mask.shape + (1,) * (len(shape) - 2)), shape)
