"""Target: what is asked for the answers to rows, a service or a model in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.errors import ServingError


class Refused(ServingError):
    """The rows that were asked together are refused; another of them alone may be answered."""


class Unanswered(ServingError):
    """There is no answer, and it is not these rows' fault: nothing listens, or it took too long."""

    exit_code = 1


class Target(Protocol):
    """Answers rows. Several threads ask it, `callers` of them at a time are worth while.

    inputs: the datatypes of what a row needs, by name, as KServe has them; empty where that is not known.
    """

    @property
    def inputs(self) -> Mapping[str, str]: ...
    @property
    def callers(self) -> int: ...
    @property
    def described(self) -> str:
        """In a sentence, and to tell one target from another."""

    def ask(self, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Any]:
        """The answer to each row. Raises Refused, and Unanswered."""


def answer_rows(
    target: Target, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> list[Any]:
    """The answer to each row, or the Refused that stands in its place: who is refused, is found by halves.

    Raises Unanswered.
    """
    try:
        return target.ask(rows, parameters)
    except Refused as exc:
        if len(rows) == 1:
            return [exc]
    half = len(rows) // 2
    return [*answer_rows(target, rows[:half], parameters), *answer_rows(target, rows[half:], parameters)]
