"""Scores of the tokens of a text made entities, also where the text was read in windows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pipeline.ops.labels import probabilities
from pipeline.ops.text_tasks.entity_answer import TextEntity
from pipeline.ops.text_tasks.entity_spans import Tag, entities, group_words, trim_span
from pipeline.ops.text_tasks.text_windows import Span, nearest_window

Array = np.ndarray[Any, np.dtype[Any]]


def get_token_probabilities(spans: Sequence[Span], begins: Sequence[int], scores: Sequence[Array]) -> Array:
    """The probabilities of the tokens of a text that are read: [tokens, classes].

    spans: first and last token of each window. begins: where the text begins in the row of each. scores: of
    each row, [places, classes].
    """
    read = spans[-1][1]
    chosen = nearest_window(read, spans)
    logits = np.empty((read, scores[0].shape[-1]), np.float32)
    for number, ((first, _), at, of_window) in enumerate(zip(spans, begins, scores, strict=True)):
        places = np.flatnonzero(chosen == number)
        logits[places] = of_window[places - first + at]
    return probabilities(logits, "softmax")


def entities_in(text: str, offsets: Sequence[Span], likely: Array, tags: Sequence[Tag]) -> list[TextEntity]:
    """The entities of a text. offsets: of each token that is read its characters; (0, 0) of a space alone,
    to which SentencePiece gives those behind it. tags: of each class."""
    words = group_words(text, offsets)
    many = []
    for first, last, kind, score in named_words(words, likely, tags):
        start, end = trim_span(text, offsets[words[first][0]][0], offsets[words[last][-1]][1])
        many.append(TextEntity(text[start:end], kind, score, start, end))
    return many


def named_words(
    words: Sequence[Sequence[int]], likely: Array, tags: Sequence[Tag]
) -> list[tuple[int, int, str, float]]:
    """First and last word, kind and score of each entity. The first piece of a word tells its label."""
    best = [int(likely[word[0]].argmax()) if word else None for word in words]
    sure = [float(likely[word[0]].max()) if word else 0.0 for word in words]
    word_tags = [Tag("") if at is None else tags[at] for at in best]
    return [
        (entity.first, entity.last, entity.kind, float(np.mean(sure[entity.first : entity.last + 1])))
        for entity in entities(word_tags)
    ]
