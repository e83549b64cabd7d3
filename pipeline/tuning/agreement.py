"""Whether a model in a lower precision answers as it does in fp32, on real rows that stand beside it.

They stand in `sample.npz`, an array for each feed; `python -m convert demo` leaves its headlines there.
Random ids never count: on them a model has no opinion that a lower precision could change.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array
from pipeline.errors import ConfigError
from pipeline.models.serving_model import SAMPLE_FILE

LEAST_ROWS = 256
LEAST_TOP1 = 0.995  # share of rows whose greatest class is the same
LEAST_COSINE = 0.999  # of every row, where an output has no classes
_BATCH = 8


def require_agreement(fp32: Predictor, lower: Predictor, directory: Path) -> None:
    """Raises ConfigError, with the figure, for answers that differ too much and for too few real rows."""
    sample = directory / SAMPLE_FILE
    rows = _read(sample)
    count = len(next(iter(rows.values())))
    if count < LEAST_ROWS:
        raise ConfigError(f"{sample} has {count} rows, and {LEAST_ROWS} are the least to judge by")
    same: dict[str, int] = {}
    least: dict[str, float] = {}
    for feeds in _batches(rows):
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


def _batches(rows: dict[str, Array]) -> Iterator[dict[str, Array]]:
    count = len(next(iter(rows.values())))
    for start in range(0, count, _BATCH):
        yield {name: array[start : start + _BATCH] for name, array in rows.items()}


def _has_classes(array: Array) -> bool:
    """Whether an output has a row of scores for each row fed."""
    return array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"


def _cosine(expected: Array, given: Array) -> float:
    """The least cosine of a row and its like."""
    a = expected.reshape(len(expected), -1).astype("float64")
    b = given.reshape(len(given), -1).astype("float64")
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min((a * b).sum(axis=1) / np.maximum(norms, 1e-30)))
