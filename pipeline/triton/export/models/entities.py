"""Scores of classes of each token to the entities of each text. It needs NumPy alone.

tags.json beside this file tells of each class the kind of entity, empty for none, and what its label says of
a token's place in one. A request may say another `threshold` by a parameter of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.text_tasks.entity_answer import TextEntity, build_entity_tensors
from pipeline.ops.text_tasks.entity_scores import entities_in, get_token_probabilities
from pipeline.ops.text_tasks.entity_spans import Tag
from pipeline.ops.text_tasks.parameters import share
from pipeline.triton.export.models.requests import (
    answered,
    get_array,
    get_parameter,
    get_settings,
    json_beside,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)
        self.tags = [Tag(*one) for one in json_beside(args, "tags.json")]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [answered(request, self.answer) for request in requests]

    def answer(self, request: Any) -> dict[str, Any]:
        least = get_parameter(request, "threshold", share, float(self.settings["threshold"]))
        windows = get_array(request, "windows")
        scores, places = (
            np.split(get_array(request, name), np.cumsum(windows)[:-1]) for name in ("scores", "places")
        )
        texts = [text.decode() for text in get_array(request, self.settings["text"]).ravel()]
        found = [self.found(*one) for one in zip(texts, scores, places, strict=True)]
        made = build_entity_tensors([[one for one in many if one.score >= least] for many in found])
        return {"entity": made.pop("text"), **made}

    def found(self, text: str, scores: Any, places: Any) -> list[TextEntity]:
        """The entities of a text. places: of each token in each window its number, and its characters."""
        spans, begins, offsets = [], [], dict[int, tuple[int, int]]()
        for of_window in places:
            own = np.flatnonzero(of_window[:, 0] >= 0)
            numbers = of_window[own, 0].tolist()
            spans.append((numbers[0], numbers[-1] + 1) if numbers else (0, 0))
            begins.append(int(own[0]) if numbers else 0)
            offsets.update((number, (start, end)) for number, start, end in of_window[own].tolist())
        likely = get_token_probabilities(spans, begins, list(scores))
        return entities_in(text, [offsets[number] for number in range(len(likely))], likely, self.tags)
