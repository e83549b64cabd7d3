"""The last characters or words of a prefix, for scorers."""

from __future__ import annotations

from collections.abc import Sequence

from .path_trie import Prefix


def last_characters(prefix: Prefix, vocabulary: Sequence[str], count: int) -> list[str]:
    """Return the last tokens of a prefix, at most `count`, in the order of the text."""
    characters: list[str] = []
    while prefix.parent is not None and len(characters) < count:
        characters.append(vocabulary[prefix.token])
        prefix = prefix.parent
    return characters[::-1]


def last_words(prefix: Prefix, vocabulary: Sequence[str], space_id: int, count: int) -> list[str]:
    """Return the last words of a prefix, at most `count`, in the order of the text."""
    words: list[str] = []
    letters: list[str] = []
    while len(words) < count:
        if prefix.parent is None or prefix.token == space_id:
            words.append("".join(reversed(letters)))
            letters = []
        else:
            letters.append(vocabulary[prefix.token])
        if prefix.parent is None:
            break
        prefix = prefix.parent
    return words[::-1]
