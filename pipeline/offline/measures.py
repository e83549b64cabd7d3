"""How good answers are: accuracy, precision, recall and F1 by class. Pure: of labels, or sets of things."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import NamedTuple


class ClassFigures(NamedTuple):
    """Of one class: how often it was meant (support), told, and both."""

    name: str
    support: int
    told: int
    right: int

    @property
    def precision(self) -> float:
        return self.right / self.told if self.told else 0.0

    @property
    def recall(self) -> float:
        return self.right / self.support if self.support else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 where nothing is right."""
        return 2 * self.right / (self.support + self.told) if self.support + self.told else 0.0


def by_class(
    pairs: Iterable[tuple[Collection[tuple[Hashable, str]], Collection[tuple[Hashable, str]]]],
) -> list[ClassFigures]:
    """Figures of each class, over pairs of what is meant and what is told.

    Either is a set of (thing, class), and right is what is in both: the thing is a place in the text of an
    entity, and nothing where a row has classes as a whole.
    """
    support, told, right = Counter[str](), Counter[str](), Counter[str]()
    for meant_here, told_here in pairs:
        support.update(name for _, name in meant_here)
        told.update(name for _, name in told_here)
        right.update(name for _, name in set(meant_here) & set(told_here))
    return [ClassFigures(name, support[name], told[name], right[name]) for name in sorted(support | told)]


def overall(figures: Sequence[ClassFigures]) -> ClassFigures:
    """All classes as one: what is called micro average."""
    sums = (sum(column) for column in zip(*(one[1:] for one in figures), strict=True))
    return ClassFigures("all", *sums) if figures else ClassFigures("all", 0, 0, 0)


def macro_f1(figures: Sequence[ClassFigures]) -> float:
    """The mean of the classes' F1, each counted alike."""
    return sum(one.f1 for one in figures) / len(figures) if figures else 0.0


def percentile(ordered: Sequence[float], percent: float) -> float:
    """Of values in ascending order, the one that so many percent do not exceed."""
    return ordered[min(len(ordered) - 1, max(0, -int(-len(ordered) * percent // 100) - 1))]
