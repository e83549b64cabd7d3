"""BLEU, a metric of generated text: the share of its n-grams that the references have."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from .generated_text import GeneratedText, Tokens, ngrams


class BLEU(GeneratedText):
    """Computes BLEU over n-grams of up to `n_size` tokens.

    weights: weights of n-grams by size: of single tokens, pairs of tokens, and so on.
    """

    def __init__(
        self,
        trans_func: Callable[..., Any] | None = None,
        vocab: Any = None,
        n_size: int = 4,
        weights: Sequence[float] | None = None,
        name: str = "bleu",
    ) -> None:
        self.weights = weights or [1 / n_size] * n_size
        if len(self.weights) != n_size:
            raise AssertionError(
                "Number of weights and n-gram should be the same, got Number of weights: "
                f"'{len(self.weights)}' and n-gram: '{n_size}'"
            )
        self._name = name
        self.n_size, self.vocab, self.trans_func = n_size, vocab, trans_func
        self.reset()

    def reset(self) -> None:
        self.match_ngram: dict[int, int] = {}
        self.candi_ngram: dict[int, int] = {}
        self.bp_r = self.bp_c = 0

    def add_inst(self, cand: Tokens, ref_list: Sequence[Tokens]) -> None:
        """Add a generated text and its references, all as tokens."""
        for size in range(self.n_size):
            limits: Counter[Any] = Counter()
            for reference in ref_list:
                limits |= Counter(ngrams(reference, size + 1))
            grams = ngrams(cand, size + 1)
            self.match_ngram[size] = self.match_ngram.get(size, 0) + (Counter(grams) & limits).total()
            self.candi_ngram[size] = self.candi_ngram.get(size, 0) + len(grams)
        self.bp_c += len(cand)
        self.bp_r += min((abs(len(cand) - len(reference)), len(reference)) for reference in ref_list)[1]

    def accumulate(self) -> float:
        """Return BLEU of all texts that were added."""
        shares = []
        for size in range(self.n_size):
            count = self.candi_ngram.get(size)
            shares.append((self.match_ngram[size] / count if count else 0) or sys.float_info.min)
        logs = math.fsum(w * math.log(share) for w, share in zip(self.weights, shares, strict=True))
        return math.exp(min(1 - self.bp_r / float(self.bp_c), 0)) * math.exp(logs)
