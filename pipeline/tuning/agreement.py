"""Whether a faster way to run a model answers as the plain way, on the real rows of its `sample.npz`.

Random ids never count: on them a model has no opinion that a lower precision could change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SAMPLE_FILE, FeedPadding, Padding
from pipeline.tuning.real_rows import own_lengths, read_rows

LEAST_ROWS = 256
MOST_ROWS = 512  # of those that are there, spread evenly: more of a large model would take minutes
LEAST_TOP1 = 0.995  # share of rows whose greatest class is the same
LEAST_COSINE = 0.999  # of every row, where an output has no classes
_BATCH = 8
ONEDNN_TOLERANCE = 1e-4  # of the largest value of an output
_SIZES = 4  # even ones, and as many odd ones
_ROWS_OF_SIZE = 3


def require_agreement(
    fp32: Predictor, lower: Predictor, directory: Path, padding: Padding | None = None
) -> None:
    """Raises ConfigError, with the figure, for answers that differ too much and for too few real rows.

    padding: what the model declares of its feeds; the rows are run without more of it than they need.
    """
    sample = directory / SAMPLE_FILE
    rows = read_rows(sample)
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


def require_equal_answers(
    native: Predictor, onednn: Predictor, directory: Path, padding: Padding | None = None
) -> None:
    """Raise ConfigError unless oneDNN answers as the program itself on real rows of two sizes.

    An operator may keep what suited the first run: even sizes go first, then odd ones, in one session.
    """
    sample = directory / SAMPLE_FILE
    sizes = set()
    for feeds in _of_several_sizes(read_rows(sample), padding, native):
        sizes.add(tuple(array.shape for array in feeds.values()))
        expected, answers = native.run(feeds), onednn.run(feeds)
        for name, array in expected.items():
            if array.dtype.kind != "f":
                continue
            difference = np.abs(array - answers[name]).max(initial=0.0)
            if not difference <= ONEDNN_TOLERANCE * np.abs(array).max(initial=0.0):
                shapes = ", ".join(f"{alias} {list(fed.shape)}" for alias, fed in feeds.items())
                raise ConfigError(f"oneDNN answers {name!r} otherwise, {difference:.2g} off, for {shapes}")
    if len(sizes) < 2:
        raise ConfigError(f"{sample} has rows of a single size, and oneDNN is proved on two")


def _of_several_sizes(
    rows: dict[str, Array], padding: Padding | None, predictor: Predictor
) -> Iterator[dict[str, Array]]:
    """Yield some rows of each of several lengths, or in several numbers where the model has a single size."""
    padded = padding.feeds if padding else {}
    lengths = own_lengths(rows, padding)
    if not padded:
        varies = any(side < 0 for feed in predictor.feeds for side in feed.shape[1:])
        for count in (2,) if varies else (2, 1, 3):
            yield {name: array[:count] for name, array in rows.items()}
        return
    distinct = np.unique(lengths)
    even, odd = (_spread(distinct[distinct % 2 == rest]) for rest in (0, 1))
    for length in (*even, *odd):
        chosen = np.flatnonzero(lengths == length)[:_ROWS_OF_SIZE]
        yield _cut(rows, padded, chosen, length)


def _cut(
    rows: dict[str, Array], padded: Mapping[str, FeedPadding], chosen: Array, length: int
) -> dict[str, Array]:
    """Return the chosen rows, without padding beyond the length."""
    return {
        name: array[chosen].take(range(length), axis=padded[name].axis) if name in padded else array[chosen]
        for name, array in rows.items()
    }


def _spread(lengths: Array) -> list[int]:
    """Return some of the lengths, the greatest first."""
    places = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), _SIZES)).astype(int))
    return [int(length) for length in lengths[places][::-1]]


def _batches(rows: dict[str, Array], padding: Padding | None) -> Iterator[dict[str, Array]]:
    """The rows, some at a time and short ones first, each batch as long as its longest row."""
    padded = padding.feeds if padding else {}
    lengths = own_lengths(rows, padding)
    count = len(lengths)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, count, _BATCH):
        batch = order[start : start + _BATCH]
        yield _cut(rows, padded, batch, int(lengths[batch].max()))


def _has_classes(array: Array) -> bool:
    """Whether an output has a row of scores for each row fed."""
    return array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"


def _cosine(expected: Array, given: Array) -> float:
    """The least cosine of a row and its like."""
    a = expected.reshape(len(expected), -1).astype("float64")
    b = given.reshape(len(given), -1).astype("float64")
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min((a * b).sum(axis=1) / np.maximum(norms, 1e-30)))
