"""The options of a KServe v1 response, which the front sends to the worker with the request."""

from __future__ import annotations

from typing import NamedTuple

JSON = "kserve_v1.json"
"""The form of an answer: {"predictions": [...]}, or {"outputs": {...}}."""

AS_ANSWERED = -1
"""How many instances there are, where the front has not looked: as many as the answer has rows."""


class V1ResponseOptions(NamedTuple):
    """In which form the instances were sent, for they are answered in the same."""

    rows: int  # how many instances were sent, or AS_ANSWERED; 0 where the only one has no axis of rows
    by_columns: bool  # they were sent as `inputs`, and are answered as `outputs`
