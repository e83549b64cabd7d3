"""Questions that nobody else asks at any time, and what their answers must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tests.chaos.answer_key import TOLERANCE, Row

POISON = "!POISON!"  # a worker of `tests.chaos.service` dies of a text with this mark
TEXTS_EACH = 2


class Answer(NamedTuple):
    """What an endpoint gave: a label and a confidence for each text."""

    labels: Sequence[str]
    confidences: Sequence[float]


class Question(NamedTuple):
    """texts: of one request. expected: what they are answered with."""

    texts: Sequence[str]
    expected: Answer

    def answered_by(self, answer: Answer) -> bool:
        pairs = zip(answer.confidences, self.expected.confidences, strict=False)
        return (
            list(answer.labels) == list(self.expected.labels)
            and len(answer.confidences) == len(self.expected.confidences)
            and all(abs(given - due) <= TOLERANCE for given, due in pairs)
        )


class Questions:
    """Pairs of texts from the answer key, none of which comes twice."""

    def __init__(self, key: Sequence[Row]) -> None:
        self._key = key
        self._asked = 0

    def next(self) -> Question:
        """Raises OverflowError when all pairs are used up."""
        size = len(self._key)
        step, first = divmod(self._asked, size)
        if step >= size:
            raise OverflowError(f"{size} texts make no more than {size * size} questions")
        self._asked += 1
        rows = [self._key[first], self._key[(first + step) % size]]
        labels, confidences = [row[1] for row in rows], [row[2] for row in rows]
        return Question([row[0] for row in rows], Answer(labels, confidences))
