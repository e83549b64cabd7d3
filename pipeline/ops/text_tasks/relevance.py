"""Pairs of texts to scores, by a model that reads both together: which texts answer a query."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ServingError
from pipeline.models.embedding_description import RelevanceOutput
from pipeline.ops.labels import probabilities, sigmoids
from pipeline.ops.text_tasks import parameters
from pipeline.ops.text_tasks.classification import joined
from pipeline.ops.text_tasks.embeddings import truncations
from pipeline.ops.text_tasks.parameters import Parameter
from pipeline.ops.text_tasks.text_task import TRUNCATE, TRUNCATED, Array, TextRequest, TextTask
from pipeline.ops.text_tasks.text_windows import pooled

RAW_SCORES = Parameter("raw_scores", parameters.flag, "Whether scores are the model's own, of any size.")


class RelevanceTask(TextTask):
    """How well the second text of each pair answers the first; one first text may stand for all pairs."""

    parameters: ClassVar[tuple[Parameter, ...]] = (RAW_SCORES, TRUNCATE)
    one_for_all: ClassVar[bool] = True

    def declared(self) -> dict[str, str]:
        return {"score": "FP32 [-1]", TRUNCATED: "BOOL [-1]"}

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        # Of a long text the window that answers best: the others need not.
        logits = pooled(joined(scores), request.windows, "max")
        output: RelevanceOutput = self.output
        activation = "none" if request.parameters.get("raw_scores") else output.activation
        return {"score": scored(logits, activation), TRUNCATED: truncations(request)}


def scored(logits: Array, activation: str) -> Array:
    """A score of each row. Raises ServingError for what is neither one class nor two."""
    classes = logits.shape[1]
    if classes not in (1, 2):
        raise ServingError(f"the model gives {classes} scores of each pair; relevance is told by one or two")
    if activation == "auto":
        activation = "sigmoid" if classes == 1 else "softmax"
    if activation == "softmax":
        return np.asarray(probabilities(logits, "softmax")[:, -1])
    return np.asarray(sigmoids(logits, activation)[:, -1])
