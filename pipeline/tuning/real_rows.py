"""Real example inputs of a model in `sample.npz`: for timing, and to prove that faster settings answer alike.

The file has an array for each input tensor. `paddlewheel convert` writes the rows of `--sample` there. Random
ids prove nothing: on them a model has no opinion that a lower precision could change.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import numpy as np

from pipeline.engines.base import Predictor
from pipeline.engines.feeds import Array, input_examples
from pipeline.errors import ConfigError
from pipeline.models.serving_model import (
    EXAMPLE_FILE,
    SAMPLE_FILE,
    FeedPadding,
    Padding,
    ServingModel,
    read_example,
)
from pipeline.tuning.choice import USUAL_LENGTHS


def read_rows(sample: Path) -> dict[str, Array]:
    """Return the arrays in a sample.npz by input tensor, all with the same number of rows.

    Raises ConfigError for a missing file, and for unusable content.
    """
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


def count_unpadded(rows: Mapping[str, Array], padding: Padding | None) -> Array:
    """Return the sequence length of each row without padding: the length of its longest input.

    The length is 1 without padded inputs.

    padding: the rules of serving.yml.
    """
    lengths = np.ones(len(next(iter(rows.values()))), int)
    for name, rule in (padding.feeds if padding else {}).items():
        if name in rows:
            lengths = np.maximum(lengths, _filled(rows[name], rule))
    return lengths


def _filled(array: Array, rule: FeedPadding) -> Array:
    """Return each row's length without the padding at its end. rule: the padding rule of this input."""
    by_place = np.moveaxis(array != rule.value, rule.axis, -1)
    filled = by_place.reshape(len(array), -1, array.shape[rule.axis]).any(axis=1)
    lengths: Array = (filled * np.arange(1, filled.shape[1] + 1)).max(axis=1)
    return lengths


def feeds_to_time(
    predictor: Predictor, directory: Path, padding: Padding | None
) -> Callable[[int, int], dict[str, Array]] | None:
    """Return a function that makes the inputs of a timed run from the real rows in the model's folder.

    The function's arguments are batch size and sequence length. None if the folder has no rows, or if the
    rows do not fit the model. For a model without a batch dimension, the function returns the example in the
    folder.
    """
    if not all(feed.has_rows for feed in predictor.feeds) and (directory / EXAMPLE_FILE).is_file():
        example = read_example(directory, {}, predictor.feeds)
        return lambda count, length: dict(example)
    try:
        rows = read_rows(directory / SAMPLE_FILE)
    except ConfigError:
        return None
    if rows.keys() != {feed.alias for feed in predictor.feeds}:
        return None
    return partial(_of_size, rows, count_unpadded(rows, padding), padding)


def _of_size(
    rows: Mapping[str, Array], lengths: Array, padding: Padding | None, count: int, length: int
) -> dict[str, Array]:
    """Return model inputs of this batch size and sequence length, made from the real rows.

    Rows are repeated if there are too few. Padded inputs are cut or repeated to the length.
    """
    indices = np.arange(count) % len(lengths)
    places = np.arange(length) % max(1, lengths[indices].max())
    padded = padding.feeds if padding else {}
    return {
        name: array[indices].take(places, axis=padded[name].axis) if name in padded else array[indices]
        for name, array in rows.items()
    }


GENERATED_LENGTHS = (16, 24, 9, 40, 12, 64, 20, 30)  # of generated rows, in tokens
_MAX_SINGLE_ROWS = 256


def single_rows(model: ServingModel, directory: Path, padding: Padding | None) -> list[dict[str, Array]]:
    """Return model inputs of one row each, with different sequence lengths: real rows, or generated rows."""
    try:
        rows = read_rows(directory / SAMPLE_FILE)
    except ConfigError:
        rows = {}
    padded = padding.feeds if padding else {}
    if rows.keys() != {feed.alias for feed in model.feeds}:
        if example := model.read_example():
            return [{**input_examples(model, 1, USUAL_LENGTHS[0]), **example}]
        return [input_examples(model, 1, length) for length in GENERATED_LENGTHS if padded or length == 16]
    lengths = count_unpadded(rows, padding)[:_MAX_SINGLE_ROWS]
    return [_cut(rows, padded, np.array([at]), int(length)) for at, length in enumerate(lengths)]


MIN_ROWS = 256
MAX_ROWS = 512  # spread evenly over the file: more rows of a large model would take minutes
MIN_TOP1 = 0.995  # share of rows whose greatest class is the same
MIN_COSINE = 0.999  # of every row, where an output has no classes
_BATCH = 8
ONEDNN_TOLERANCE = 1e-4  # of the largest value of an output
_SIZES = 4  # even lengths, and as many odd lengths
_ROWS_OF_SIZE = 3


def require_agreement(
    fp32: Predictor, lower: Predictor, directory: Path, padding: Padding | None = None
) -> None:
    """Raise ConfigError, with the figure, unless a lower precision agrees with fp32 on the real rows.

    Outputs with class scores need the same best class, other outputs a high cosine similarity. Too few rows
    are an error, too. padding: the rules of serving.yml; each batch is padded to its longest row.
    """
    sample = directory / SAMPLE_FILE
    rows = read_rows(sample)
    count = len(next(iter(rows.values())))
    if count < MIN_ROWS:
        raise ConfigError(f"{sample} has {count} rows, and {MIN_ROWS} are the least to judge by")
    rows = {name: array[:: -(-count // MAX_ROWS)] for name, array in rows.items()}
    count = len(next(iter(rows.values())))
    same: dict[str, int] = {}
    min_cosines: dict[str, float] = {}
    for feeds in _batches(rows, padding):
        expected, outputs = fp32.run(feeds), lower.run(feeds)
        for name, array in expected.items():
            if _has_classes(array):
                equal = array.argmax(-1) == outputs[name].argmax(-1)
                same[name] = same.get(name, 0) + int(equal.sum())
            else:
                min_cosines[name] = min(min_cosines.get(name, 1.0), _cosine(array, outputs[name]))
    for name, number in same.items():
        if number < MIN_TOP1 * count:
            raise ConfigError(
                f"{name!r} has the same class as in fp32 in {number / count:.2%} of {count} rows"
            )
    for name, cosine in min_cosines.items():
        if not cosine >= MIN_COSINE:
            raise ConfigError(f"{name!r} is off in a row: cosine {cosine:.4f} to fp32")


def require_equal_answers(
    native: Predictor, onednn: Predictor, directory: Path, padding: Padding | None = None
) -> None:
    """Raise ConfigError unless oneDNN and Paddle's own kernels answer alike on real rows of several sizes.

    Rows of one size are an error, too. One session runs even sizes first, then odd sizes, because an operator
    may wrongly reuse the plan of the first run.
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
    """Yield model inputs of several sequence lengths, or of several batch sizes if lengths are fixed."""
    padded = padding.feeds if padding else {}
    lengths = count_unpadded(rows, padding)
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
    """Return the chosen rows as model inputs, cut to a sequence length. chosen: indices of rows.

    padded: the padding rule of each padded input.
    """
    return {
        name: array[chosen].take(range(length), axis=padded[name].axis) if name in padded else array[chosen]
        for name, array in rows.items()
    }


def _spread(lengths: Array) -> list[int]:
    """Return a few evenly spaced ones of these sorted lengths, the greatest first."""
    places = np.unique(np.linspace(0, len(lengths) - 1, min(len(lengths), _SIZES)).astype(int))
    return [int(length) for length in lengths[places][::-1]]


def _batches(rows: dict[str, Array], padding: Padding | None) -> Iterator[dict[str, Array]]:
    """Yield the rows as batches of model inputs, short rows first, each cut to its longest row."""
    padded = padding.feeds if padding else {}
    lengths = count_unpadded(rows, padding)
    count = len(lengths)
    order = np.argsort(lengths, kind="stable")
    for start in range(0, count, _BATCH):
        batch = order[start : start + _BATCH]
        yield _cut(rows, padded, batch, int(lengths[batch].max()))


def _has_classes(array: Array) -> bool:
    """Return whether an output looks like class scores: for each input row, one row of several floats."""
    return array.ndim == 2 and array.shape[1] > 1 and array.dtype.kind == "f"


def _cosine(expected: Array, actual: Array) -> float:
    """Return the smallest cosine similarity between corresponding rows of two outputs."""
    a = expected.reshape(len(expected), -1).astype("float64")
    b = actual.reshape(len(actual), -1).astype("float64")
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(np.min((a * b).sum(axis=1) / np.maximum(norms, 1e-30)))
