"""Answer: an Op's output that is told otherwise where a door has a better form than tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Answer(dict[str, Any]):
    """Tensors by name, as KServe v2 answers them.

    rows: what KServe v1 answers in place of them, an object of plain values for each instance. key_values:
    the texts that key/value answers. Each tells the same.
    """

    def __init__(
        self,
        tensors: Mapping[str, Any],
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        key_values: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(tensors)
        self.rows = rows
        self.key_values = key_values
