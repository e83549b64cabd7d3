"""Target: a service, or a model in this process, that answers rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.errors import ServingError

REQUEST_ROWS = 128  # four batches: a request costs as much as a tenth of 32 short rows


class Refused(ServingError):
    """The rows of a request are refused. Some of them may be answered in a request of their own."""


class Unanswered(ServingError):
    """The target does not answer: nothing listens, or the request timed out. The rows may be valid."""

    exit_code = 1


class Target(Protocol):
    """Answers rows, from several threads."""

    @property
    def inputs(self) -> Mapping[str, str]:
        """KServe datatype of each input by name; empty if unknown."""

    @property
    def callers(self) -> int:
        """Useful number of concurrent calls."""

    @property
    def described(self) -> str:
        """Description for messages, unique for the target."""

    def request_answers(self, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Any]:
        """Return the answer to each row. Raise Refused or Unanswered."""


def answer_rows(
    target: Target, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> list[Any]:
    """Return the answer or the Refused of each row: a refused request is bisected to find its refused rows.

    Raise Unanswered if the target does not answer.
    """
    try:
        return target.request_answers(rows, parameters)
    except Refused as exc:
        if len(rows) == 1:
            return [exc]
    half = len(rows) // 2
    return [*answer_rows(target, rows[:half], parameters), *answer_rows(target, rows[half:], parameters)]
