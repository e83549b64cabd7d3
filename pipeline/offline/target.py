"""Target: interface of the model that offline commands send rows to, on a server or in this process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pipeline.errors import ServingError

REQUEST_ROWS = 128  # four batches: a request costs as much as a tenth of 32 short rows


class Refused(ServingError):
    """Raised when the model rejects a request of several rows.

    Some of these rows may be accepted when they are sent separately.
    """


class Unanswered(ServingError):
    """Raised when the server does not answer: nothing listens, or the request timed out.

    The rows may be valid. The command exits with code 1.
    """

    exit_code = 1


class Target(Protocol):
    """Interface of a model that scores rows, on a server or in this process. Several threads may call it."""

    @property
    def inputs(self) -> Mapping[str, str]:
        """KServe datatype of each input by name; empty if unknown."""

    @property
    def callers(self) -> int:
        """Useful number of concurrent calls of `request_answers`."""

    @property
    def described(self) -> str:
        """The model's name or address for messages. It is unique for the model."""

    def request_answers(self, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> list[Any]:
        """Run rows as one request with these parameters, and return the answer to each row.

        Raise Refused or Unanswered.
        """


def answer_rows(
    target: Target, rows: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]
) -> list[Any]:
    """Return the answer of each row, or the Refused exception of a rejected row. Raise Unanswered.

    A rejected request is bisected to find the rejected rows.
    """
    try:
        return target.request_answers(rows, parameters)
    except Refused as exc:
        if len(rows) == 1:
            return [exc]
    half = len(rows) // 2
    return [*answer_rows(target, rows[:half], parameters), *answer_rows(target, rows[half:], parameters)]
