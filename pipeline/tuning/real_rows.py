"""The real rows that stand beside a model in `sample.npz`, an array for each feed.

`paddlewheel convert` leaves the rows of `--sample` there, and the demo its headlines.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SAMPLE_FILE, FeedPadding, Padding


def read_rows(sample: Path) -> dict[str, Array]:
    """The arrays by feed, all with as many rows. Raises ConfigError."""
    if not sample.is_file():
        raise ConfigError(
            f"{SAMPLE_FILE} is not beside the model: put real rows there, an array for each feed"
        )
    try:
        with sample.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            rows = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{sample} can't be read: {exc}") from exc
    counts = {array.shape[:1] for array in rows.values()}
    if len(counts) != 1 or counts <= {(), (0,)}:
        raise ConfigError(f"{sample} has no rows, or not as many for each feed")
    return rows


def own_lengths(rows: Mapping[str, Array], padding: Padding | None) -> Array:
    """The length of each row up to its last element that is no padding, of the longest feed; 1 without any.

    padding: what the model declares of its feeds.
    """
    lengths = np.ones(len(next(iter(rows.values()))), int)
    for name, rule in (padding.feeds if padding else {}).items():
        if name in rows:
            lengths = np.maximum(lengths, _filled(rows[name], rule))
    return lengths


def _filled(array: Array, rule: FeedPadding) -> Array:
    by_place = np.moveaxis(array != rule.value, rule.axis, -1)
    filled = by_place.reshape(len(array), -1, array.shape[rule.axis]).any(axis=1)
    lengths: Array = (filled * np.arange(1, filled.shape[1] + 1)).max(axis=1)
    return lengths


def feeds_to_time(
    predictor: Predictor, directory: Path, padding: Padding | None
) -> Callable[[int, int], dict[str, Array]] | None:
    """What makes feeds of so many rows of a length, of the real rows in the model's folder; None where it has
    none that suit it."""
    try:
        rows = read_rows(directory / SAMPLE_FILE)
    except ConfigError:
        return None
    if rows.keys() != {feed.alias for feed in predictor.feeds}:
        return None
    return partial(_of_size, rows, own_lengths(rows, padding), padding)


def _of_size(
    rows: Mapping[str, Array], lengths: Array, padding: Padding | None, count: int, length: int
) -> dict[str, Array]:
    """The first rows, and again from the first where there are fewer; what is padded is cut, or repeated."""
    taken = np.arange(count) % len(lengths)
    places = np.arange(length) % max(1, lengths[taken].max())
    padded = padding.feeds if padding else {}
    return {
        name: array[taken].take(places, axis=padded[name].axis) if name in padded else array[taken]
        for name, array in rows.items()
    }
