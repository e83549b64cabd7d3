"""The demo's teacher: logistic regression on token 1-2-grams, fitted to the train headlines alone.

A BERT of random weights overfits 1,400 headlines. Trained on the teacher's answers, also to cut and mixed
headlines, BERT learns the evidence of single characters and pairs, and its attention adds to that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from convert.programs.program_feeds import Array

Gram = tuple[int, ...]

INVERSE_PENALTY = 10.0
STEPS = 150


class NgramTeacher:
    """Class probabilities of token ids, from the TF-IDF of their 1-grams and 2-grams."""

    def __init__(self, rows: Sequence[Array], classes: Array, class_count: int) -> None:
        """Fit on `rows` (token ids between [CLS] and [SEP], which are left aside) and their classes."""
        documents: Counter[Gram] = Counter()
        for row in rows:
            documents.update(set(_grams(row)))
        self._index = {gram: i for i, gram in enumerate(documents)}
        counts = np.fromiter(documents.values(), np.float64, len(documents))
        self._idf = 1 + np.log((1 + len(rows)) / (1 + counts))
        features = _Features([self._sparse(row) for row in rows], len(documents))
        self._weights = _fit_weights(features, np.eye(class_count, dtype=np.float32)[classes])

    def probabilities(self, rows: Sequence[Array]) -> Array:
        """float32 [N, classes]."""
        sparse = (self._sparse(row) for row in rows)
        return _softmax(np.stack([values @ self._weights[ids] for ids, values in sparse]))

    def _sparse(self, row: Array) -> tuple[Array, Array]:
        """Return indices and values of the n-grams known from the train rows; the values have norm 1."""
        counts = Counter(self._index[gram] for gram in _grams(row) if gram in self._index)
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        values = (1 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))) * self._idf[ids]
        return ids, (values / max(1e-12, float(np.linalg.norm(values)))).astype(np.float32)


class _Features:
    """A sparse matrix; each row and each column has at least one value."""

    def __init__(self, rows: Sequence[tuple[Array, Array]], columns: int) -> None:
        lengths = [len(ids) for ids, _ in rows]
        self.columns = columns
        self._ids = np.concatenate([ids for ids, _ in rows])
        self._values = np.concatenate([values for _, values in rows])[:, None]
        self._starts = np.cumsum([0, *lengths[:-1]])
        by_column = np.argsort(self._ids, kind="stable")
        self._rows_by_column = np.repeat(np.arange(len(rows)), lengths)[by_column]
        self._values_by_column = self._values[by_column]
        self._starts_of_columns = np.searchsorted(self._ids[by_column], np.arange(columns))

    def times(self, weights: Array) -> Array:
        """Multiply with [columns, n]: [rows, n]."""
        return np.add.reduceat(weights[self._ids] * self._values, self._starts)

    def transposed_times(self, errors: Array) -> Array:
        """Multiply the transposed matrix with [rows, n]: [columns, n]."""
        return np.add.reduceat(errors[self._rows_by_column] * self._values_by_column, self._starts_of_columns)


def _grams(row: Array) -> list[Gram]:
    tokens = row[1:-1].tolist()
    return [(token,) for token in tokens] + list(pairwise(tokens))


def _fit_weights(features: _Features, targets: Array) -> Array:
    """Fit weights [n-grams, classes] of the penalised maximum likelihood, by Nesterov's gradient steps.

    There is no bias: the classes are equally frequent.
    """
    # The largest row sum of the rows' products bounds the largest eigenvalue, and half of that the curvature
    # of a softmax.
    unit = np.ones((len(targets), 1), np.float32)
    largest = float(features.times(features.transposed_times(unit)).max())
    step = np.float32(1.0 / (1.0 / INVERSE_PENALTY + 0.5 * largest))
    weights = ahead = np.zeros((features.columns, targets.shape[1]), np.float32)
    for number in range(STEPS):
        errors = targets - _softmax(features.times(ahead))
        following = ahead + step * (features.transposed_times(errors) - ahead / INVERSE_PENALTY)
        ahead = following + np.float32(number / (number + 3)) * (following - weights)
        weights = following
    return weights


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
