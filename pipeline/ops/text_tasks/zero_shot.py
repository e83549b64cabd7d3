"""Texts to labels of the caller's own, by a model of natural language inference (NLI).

Of each label a template makes a hypothesis. The model tells how far the text entails it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import InvalidInput, TooLarge
from pipeline.models.description import SLOT
from pipeline.models.label_names import find_entailment
from pipeline.ops.labels import best, probabilities
from pipeline.ops.text_tasks.classification import THRESHOLD, TOP_K, joined
from pipeline.ops.text_tasks.parameters import Parameter, flag, labels_sent, template
from pipeline.ops.text_tasks.text_rows import where
from pipeline.ops.text_tasks.text_task import MAX_ROWS, Array, TextRequest, TextTask
from pipeline.ops.text_tasks.text_windows import Cut, cut, pooled

LABELS = "labels"
_CONTRADICTION = re.compile(r"(?i)contradict(ion|s|ory)?|not[ _-]?entail(ment|ed)?|矛盾|不蕴含")
_EXAMPLE = ("sports", "finance")


class ZeroShotTask(TextTask):
    """The labels of each text, the best first. Each row of the model is a window with a hypothesis."""

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
        """Return the probability of each label, [windows, labels], from [windows, labels, classes]."""
        entailed = logits[:, :, self._entailment]
        if not alone:
            return probabilities(entailed, "softmax")
        against = logits[:, :, self._contradiction]
        both = np.stack([against, entailed], axis=-1).reshape(-1, 2)
        return probabilities(both, "softmax")[:, 1].reshape(entailed.shape)
