"""Texts, or pairs of texts, to classes or to scores of relevance."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ServingError
from pipeline.models.sentence_files import RelevanceOutput
from pipeline.ops.labels import best, over_threshold, probabilities, sigmoids
from pipeline.ops.text_tasks import parameters
from pipeline.ops.text_tasks.embeddings import truncations
from pipeline.ops.text_tasks.parameters import Parameter, count, share
from pipeline.ops.text_tasks.text_task import TRUNCATE, TRUNCATED, Array, TextRequest, TextTask
from pipeline.ops.text_tasks.text_windows import pooled

TOP_K = Parameter("top_k", count, "Most labels that are told, the best first.")
THRESHOLD = Parameter("threshold", share, "Least score of a label that is told.")


class ClassesTask(TextTask):
    """The best class, and the best few."""

    parameters: ClassVar[tuple[Parameter, ...]] = (TOP_K, THRESHOLD, TRUNCATE)

    def declared(self) -> dict[str, str]:
        labels, scores = "BYTES [-1, -1]", "FP32 [-1, -1]"
        return {"label": "BYTES [-1]", "score": "FP32 [-1]", "labels": labels, "scores": scores}

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        of_texts = pooled(self._scores(scores), request.windows, self.output.pooling)
        options = {"top_k": self.output.top_k, "threshold": self.output.threshold, **request.parameters}
        return best(of_texts, self.get_class_names(of_texts.shape[1]), options["top_k"], options["threshold"])

    def _scores(self, scores: list[Array]) -> Array:
        return probabilities(joined(scores), self.output.activation)


class MultiLabelTask(ClassesTask):
    """All classes over a threshold."""

    def declared(self) -> dict[str, str]:
        return {"labels": "BYTES [-1, -1]", "scores": "FP32 [-1, -1]"}

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        of_texts = pooled(self._scores(scores), request.windows, self.output.pooling)
        options: dict[str, Any] = {"top_k": self.output.top_k, "threshold": self.output.threshold}
        options |= request.parameters
        names = self.get_class_names(of_texts.shape[1])
        return over_threshold(of_texts, names, options["threshold"], options["top_k"])

    def _scores(self, scores: list[Array]) -> Array:
        return sigmoids(joined(scores), self.output.activation)


def joined(scores: list[Array]) -> Array:
    """The scores of all rows: float32 [rows, classes]."""
    rows = scores[0] if len(scores) == 1 else np.concatenate(scores)
    return rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)


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
