"""Named-entity postprocessing: class scores of tokens to the entities of each text. Needs only NumPy.

tags.json next to this file has an entry per class: the kind of entity (empty for none), and the token's
position in the entity. Requests can override `threshold` by a request parameter.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pipeline.ops.text_tasks.entity_spans import (
    Tag,
    TextEntity,
    build_entity_tensors,
    entities_in,
    get_token_probabilities,
)
from pipeline.ops.text_tasks.parameters import share
from pipeline.triton.export.models.requests import (
    build_response,
    get_array,
    get_parameter,
    get_settings,
    load_json_file,
)


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.settings = get_settings(args)
        self.tags = [Tag(*tag) for tag in load_json_file(args, "tags.json")]

    def execute(self, requests: list[Any]) -> list[Any]:
        return [build_response(request, self.extract_entities) for request in requests]

    def extract_entities(self, request: Any) -> dict[str, Any]:
        """Return the output arrays of a request: entities with a score from `threshold` on, for each text."""
        threshold = get_parameter(request, "threshold", share, float(self.settings["threshold"]))
        windows = get_array(request, "windows")
        scores, places = (
            np.split(get_array(request, name), np.cumsum(windows)[:-1]) for name in ("scores", "places")
        )
        texts = [text.decode() for text in get_array(request, self.settings["text"]).ravel()]
        entities = [self.extract_from_text(*row) for row in zip(texts, scores, places, strict=True)]
        likely = [[entity for entity in row if entity.score >= threshold] for row in entities]
        outputs = build_entity_tensors(likely)
        return {"entity": outputs.pop("text"), **outputs}

    def extract_from_text(self, text: str, scores: Any, places: Any) -> list[TextEntity]:
        """Return the named entities of one text, from the class scores of its tokens.

        scores, places: one row per window of the text. places: for each token position, the token's number in
        the text, and its start and end character.
        """
        spans, begins, offsets = [], [], dict[int, tuple[int, int]]()
        for window in places:
            positions = np.flatnonzero(window[:, 0] >= 0)
            numbers = window[positions, 0].tolist()
            spans.append((numbers[0], numbers[-1] + 1) if numbers else (0, 0))
            begins.append(int(positions[0]) if numbers else 0)
            offsets.update((number, (start, end)) for number, start, end in window[positions].tolist())
        probabilities = get_token_probabilities(spans, begins, list(scores))
        token_offsets = [offsets[number] for number in range(len(probabilities))]
        return entities_in(text, token_offsets, probabilities, self.tags)
