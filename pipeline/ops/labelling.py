"""Texts to the entities in them, from a model that gives scores for each token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pipeline.errors import ConfigError
from pipeline.ops import entity_answer
from pipeline.ops.entity_answer import Found
from pipeline.ops.entity_spans import Tag, entities, joined_tokens, span_of, tags_of, words_of
from pipeline.ops.labels import probabilities
from pipeline.ops.parameters import Parameter, flag, share
from pipeline.ops.split_tokens import checked_tokens, printed_texts, tokens_of_json
from pipeline.ops.text_task import Array, Asked, TextTask
from pipeline.ops.text_tokenizer import Row, Tokens
from pipeline.ops.text_windows import Cut, nearest_window

TOKENS = "tokens"
"""The key under which clients of PaddleNLP's services send texts, or texts in tokens."""
_NO_WORD = Tag("")


class EntitiesTask(TextTask):
    """The entities of each text, in its order. A text may come in tokens, with `pre_split`."""

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("threshold", share, "Least score of an entity that is told."),
        Parameter("pre_split", flag, "Whether each text is a list of tokens in JSON."),
    )
    pairs = False
    row_schema = entity_answer.ROW

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if not len(self.labels):
            raise ConfigError(f"{self.model.directory}: entities need labels, and the model has none")
        self._tags = tags_of(self.labels.tolist(), self.output.scheme, self.output.outside)

    def declared(self) -> dict[str, str]:
        return dict(entity_answer.DECLARED)

    def rows(self, inputs: Mapping[str, Any], wanted: dict[str, Any]) -> Asked:
        texts = self._sent(inputs, split=wanted.get("pre_split", False))
        if isinstance(texts[0], list):
            tokens = self.tokenizer.tokens_of_split(texts)
        else:
            tokens = self.tokenizer.tokens([text[: self.reading.most_chars] for text in texts], places=True)
        asked = Asked(wanted, *self.maker.of_texts(tokens))
        asked.texts, asked.tokens = texts, tokens
        for number, text in enumerate(texts):
            if isinstance(text, str) and len(text) > self.reading.most_chars:
                asked.cuts[number] = asked.cuts[number]._replace(truncated=True)
        return asked

    def _sent(self, inputs: Mapping[str, Any], *, split: bool) -> list[Any]:
        """The texts, or their tokens: all of one kind."""
        most = self.reading.most_chars
        if TOKENS in inputs and self.name not in inputs:
            given = printed_texts(inputs[TOKENS], TOKENS)
            if any(isinstance(one, list) for one in given):
                return [checked_tokens(one, f"text {n} of {TOKENS!r}", most) for n, one in enumerate(given)]
            return list(self.texts({TOKENS: given}, TOKENS))
        texts = self.texts(inputs, self.name)
        if not split:
            return list(texts)
        return [tokens_of_json(one, f"text {n} of {self.name!r}", most) for n, one in enumerate(texts)]

    def answer_of(self, asked: Asked, scores: list[Array]) -> dict[str, Any]:
        least = asked.parameters.get("threshold", self.output.threshold)
        found, classes, row = [], [], 0
        for text, tokens, part in zip(asked.texts, asked.tokens, asked.cuts, strict=True):
            own = slice(row, row + len(part.spans))
            row = own.stop
            likely = self._likely(part, asked.rows[own], scores[own])
            many = self._in_tokens(text, tokens, likely) if tokens.words else self._in(text, tokens, likely)
            found.append([one for one in many if one.score >= least])
            classes.append(likely.argmax(1).tolist())
        return entity_answer.answer_of(found, classes)

    def _likely(self, part: Cut, rows: Sequence[Row], scores: Sequence[Array]) -> Array:
        """The probabilities of the tokens of a text that are read: [tokens, classes]."""
        read = part.spans[-1][1]
        chosen = nearest_window(read, part.spans)
        classes = len(self.names_of(scores[0].shape[-1]))
        logits = np.empty((read, classes), np.float32)
        for number, ((first, _), row, of_window) in enumerate(zip(part.spans, rows, scores, strict=True)):
            own = np.flatnonzero(chosen == number)
            logits[own] = of_window[0, own - first + row.at]
        return probabilities(logits, "softmax")

    def _in(self, text: str, tokens: Tokens, likely: Array) -> list[Found]:
        """The entities of a text by the probabilities of its tokens; those beyond are not read."""
        offsets = tokens.offsets[: len(likely)]
        # SentencePiece gives a piece that is a space alone the sign behind it.
        pieces = zip(tokens.ids, offsets, strict=False)
        words = words_of(text, [(0, 0) if one == self.tokenizer.space else span for one, span in pieces])
        many = []
        for first, last, kind, score in self._of_words(words, likely):
            start, end = span_of(text, offsets[words[first][0]][0], offsets[words[last][-1]][1])
            many.append(Found(text[start:end], kind, score, start, end))
        return many

    def _in_tokens(self, text: list[str], tokens: Tokens, likely: Array) -> list[Found]:
        words: list[list[int]] = [[] for _ in text]
        for at, word in enumerate(tokens.words[: len(likely)]):
            words[word].append(at)
        whole, places = joined_tokens(text)
        many = []
        for first, last, kind, score in self._of_words(words, likely):
            start, end = places[first][0], places[last][1]
            many.append(Found(whole[start:end], kind, score, start, end, (first, last + 1)))
        return many

    def _of_words(self, words: Sequence[Sequence[int]], likely: Array) -> list[tuple[int, int, str, float]]:
        """First and last word, kind and score of each entity. The first piece of a word tells its label."""
        best = [int(likely[word[0]].argmax()) if word else None for word in words]
        sure = [float(likely[word[0]].max()) if word else 0.0 for word in words]
        tags = [_NO_WORD if at is None else self._tags[at] for at in best]
        return [
            (one.first, one.last, one.kind, float(np.mean(sure[one.first : one.last + 1])))
            for one in entities(tags)
        ]
