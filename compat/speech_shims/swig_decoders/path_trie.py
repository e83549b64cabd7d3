"""The prefixes of one utterance as a trie of token ids, with the probabilities of the beam search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, inf, log1p
from typing import Any

ROOT = -1
"""The token id of the empty prefix."""


def add_logs(first: float, second: float) -> float:
    """Return the logarithm of the sum of two probabilities that are given as logarithms."""
    if first < second:
        first, second = second, first
    return first if second == -inf else first + log1p(exp(second - first))


class Prefix:
    """A prefix of token ids: a node of the trie.

    The probability of a prefix has two parts: its last frame is a blank, or the last token of the prefix.
    This matters because a repeated token extends the prefix only after a blank.
    """

    __slots__ = (
        "blank",
        "bonus",
        "children",
        "in_beam",
        "next_blank",
        "next_token",
        "parent",
        "score",
        "token",
        "token_end",
        "word_letters",
    )

    def __init__(self, token: int, parent: Prefix | None) -> None:
        self.token = token
        self.parent = parent
        self.children: dict[int, Prefix] = {}
        self.blank = -inf  # log probability of the paths that end with a blank
        self.token_end = -inf  # the same of the paths that end with the token
        self.score = -inf  # of both
        self.next_blank = -inf  # the values of the next frame
        self.next_token = -inf
        self.in_beam = False
        self.bonus = 0.0  # of hotwords and language model, added when the prefix is reached
        self.word_letters: Mapping[int, Any] | None = None  # the next letters that the dictionary allows

    def next_frame(self) -> None:
        """Replace the probabilities with those of the next frame."""
        self.blank, self.token_end = self.next_blank, self.next_token
        self.next_blank = self.next_token = -inf
        self.score = add_logs(self.blank, self.token_end)

    def leave_beam(self) -> None:
        """Drop the prefix from the beam, and from the trie if no prefix continues it."""
        self.in_beam = False
        prefix: Prefix | None = self
        while prefix is not None and not prefix.in_beam and not prefix.children:
            parent = prefix.parent
            if parent is not None:
                del parent.children[prefix.token]
            prefix = parent

    def token_ids(self) -> tuple[int, ...]:
        """Return the token ids from the first to the last."""
        ids = []
        prefix = self
        while prefix.parent is not None:
            ids.append(prefix.token)
            prefix = prefix.parent
        return tuple(reversed(ids))


class PathTrie:
    """The state of a beam search over one utterance.

    A stream passes the same PathTrie with each chunk, so that the search continues.
    """

    def __init__(self) -> None:
        self.beam: list[Prefix] = []  # best first; empty before the first chunk


class TrieVector(list[PathTrie]):
    """A list of PathTrie objects, one for each utterance of a batch."""

    push_back = list.append


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
