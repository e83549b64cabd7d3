"""Whether a model in a lower precision answers as it does in fp32, on real rows that stand beside it.

They stand in `sample.npz`, an array for each feed: `python -m convert` leaves the rows of `--sample` there,
and the demo its headlines. Random ids never count: on them a model has no opinion that a lower precision
could change.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SAMPLE_FILE, FeedPadding, Padding

LEAST_ROWS = 256
MOST_ROWS = 512  # of those that are there, spread evenly: more of a large model would take minutes
LEAST_TOP1 = 0.995  # share of rows whose greatest class is the same
LEAST_COSINE = 0.999  # of every row, where an output has no classes
_BATCH = 8


def require_agreement(
    fp32: Predictor, lower: Predictor, directory: Path, padding: Padding | None = None
) -> None:
    """Raises ConfigError, with the figure, for answers that differ too much and for too few real rows.

    padding: what the model declares of its feeds; the rows are run without more of it than they need.
    """
    sample = directory / SAMPLE_FILE
    rows = _read(sample)
    count = len(next(iter(rows.values())))
    if count < LEAST_ROWS:
        raise ConfigError(f"{sample} has {count} rows, and {LEAST_ROWS} are the least to judge by")
    rows = {name: array[:: -(-count // MOST_ROWS)] for name, array in rows.items()}
    count = len(next(iter(rows.values())))
    same: dict[str, int] = {}
    least: dict[str, float] = {}
    for feeds in _batches(rows, padding):
        expected, given = fp32.run(feeds), lower.run(feeds)
        for name, array in expected.items():
            if _has_classes(array):
                equal = array.argmax(-1) == given[name].argmax(-1)
                same[name] = same.get(name, 0) + int(equal.sum())
            else:
                least[name] = min(least.get(name, 1.0), _cosine(array, given[name]))
    for name, number in same.items():
        if number < LEAST_TOP1 * count:
            raise ConfigError(
                f"{name!r} has the same class as in fp32 in {number / count:.2%} of {count} rows"
            )
    for name, cosine in least.items():
        if not cosine >= LEAST_COSINE:
            raise ConfigError(f"{name!r} is off in a row: cosine {cosine:.4f} to fp32")


def _read(sample: Path) -> dict[str, Array]:
    """The arrays by feed, all with as many rows. Raises ConfigError."""
    if not sample.is_file():
        raise ConfigError(
            f"{SAMPLE_FILE} is not beside the model: put {LEAST_ROWS} real rows there, an array for each feed"
        )
    try:
        with sample.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            rows = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as exc:
        raise ConfigError(f"{sample} can't be read: {exc}") from exc
    if (
        not rows
        or len({array.shape[:1] for array in rows.values()}) != 1
        or not next(iter(rows.values())).ndim
    ):
        raise ConfigError(f"{sample} has no rows, or not as many for each feed")
    return rows


def _batches(rows: dict[str, Array], padding: Padding | None) -> Iterator[dict[str, Array]]:
    """The rows, some at a time and short ones first, each batch as long as its longest row."""
    padded = {name: rule for name, rule in (padding.feeds if padding else {}).items() if name in rows}
    count = len(next(iter(rows.values())))
    lengths = np.ones(count, int)
    for name, rule in padded.items():
        lengths = np.maximum(lengths, _own_lengths(rows[name], rule))
    order = np.argsort(lengths, kind="stable")
    for start in range(0, count, _BATCH):
        batch = order[start : start + _BATCH]
        longest = range(int(lengths[batch].max()))
        yield {
            name: array[batch].take(longest, axis=padded[name].axis) if name in padded else array[batch]
            for name, array in rows.items()
        }


def _own_lengths(array: Array, rule: FeedPadding) -> Array:
    """The length of each row up to its last element that is no padding."""
    by_place = np.moveaxis(array != rule.value, rule.axis, -1)
    filled = by_place.reshape(len(array), -1, array.shape[rule.axis]).any(axis=1)
    lengths: Array = (filled * np.arange(1, filled.shape[1] + 1)).max(axis=1)
    return lengths


def _has_classes(array: Array) -> bool:
    """Whether an output has a row of scores for each row fed."""
    return array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"


def _cosine(expected: Array, given: Array) -> float:
    """The least cosine of a row and its like."""
    a = expected.reshape(len(expected), -1).astype("float64")
    b = given.reshape(len(given), -1).astype("float64")
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min((a * b).sum(axis=1) / np.maximum(norms, 1e-30)))
