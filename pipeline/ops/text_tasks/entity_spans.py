"""Named entities from token labels: parses label schemes (BIO, BIOES, BIOUL) and finds the spans in the text.

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
    """A parsed label such as B-PER: the kind of entity (PER) and the position in the entity (B)."""

    kind: str  # of the entity; empty: no entity
    place: str = ""  # of the word in its entity: B, I, M, E, L, S or U; empty: the label does not tell


class Entity(NamedTuple):
    """A span of words: an entity from word `first` to word `last`, inclusive."""

    first: int
    last: int
    kind: str


def parse_labels(labels: Sequence[str], scheme: str, outside: str) -> list[Tag]:
    """Parse the model's class labels by a scheme: "bio", "bioes", "bioul", "none" or "auto".

    `outside` is the label of words that belong to no entity. Raises ConfigError for a label that does not
    follow the scheme.
    """
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
    """Yield the entities, in order, of a sequence of words with these parsed labels."""
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
    """Group token indexes into words: tokens that touch within a run of letters form one word.

    `offsets` has the character span of each token. In scripts without spaces each token is a word. A token
    without characters in the text is left out.
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
    """Strip spaces from a character span, and extend the span over combining characters after its end."""
    while first < last and text[first].isspace():
        first += 1
    while last < len(text) and _belongs_to_last(text, last):
        last += 1
    while first < last and text[last - 1].isspace():
        last -= 1
    return first, last


def joined_tokens(tokens: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join tokens into a text, with spaces where words need them. Returns the text and each token's span."""
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
    """Whether a character combines with the previous one: an accent, a skin tone, a zero-width joiner."""
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
    """An entity found in a text: its label, score and character span, without the character at `end`.

    `tokens` is the span of tokens, for texts that were sent as lists of tokens.
    """

    text: str
    label: str
    score: float
    start: int
    end: int
    tokens: tuple[int, int] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the entity as JSON values, for KServe v1."""
        fields = {name: getattr(self, name) for name in _PADDING}
        return fields if self.tokens is None else {**fields, "tokens": list(self.tokens)}

    def as_paddlenlp(self) -> dict[str, Any]:
        """Return the entity as JSON values in PaddleNLP's form.

        `pos` has the positions of the first and the last character. For a text that was sent as a list of
        tokens, `pos` has positions of tokens.
        """
        first, end = self.tokens or (self.start, self.end)
        score = round(self.score, 6)
        return {"pos": [first, end - 1], "entity": self.text, "label": self.label, "score": score}


def build_entity_tensors(entities: Sequence[Sequence[TextEntity]]) -> dict[str, Any]:
    """Return the entities as arrays [texts, entities] by name. Rows with fewer entities are padded."""
    longest = max(map(len, entities), default=0)
    tensors: dict[str, Any] = {}
    for name, missing in _PADDING.items():
        rows = [
            [getattr(entity, name) for entity in row] + [missing] * (longest - len(row)) for row in entities
        ]
        tensors[name] = np.array(rows, _DTYPES.get(name, object)).reshape(len(entities), longest)
    return tensors


def build_entity_answer(entities: Sequence[Sequence[TextEntity]], classes: Sequence[Sequence[int]]) -> Answer:
    """Build the response, in the form of each protocol, from the entities of each text.

    `classes` has the class index of each token, by text.
    """
    value = [[entity.as_paddlenlp() for entity in row] for row in entities]
    return Answer(
        build_entity_tensors(entities),
        rows=[{"entities": [entity.as_json() for entity in row]} for row in entities],
        key_values={
            "value": json.dumps(value, ensure_ascii=False),
            "tokens_label": json.dumps(classes),
        },
    )


Array = np.ndarray[Any, np.dtype[Any]]


def get_token_probabilities(spans: Sequence[Span], begins: Sequence[int], scores: Sequence[Array]) -> Array:
    """Join the windows of a long text, and return the class probabilities of its tokens: [tokens, classes].

    spans: for each window, its first token and the token after its last. begins: for each window, the
    position of the text's first token in the row. scores: logits of each row, [positions, classes].
    """
    read = spans[-1][1]
    chosen = nearest_window(read, spans)
    logits = np.empty((read, scores[0].shape[-1]), np.float32)
    for number, ((first, _), at, of_window) in enumerate(zip(spans, begins, scores, strict=True)):
        places = np.flatnonzero(chosen == number)
        logits[places] = of_window[places - first + at]
    return probabilities(logits, "softmax")


def entities_in(text: str, offsets: Sequence[Span], likely: Array, tags: Sequence[Tag]) -> list[TextEntity]:
    """Return the entities of a text, from the class probabilities of its tokens.

    offsets: character span of each token; (0, 0) for a SentencePiece token that is only a space. likely:
    class probabilities, [tokens, classes]. tags: parsed label of each class.
    """
    words = group_words(text, offsets)
    many = []
    for first, last, kind, score in named_words(words, likely, tags):
        start, end = trim_span(text, offsets[words[first][0]][0], offsets[words[last][-1]][1])
        many.append(TextEntity(text[start:end], kind, score, start, end))
    return many


def named_words(
    words: Sequence[Sequence[int]], likely: Array, tags: Sequence[Tag]
) -> list[tuple[int, int, str, float]]:
    """Return first word, last word, kind and score of each entity. A word's first token decides its label.

    words: token indexes of each word. likely: class probabilities of the tokens. tags: parsed label of each
    class.
    """
    best = [int(likely[word[0]].argmax()) if word else None for word in words]
    sure = [float(likely[word[0]].max()) if word else 0.0 for word in words]
    word_tags = [Tag("") if at is None else tags[at] for at in best]
    return [
        (entity.first, entity.last, entity.kind, float(np.mean(sure[entity.first : entity.last + 1])))
        for entity in entities(word_tags)
    ]
