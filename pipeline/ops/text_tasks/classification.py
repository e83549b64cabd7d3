"""The text tasks of classification, zero-shot classification and relevance, for texts or pairs of texts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import InvalidInput, ServingError, TooLarge
from pipeline.models.description import SLOT
from pipeline.models.label_names import find_entailment
from pipeline.models.sentence_files import RelevanceOutput
from pipeline.ops.labels import best, over_threshold, probabilities, sigmoids
from pipeline.ops.text_tasks import parameters
from pipeline.ops.text_tasks.embeddings import truncations
from pipeline.ops.text_tasks.parameters import Parameter, count, flag, labels_sent, share, template
from pipeline.ops.text_tasks.text_task import (
    MAX_ROWS,
    TRUNCATE,
    TRUNCATED,
    Array,
    TextRequest,
    TextTask,
    where,
)
from pipeline.ops.text_tasks.text_windows import Cut, cut, pooled

TOP_K = Parameter("top_k", count, "Most labels that are told, the best first.")
THRESHOLD = Parameter("threshold", share, "Least score of a label that is told.")


class ClassesTask(TextTask):
    """Single-label classification: returns the best class and the `top_k` best classes of each text."""

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
    """Multi-label classification: returns all classes of each text whose score is over a threshold."""

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
    """Concatenate the scores of all rows of a request into one array: float32 [rows, classes]."""
    rows = scores[0] if len(scores) == 1 else np.concatenate(scores)
    return rows.reshape(-1, rows.shape[-1]).astype(np.float32, copy=False)


RAW_SCORES = Parameter("raw_scores", parameters.flag, "Whether scores are the model's own, of any size.")


class RelevanceTask(TextTask):
    """Scores how well the second text of each pair answers the first.

    A single first text may be paired with all second texts.
    """

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
    """Return a relevance score for each row of logits of shape [rows, 1] or [rows, 2].

    Raises ServingError for other shapes.
    """
    classes = logits.shape[1]
    if classes not in (1, 2):
        raise ServingError(f"the model gives {classes} scores of each pair; relevance is told by one or two")
    if activation == "auto":
        activation = "sigmoid" if classes == 1 else "softmax"
    if activation == "softmax":
        return np.asarray(probabilities(logits, "softmax")[:, -1])
    return np.asarray(sigmoids(logits, activation)[:, -1])


LABELS = "labels"
_CONTRADICTION = re.compile(r"(?i)contradict(ion|s|ory)?|not[ _-]?entail(ment|ed)?|矛盾|不蕴含")
_EXAMPLE = ("sports", "finance")


class ZeroShotTask(TextTask):
    """Zero-shot classification: ranks the request's labels for each text, with an inference (NLI) model.

    Each row of the model's input is a window of the text and a hypothesis with one label.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter(LABELS, labels_sent, "The labels to choose from."),
        Parameter("template", template, "The hypothesis, with {} where a label goes."),
        Parameter("multi_label", flag, "Whether each label is judged by itself."),
        TOP_K,
        THRESHOLD,
    )
    pairs = False

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        names = self.labels.tolist()
        entailment = find_entailment(names) if self.output.entailment is None else self.output.entailment
        assert entailment is not None  # the description was checked
        self._entailment = entailment
        against = (at for at, name in enumerate(names) if _CONTRADICTION.fullmatch(name.strip()))
        self._contradiction = next(against, -1 if entailment == 0 else 0)

    def declared(self) -> dict[str, str]:
        labels, scores = "BYTES [-1, -1]", "FP32 [-1, -1]"
        return {"label": "BYTES [-1]", "score": "FP32 [-1]", "labels": labels, "scores": scores}

    def example(self) -> dict[str, Any]:
        return {} if self.output.candidates else {LABELS: ",".join(_EXAMPLE)}

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        texts = self.texts(inputs, self.name)
        labels = options[LABELS] = options.get(LABELS) or self._candidates()
        if len(texts) * len(labels) > MAX_ROWS:
            raise TooLarge(
                f"{len(texts)} texts with {len(labels)} labels are {len(texts) * len(labels)} pairs; "
                f"{MAX_ROWS} are allowed in a request"
            )
        sentence = options.get("template", self.output.template)
        hypotheses = [
            tokens.ids
            for tokens in self.tokenizer.tokens([sentence.replace(SLOT, label) for label in labels])
        ]
        longest = max(map(len, hypotheses))
        room = self.maker.room_beside(
            longest, f"label {[len(h) for h in hypotheses].index(longest)} of {LABELS!r}"
        )
        cuts, rows = list[Cut](), []
        premises = self.tokenizer.tokens([text[: self.reading.most_chars] for text in texts])
        for number, premise in enumerate(premises):
            part = cut(len(premise.ids), room, self.reading, where(self.name, number, len(texts)))
            cuts.append(
                part._replace(truncated=part.truncated or len(texts[number]) > self.reading.most_chars)
            )
            for first, last in part.spans:
                window = premise.ids[first:last]
                rows += [self.tokenizer.row(window, one_of) for one_of in hypotheses]
        return TextRequest(options, rows, cuts)

    def _candidates(self) -> Sequence[str]:
        if not self.output.candidates:
            raise InvalidInput(f"{LABELS!r} is missing: send the labels to choose from")
        return tuple(self.output.candidates)

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        names = np.array(request.parameters[LABELS])
        logits = joined(scores)
        self.get_class_names(logits.shape[1])
        by_window = logits.reshape(-1, len(names), logits.shape[1])
        # Of one label the share among all would be 1, whatever the text says.
        alone = len(names) == 1 or request.parameters.get("multi_label", self.output.multi_label)
        of_texts = pooled(self._likely(by_window, alone=alone), request.windows, self.output.pooling)
        if not alone and self.output.pooling == "max":
            of_texts = of_texts / of_texts.sum(axis=1, keepdims=True)
        top_k = request.parameters.get("top_k", self.output.top_k) or len(names)
        return best(of_texts, names, top_k, request.parameters.get("threshold", self.output.threshold))

    def _likely(self, logits: Array, *, alone: bool) -> Array:
        """Return the probability of each label, [windows, labels], from logits [windows, labels, classes].

        With `alone`, each label is judged independently, by its logits of entailment and contradiction.
        """
        entailed = logits[:, :, self._entailment]
        if not alone:
            return probabilities(entailed, "softmax")
        against = logits[:, :, self._contradiction]
        both = np.stack([against, entailed], axis=-1).reshape(-1, 2)
        return probabilities(both, "softmax")[:, 1].reshape(entailed.shape)
