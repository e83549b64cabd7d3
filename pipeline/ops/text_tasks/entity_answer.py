"""The entities of texts as each door tells them: tensors, objects, or PaddleNLP's JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.api.request_options import Answer

DECLARED = {
    "text": "BYTES [-1, -1]",
    "label": "BYTES [-1, -1]",
    "score": "FP32 [-1, -1]",
    "start": "INT64 [-1, -1]",
    "end": "INT64 [-1, -1]",
}
_ENTITY = {
    "text": {"type": "string"},
    "label": {"type": "string"},
    "score": {"type": "number"},
    "start": {"type": "integer", "description": "Its first character."},
    "end": {"type": "integer", "description": "The first character behind it."},
}
ROW: dict[str, Any] = {
    "type": "object",
    "properties": {"entities": {"type": "array", "items": {"type": "object", "properties": _ENTITY}}},
    "required": ["entities"],
}
"""A JSON schema of what is told of a text."""
_PADDING = {"text": "", "label": "", "score": 0.0, "start": -1, "end": -1}
_DTYPES: dict[str, Any] = {"score": np.float32, "start": np.int64, "end": np.int64}


class TextEntity(NamedTuple):
    """An entity: its text, its characters in the whole text from `start` to before `end`, and likewise its
    tokens where the text came in tokens."""

    text: str
    label: str
    score: float
    start: int
    end: int
    tokens: tuple[int, int] | None = None

    def document(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in _PADDING}
        return fields if self.tokens is None else {**fields, "tokens": list(self.tokens)}

    def as_paddlenlp(self) -> dict[str, Any]:
        """`pos` has the first and the last character, or token."""
        first, end = self.tokens or (self.start, self.end)
        score = round(self.score, 6)
        return {"pos": [first, end - 1], "entity": self.text, "label": self.label, "score": score}


def build_entity_tensors(entities: Sequence[Sequence[TextEntity]]) -> dict[str, Any]:
    """A row for each text. Rows with fewer entities end with empty ones."""
    longest = max(map(len, entities), default=0)
    tensors: dict[str, Any] = {}
    for name, missing in _PADDING.items():
        rows = [
            [getattr(entity, name) for entity in row] + [missing] * (longest - len(row)) for row in entities
        ]
        tensors[name] = np.array(rows, _DTYPES.get(name, object)).reshape(len(entities), longest)
    return tensors


def build_entity_answer(entities: Sequence[Sequence[TextEntity]], classes: Sequence[Sequence[int]]) -> Answer:
    """The entities of each text. classes: of its tokens."""
    value = [[entity.as_paddlenlp() for entity in row] for row in entities]
    return Answer(
        build_entity_tensors(entities),
        rows=[{"entities": [entity.document() for entity in row]} for row in entities],
        key_values={
            "value": json.dumps(value, ensure_ascii=False),
            "tokens_label": json.dumps(classes),
        },
    )
