"""Counts the character errors of texts, such as transcripts of speech."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class CharacterErrors(NamedTuple):
    """Minimum number of changes that turn the predicted texts into the expected texts.

    Spaces do not count.
    """

    characters: int = 0  # of the expected texts
    substitutions: int = 0
    deletions: int = 0  # characters that the prediction lacks
    insertions: int = 0  # characters that the prediction has in addition

    @property
    def errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """Errors per expected character. Without expected characters, it is the number of insertions."""
        return self.errors / max(1, self.characters)


def count_errors(expected: str, predicted: str) -> CharacterErrors:
    """Return the character errors of a predicted text."""
    characters, answer = "".join(expected.split()), "".join(predicted.split())
    # Row by row of the edit distance: (errors, substitutions, deletions, insertions) for each prefix.
    previous = [(column, 0, 0, column) for column in range(len(answer) + 1)]
    for row, character in enumerate(characters, 1):
        current = [(row, 0, row, 0)]
        for column, other in enumerate(answer, 1):
            errors, substitutions, deletions, insertions = previous[column - 1]
            changed = character != other
            matched = (errors + changed, substitutions + changed, deletions, insertions)
            errors, substitutions, deletions, insertions = previous[column]
            deleted = (errors + 1, substitutions, deletions + 1, insertions)
            errors, substitutions, deletions, insertions = current[-1]
            inserted = (errors + 1, substitutions, deletions, insertions + 1)
            current.append(min(matched, deleted, inserted, key=lambda edits: edits[0]))
        previous = current
    return CharacterErrors(len(characters), *previous[-1][1:])


def sum_errors(pairs: Iterable[tuple[str, str]]) -> CharacterErrors:
    """Return the sum of the character errors of (expected, predicted) texts."""
    counts = [count_errors(*pair) for pair in pairs]
    return CharacterErrors(*(sum(column) for column in zip(*counts, strict=True)))
