"""Entities in a text, from the labels of its words: kinds, beginnings and ends.

Labels tell a word's place in an entity. B-PER begins an entity, I-PER or M-PER continues it, E-PER or L-PER
ends it. S-PER or U-PER is an entity by itself. PER-B means the same as B-PER. A label that continues an
entity begins one where there is none.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.api.request_options import Answer
from pipeline.errors import ConfigError
from pipeline.ops.labels import probabilities
from pipeline.ops.text_tasks.text_windows import Span, nearest_window

_BEGINS, _ENDS = frozenset("BSU"), frozenset("ELSU")
_SCHEMES = {"bio": "BI", "bioes": "BIMES", "bioul": "BILU", "auto": "BIMESLU"}
_JOINER = "\u200d"  # makes one sign of two emoji
_SKIN_TONES = range(0x1F3FB, 0x1F400)
_MARKS = ("Mn", "Me", "Mc")
# Scripts without spaces between words: of each the first and last character.
_WITHOUT_SPACES = (
    (0x0E00, 0x0EFF),
    (0x1000, 0x109F),
    (0x1780, 0x17FF),
    (0x2E80, 0xA4CF),
    (0xAC00, 0xD7AF),
    (0xF900, 0xFAFF),
    (0xFF00, 0xFFEF),
    (0x20000, 0x3FFFF),
)


class Tag(NamedTuple):
    """A parsed label."""

    kind: str  # of the entity; empty: no entity
    place: str = ""  # of the word in its entity: B, I, M, E, L, S or U; empty: the label does not tell


class Entity(NamedTuple):
    """Words `first` to `last`, both of them its own."""

    first: int
    last: int
    kind: str


def parse_labels(labels: Sequence[str], scheme: str, outside: str) -> list[Tag]:
    """Return the parsed labels. Raises ConfigError for a label that is not of the scheme."""
    named = [label for label in labels if label != outside]
    if scheme == "none":
        return [Tag("" if label == outside else label) for label in labels]
    places = _SCHEMES[scheme]
    for pattern in (rf"(?P<place>[{places}])[-_](?P<kind>.+)", rf"(?P<kind>.+)[-_](?P<place>[{places}])"):
        matches = {label: match for label in named if (match := re.fullmatch(pattern, label))}
        if named and len(matches) == len(named):
            return [
                Tag(matches[label]["kind"], matches[label]["place"]) if label in matches else Tag("")
                for label in labels
            ]
    if scheme == "auto":
        return [Tag("" if label == outside else label) for label in labels]
    raise ConfigError(
        f"the labels {', '.join(named[:5])} do not all tell a place as {scheme} does "
        f"({'-, '.join(places)}-): choose another `scheme`, or name the label of what is no entity by "
        "`outside`"
    )


def entities(tags: Sequence[Tag]) -> Iterator[Entity]:
    """The entities of words with these tags, in order."""
    begun: int | None = None
    for at, tag in enumerate(tags):
        before = tags[at - 1] if at else Tag("")
        goes_on = tag.kind == before.kind and tag.place not in _BEGINS and before.place not in _ENDS
        if begun is not None and not (tag.kind and goes_on):
            yield Entity(begun, at - 1, before.kind)
            begun = None
        if tag.kind and begun is None:
            begun = at
    if begun is not None:
        yield Entity(begun, len(tags) - 1, tags[-1].kind)


def group_words(text: str, offsets: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The pieces of each word, by their offsets in the text: those that touch in a run of letters are one.

    In scripts without spaces each piece is a word. A piece without characters of its own is left out.
    """
    words: list[list[int]] = []
    end = -1
    for at, (first, last) in enumerate(offsets):
        while first < last and text[first].isspace():
            first += 1
        if first >= last:
            continue
        if words and first <= end and (first < end or _within_word(text, first)):
            words[-1].append(at)
        else:
            words.append([at])
        end = max(end, last)
    return words


def trim_span(text: str, first: int, last: int) -> tuple[int, int]:
    """The characters of an entity without spaces at its ends, and with all that its last sign is made of."""
    while first < last and text[first].isspace():
        first += 1
    while last < len(text) and _belongs_to_last(text, last):
        last += 1
    while first < last and text[last - 1].isspace():
        last -= 1
    return first, last


def joined_tokens(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """The text that tokens make, and the characters of each: with a space between words that have one."""
    text, spans = "", list[tuple[int, int]]()
    for token in tokens:
        if text and token and _is_word(text[-1]) and _is_word(token[0]):
            text += " "
        spans.append((len(text), len(text) + len(token)))
        text += token
    return text, spans


def _within_word(text: str, at: int) -> bool:
    return _belongs_to_last(text, at) or (_is_word(text[at - 1]) and _is_word(text[at]))


def _is_word(char: str) -> bool:
    code = ord(char)
    if any(first <= code <= last for first, last in _WITHOUT_SPACES):
        return False
    return char.isalnum() or unicodedata.category(char) in _MARKS


def _belongs_to_last(text: str, at: int) -> bool:
    """Whether a character is part of the sign before it: an accent, a skin tone, what a joiner binds."""
    char = text[at]
    if unicodedata.category(char) in _MARKS or ord(char) in _SKIN_TONES or char == _JOINER:
        return True
    return at > 0 and text[at - 1] == _JOINER


ENTITY_TENSORS = {
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
ENTITY_SCHEMA: dict[str, Any] = {
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
