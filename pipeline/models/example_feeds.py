"""Example feeds of a model: a request that the model answers, for its warm-up and for example requests."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pipeline.errors import ConfigError
from pipeline.models.signature import Variable

Array = np.ndarray[Any, np.dtype[Any]]

EXAMPLE_FILE = "example.npz"  # beside the model, an array for each feed
WARMUP_SHAPES = "warmup_shapes"  # a key of serving.yml, and an attribute of an Op
MAX_ELEMENTS = 1 << 26  # of a declared shape


def read_example(
    directory: Path, additions: Mapping[str, Any], feeds: Sequence[Variable]
) -> dict[str, Array]:
    """Return the arrays of example.npz, or else ones in the shapes of serving.yml, by alias.

    Empty if the model has neither. Raises ConfigError for a feed that the model lacks, or of another shape.
    """
    file = directory / EXAMPLE_FILE
    if not file.is_file():
        return create_ones(additions.get(WARMUP_SHAPES) or {}, feeds, f"{directory}: {WARMUP_SHAPES}")
    try:
        with np.load(file, allow_pickle=False) as arrays:
            example = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{file} can't be read: {exc}") from exc
    by_alias = {feed.alias: feed for feed in feeds}
    for alias, array in example.items():
        _check_shape(alias, array.shape, by_alias, str(file))
    return {
        alias: array.astype(object if by_alias[alias].dtype == "string" else by_alias[alias].numpy_dtype)
        for alias, array in example.items()
    }


def create_ones(
    shapes: Mapping[str, Sequence[int]], feeds: Sequence[Variable], where: str
) -> dict[str, Array]:
    """Return ones in these shapes, by alias. Raises ConfigError as `read_example`."""
    if not isinstance(shapes, Mapping):
        raise ConfigError(f"{where} is not a mapping of feeds to shapes, such as {{x: [1, 64]}}")
    by_alias = {feed.alias: feed for feed in feeds}
    ones = {}
    for alias, shape in shapes.items():
        _check_shape(alias, shape, by_alias, where)
        feed = by_alias[alias]
        ones[alias] = np.full(tuple(shape), "1" if feed.dtype == "string" else 1, feed.numpy_dtype)
    return ones


def _check_shape(alias: str, shape: Any, feeds: Mapping[str, Variable], where: str) -> None:
    feed = feeds.get(alias)
    if feed is None:
        raise ConfigError(f"{where}: the model has no feed {alias!r}, only {', '.join(feeds)}")
    is_shape = isinstance(shape, Sequence) and all(type(length) is int and length > 0 for length in shape)
    if not is_shape or np.prod(shape, dtype=object) > MAX_ELEMENTS:
        raise ConfigError(f"{where}.{alias} is {shape!r}, expected lengths from 1 up, such as [1, 64]")
    fits = len(shape) == len(feed.shape) and all(
        declared in (-1, length) for declared, length in zip(feed.shape, shape, strict=True)
    )
    if not fits:
        raise ConfigError(f"{where}.{alias} is {list(shape)}, but the feed takes {list(feed.shape)}")
