"""Language models: n-gram scores for the prefixes of a beam search."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

from .arpa_file import ArpaModel
from .path_trie import Prefix, last_characters, last_words

START = "<s>"
SPECIAL_WORDS = frozenset({START, "</s>", "<unk>"})
UNKNOWN_WORD_SCORE = -1000.0
LOG_10 = log(10)
ARPA_MARK = b"\\data\\"

Letters = dict[int, Any]
"""A trie of words by letters: each token id leads to the letters that may follow."""


class Scorer:
    """Scores prefixes by a language model: alpha * log probability + beta for each character or word.

    lm_path: an ARPA file, or a binary file of KenLM, which needs the package `kenlm`. A model with words of
    several characters scores complete words, at spaces, and only allows its own words. A binary file always
    scores characters. Raises ValueError for other files, OSError, and ImportError.
    """

    def __init__(self, alpha: float, beta: float, lm_path: str, vocabulary: Sequence[str]) -> None:
        self.alpha = float(alpha)
        self.beta = float(beta)
        self._vocabulary = list(vocabulary)
        self._model = _load_model(lm_path)
        self._space_id = self._vocabulary.index(" ") if " " in self._vocabulary else -2
        words = [word for word in self._model.words if word not in SPECIAL_WORDS]
        self._is_character_based = all(len(word) == 1 for word in words)
        self.dictionary: Letters | None = None if self._is_character_based else self._spell_words(words)

    def is_character_based(self) -> bool:
        """Return whether the model scores characters, not words."""
        return self._is_character_based

    def get_max_order(self) -> int:
        """Return the greatest length of an n-gram."""
        return int(self._model.order)

    def get_dict_size(self) -> int:
        """Return the number of words in the model."""
        return len(self._model.words)

    def reset_params(self, alpha: float, beta: float) -> None:
        """Replace the weights alpha and beta."""
        self.alpha, self.beta = float(alpha), float(beta)

    def get_log_cond_prob(self, words: Sequence[str]) -> float:
        """Return the natural logarithm of the probability of the last word, given the words before it.

        The result is -1000 for an n-gram with an unknown word.
        """
        if any(word not in self._model for word in words):
            return UNKNOWN_WORD_SCORE
        return float(self._model.log_probability(words)) * LOG_10

    def score_prefix(self, prefix: Prefix, space_id: int) -> float:
        """Return the score that is added for a new prefix; 0 inside a word."""
        order = self.get_max_order()
        if self._is_character_based:
            words = last_characters(prefix, self._vocabulary, order)
        elif prefix.token == space_id and prefix.parent is not None:
            words = last_words(prefix.parent, self._vocabulary, self._space_id, order)
        else:
            return 0.0
        words = [START] * (order - len(words)) + words
        return self.alpha * self.get_log_cond_prob(words) + self.beta

    def _spell_words(self, words: Sequence[str]) -> Letters:
        """Return a trie of the words that can be spelled with the vocabulary. A space ends each word."""
        tokens = {text: token for token, text in enumerate(self._vocabulary)}
        root: Letters = {}
        for word in words:
            if all(letter in tokens for letter in word):
                node = root
                for letter in word:
                    node = node.setdefault(tokens[letter], {})
                node[self._space_id] = root
        return root


class KenlmModel:
    """A binary language model file of KenLM, queried with the package `kenlm`."""

    words: tuple[str, ...] = ()  # kenlm does not list them

    def __init__(self, path: str) -> None:
        try:
            self._kenlm = importlib.import_module("kenlm")
        except ImportError as exc:
            raise ImportError(
                f"language model {path} is no ARPA file; other files need KenLM: python3 -m pip install kenlm"
            ) from exc
        try:
            self._model = self._kenlm.LanguageModel(path)
        except (OSError, RuntimeError) as exc:
            raise ValueError(f"language model {path} is neither an ARPA file nor KenLM's: {exc}") from exc
        self.order = int(self._model.order)

    def __contains__(self, word: str) -> bool:
        return word in self._model

    def log_probability(self, words: Sequence[str]) -> float:
        """Return the log probability (base 10) of the last word, given the words before it."""
        state, following = self._kenlm.State(), self._kenlm.State()
        self._model.NullContextWrite(state)
        log_probability = 0.0
        for word in words:
            log_probability = self._model.BaseScore(state, word, following)
            state, following = following, state
        return log_probability


def _load_model(lm_path: str) -> ArpaModel | KenlmModel:
    with Path(lm_path).open("rb") as file:
        is_arpa = ARPA_MARK in file.read(4096)
    return ArpaModel(lm_path) if is_arpa else KenlmModel(str(lm_path))
