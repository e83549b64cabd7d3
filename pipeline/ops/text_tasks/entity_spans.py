"""Entities in a text, from the labels of its words: kinds, beginnings and ends.

Labels tell a word's place in an entity. B-PER begins an entity, I-PER or M-PER continues it, E-PER or L-PER
ends it. S-PER or U-PER is an entity by itself. PER-B means the same as B-PER. A label that continues an
entity begins one where there is none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pipeline.errors import ConfigError

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
