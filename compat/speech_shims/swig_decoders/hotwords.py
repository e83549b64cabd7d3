"""Hotwords: words whose weight is added to the score of a prefix that ends with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite

from .path_trie import Prefix, last_characters, last_words

MIN_CHARACTERS = 2
"""A hotword of one character is never matched, as in the original."""


class HotWordsScorer:
    """Scores prefixes by hotwords.

    hotwords: the weight of each hotword; negative weights make a word less likely. vocabulary: the text of
    each token id. window_length: number of last characters (or words) in which hotwords are searched.
    SPACE_ID: the token between words. is_character_based: whether hotwords are sequences of one-character
    tokens, or words between spaces.
    """

    def __init__(
        self,
        hotwords: Mapping[str, float],
        vocabulary: Sequence[str],
        window_length: int = 4,
        SPACE_ID: int = -2,
        is_character_based: bool = True,
    ) -> None:
        if window_length < 1:
            raise ValueError(f"window_length is {window_length}; it must be at least 1")
        self.hotwords_dict = {str(word): float(weight) for word, weight in hotwords.items()}
        for word, weight in self.hotwords_dict.items():
            if not isfinite(weight):
                raise ValueError(f"hotword {word!r} has the weight {weight}; it must be a finite number")
        self.char_list = list(vocabulary)
        self.window_length = window_length
        self.SPACE_ID = SPACE_ID
        self.is_character_based = is_character_based

    def score_prefix(self, prefix: Prefix, space_id: int) -> float:
        """Return the weight of the hotword with which a new prefix ends; 0 if there is none."""
        if not self.hotwords_dict:
            return 0.0
        if self.is_character_based:
            return self._score_characters(last_characters(prefix, self.char_list, self.window_length))
        if prefix.token != space_id or prefix.parent is None:
            return 0.0
        words = last_words(prefix.parent, self.char_list, self.SPACE_ID, self.window_length)
        return next((self.hotwords_dict[word] for word in words if word in self.hotwords_dict), 0.0)

    def _score_characters(self, characters: list[str]) -> float:
        """Return the weight of the longest hotword at the end of the characters."""
        for start in range(len(characters) - MIN_CHARACTERS + 1):
            weight = self.hotwords_dict.get("".join(characters[start:]))
            if weight is not None:
                return weight
        return 0.0
