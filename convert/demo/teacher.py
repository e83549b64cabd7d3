"""The demo's teacher: logistic regression on token 1-2-grams, fitted to the train headlines alone.

A BERT of random weights overfits 1,400 headlines; answering as the teacher does, on cut and mixed ones too,
it learns what single characters and pairs tell, and its attention adds to that.
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
        features = np.stack([self._dense(row) for row in rows])
        # As many unknowns as headlines, not as n-grams: the optimum is a combination of the rows.
        # There is no bias, for the classes are equally frequent.
        dual = _fit(features @ features.T, np.eye(class_count, dtype=np.float32)[classes])
        self._weights = features.T @ dual

    def probabilities(self, rows: Sequence[Array]) -> Array:
        """float32 [N, classes]."""
        sparse = (self._sparse(row) for row in rows)
        return _softmax(np.stack([values @ self._weights[ids] for ids, values in sparse]))

    def _sparse(self, row: Array) -> tuple[Array, Array]:
        """Indices and values of the n-grams that the train rows have; the values have length 1 together."""
        counts = Counter(self._index[gram] for gram in _grams(row) if gram in self._index)
        ids = np.fromiter(counts.keys(), np.int64, len(counts))
        values = (1 + np.log(np.fromiter(counts.values(), np.float64, len(counts)))) * self._idf[ids]
        return ids, (values / max(1e-12, float(np.linalg.norm(values)))).astype(np.float32)

    def _dense(self, row: Array) -> Array:
        dense = np.zeros(len(self._index), np.float32)
        ids, values = self._sparse(row)
        dense[ids] = values
        return dense


def _grams(row: Array) -> list[Gram]:
    tokens = row[1:-1].tolist()
    return [(token,) for token in tokens] + list(pairwise(tokens))


def _fit(kernel: Array, targets: Array) -> Array:
    """Dual coefficients [N, classes] of the penalised maximum likelihood, by Nesterov's gradient steps."""
    # The largest row sum bounds the largest eigenvalue, and half of that the curvature of a softmax.
    step = 1.0 / (1.0 / INVERSE_PENALTY + 0.5 * float(kernel.sum(axis=1).max()))
    dual = np.zeros_like(targets)
    ahead = dual
    for number in range(STEPS):
        gradient = targets - _softmax(kernel @ ahead) - ahead / INVERSE_PENALTY
        following = ahead + step * gradient
        ahead = following + number / (number + 3) * (following - dual)
        dual = following
    return dual


def _softmax(logits: Array) -> Array:
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    probabilities: Array = shifted / shifted.sum(axis=1, keepdims=True)
    return probabilities
