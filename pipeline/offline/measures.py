"""Precision, recall and F1 by class, over labels or sets of entities."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple


class ClassFigures(NamedTuple):
    """Counts of a class."""

    name: str
    support: int  # occurrences in the labels
    predicted: int  # occurrences in the answers
    right: int  # occurrences in both

    @property
    def precision(self) -> float:
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.support if self.support else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 without any right answer."""
        return 2 * self.right / (self.support + self.predicted) if self.support + self.predicted else 0.0


def by_class(
    pairs: Iterable[tuple[Collection[tuple[Hashable, str]], Collection[tuple[Hashable, str]]]],
) -> list[ClassFigures]:
    """Return the counts of each class over pairs of (labels, answers).

    Labels and answers are sets of (thing, class). The thing is the place of an entity in the text. It is None
    if the classes belong to the whole row.
    """
    support, predicted, right = Counter[str](), Counter[str](), Counter[str]()
    for row_labels, row_predictions in pairs:
        support.update(name for _, name in row_labels)
        predicted.update(name for _, name in row_predictions)
        right.update(name for _, name in set(row_labels) & set(row_predictions))
    return [
        ClassFigures(name, support[name], predicted[name], right[name])
        for name in sorted(support | predicted)
    ]


def overall(figures: Sequence[ClassFigures]) -> ClassFigures:
    """Return the sums over all classes, for the micro average."""
    sums = (sum(column) for column in zip(*(row[1:] for row in figures), strict=True))
    return ClassFigures("all", *sums) if figures else ClassFigures("all", 0, 0, 0)


def macro_f1(figures: Sequence[ClassFigures]) -> float:
    """Return the unweighted mean of the classes' F1."""
    return sum(row.f1 for row in figures) / len(figures) if figures else 0.0
