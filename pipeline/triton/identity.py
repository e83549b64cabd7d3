"""Triton's identity backend: each output is the input of its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.api.op import OpRequest


class Identity:
    """Gives requests back what they hold, under the names of the outputs."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        inputs, outputs = ([one["name"] for one in config[field]] for field in ("input", "output"))
        self._names = dict(zip(inputs, outputs, strict=False))

    def run(self, requests: Sequence[OpRequest], feeds: Sequence[Mapping[str, Any]]) -> list[Any]:
        """As RequestRunner's."""
        return [{self._names[name]: array for name, array in feed.items()} for feed in feeds]

    def own_metrics(self) -> None:
        """It counts nothing."""

    def close(self) -> None:
        pass
