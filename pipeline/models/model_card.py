"""ModelCard: what people are told of a loaded model beside its tensors."""

from __future__ import annotations

from typing import Any, NamedTuple


class ModelCard(NamedTuple):
    """A worker tells it once its model is loaded, for /openapi.json and /docs.

    engine: what runs the model, with the precision where it is another than fp32. task: as the conversion
    notes it, empty where it is not known. labels: the names of its classes.
    """

    engine: str
    task: str = ""
    labels: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """In plain values, without what is not known."""
        return {name: value for name, value in self._asdict().items() if value}
