"""ModelCard: facts of a loaded model for its users, beside its tensors."""

from __future__ import annotations

from typing import Any, NamedTuple


class ModelCard(NamedTuple):
    """Facts of a model for /openapi.json and /docs, which a worker sends once the model is loaded."""

    engine: str  # with the precision, where that is another than fp32
    task: str = ""  # as the conversion notes it; empty: unknown
    labels: tuple[str, ...] = ()  # of the classes

    def document(self) -> dict[str, Any]:
        """In plain values, without what is not known."""
        return {name: value for name, value in self._asdict().items() if value}
