"""The text task of named entity recognition, for models that give scores for each token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from pipeline.errors import ConfigError
from pipeline.ops.text_tasks.entity_spans import (
    ENTITY_SCHEMA,
    ENTITY_TENSORS,
    TextEntity,
    build_entity_answer,
    entities_in,
    get_token_probabilities,
    joined_tokens,
    named_words,
    parse_labels,
)
from pipeline.ops.text_tasks.parameters import Parameter, flag, share
from pipeline.ops.text_tasks.split_tokens import checked_tokens, printed_texts, tokens_of_json
from pipeline.ops.text_tasks.text_task import Array, TextRequest, TextTask
from pipeline.ops.tokenizer import Tokens

TOKENS = "tokens"
"""The key under which clients of PaddleNLP's services send texts, or texts in tokens."""


class EntitiesTask(TextTask):
    """Finds the named entities of each text.

    With `pre_split`, requests have texts already split into tokens.
    """

    parameters: ClassVar[tuple[Parameter, ...]] = (
        Parameter("threshold", share, "Least score of an entity that is told."),
        Parameter("pre_split", flag, "Whether each text is a list of tokens in JSON."),
    )
    pairs = False
    row_schema = ENTITY_SCHEMA

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if not len(self.labels):
            raise ConfigError(f"{self.model.directory}: entities need labels, and the model has none")
        self._tags = parse_labels(self.labels.tolist(), self.output.scheme, self.output.outside)

    def declared(self) -> dict[str, str]:
        return dict(ENTITY_TENSORS)

    def rows(self, inputs: Mapping[str, Any], options: dict[str, Any]) -> TextRequest:
        texts = self._sent(inputs, split=options.get("pre_split", False))
        if isinstance(texts[0], list):
            tokens = self.tokenizer.tokens_of_split(texts)
            rows, cuts = self.maker.build_text_rows(tokens)
        else:
            tokens, rows, cuts = self.maker.build_rows_with_places(texts)
        return TextRequest(options, rows, cuts, texts, tokens)

    def _sent(self, inputs: Mapping[str, Any], *, split: bool) -> list[Any]:
        """Return the texts of a request, or, for texts split into tokens, the token list of each text."""
        max_chars = self.reading.most_chars
        if TOKENS in inputs and self.name not in inputs:
            sent = printed_texts(inputs[TOKENS], TOKENS)
            if any(isinstance(text, list) for text in sent):
                return [
                    checked_tokens(text, f"text {n} of {TOKENS!r}", max_chars) for n, text in enumerate(sent)
                ]
            return list(self.texts({TOKENS: sent}, TOKENS))
        texts = self.texts(inputs, self.name)
        if not split:
            return list(texts)
        return [tokens_of_json(text, f"text {n} of {self.name!r}", max_chars) for n, text in enumerate(texts)]

    def build_answer(self, request: TextRequest, scores: list[Array]) -> dict[str, Any]:
        threshold = request.parameters.get("threshold", self.output.threshold)
        self.get_class_names(scores[0].shape[-1])
        entities, classes, row = [], [], 0
        for text, tokens, part in zip(request.texts, request.tokens, request.cuts, strict=True):
            window_rows = slice(row, row + len(part.spans))
            row = window_rows.stop
            begins = [model_row.at for model_row in request.rows[window_rows]]
            likely = get_token_probabilities(
                part.spans, begins, [of_row[0] for of_row in scores[window_rows]]
            )
            candidates = (
                self._in_tokens(text, tokens, likely) if tokens.words else self._in(text, tokens, likely)
            )
            entities.append([entity for entity in candidates if entity.score >= threshold])
            classes.append(likely.argmax(1).tolist())
        return build_entity_answer(entities, classes)

    def _in(self, text: str, tokens: Tokens, likely: Array) -> list[TextEntity]:
        space = self.tokenizer.space
        pieces = zip(tokens.ids, tokens.offsets, strict=True)
        offsets = [(0, 0) if token == space else span for token, span in pieces]
        return entities_in(text, offsets[: len(likely)], likely, self._tags)

    def _in_tokens(self, text: list[str], tokens: Tokens, likely: Array) -> list[TextEntity]:
        words: list[list[int]] = [[] for _ in text]
        for at, word in enumerate(tokens.words[: len(likely)]):
            words[word].append(at)
        joined, places = joined_tokens(text)
        many = []
        for first, last, kind, score in named_words(words, likely, self._tags):
            start, end = places[first][0], places[last][1]
            many.append(TextEntity(joined[start:end], kind, score, start, end, (first, last + 1)))
        return many
