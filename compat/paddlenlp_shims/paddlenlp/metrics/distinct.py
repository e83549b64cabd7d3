"""Distinct-n, a metric of the diversity of generated texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .generated_text import ngrams
from .metric import Metric, to_array


class Distinct(Metric):
    """Computes the share of distinct n-grams in generated texts.

    trans_func: converts a batch of model outputs to tokenized texts.
    """

    def __init__(
        self, n_size: int = 2, trans_func: Callable[..., Any] | None = None, name: str = "distinct"
    ) -> None:
        self.n_size, self.trans_func = n_size, trans_func
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.diff_ngram: set[str] = set()
        self.count = 0.0

    def update(self, output: Any, *args: Any) -> None:
        """Add a batch of model outputs. Raise AssertionError if there is no `trans_func`."""
        if self.trans_func is None:
            raise AssertionError(
                "The `update` method requires user to provide `trans_func` when initializing `Distinct`."
            )
        for candidate in self.trans_func(to_array(output)):
            self.add_inst(candidate)

    def add_inst(self, cand: Sequence[str]) -> None:
        """Add a tokenized text."""
        grams = [" ".join(gram) for gram in ngrams(cand, self.n_size)]
        self.count += len(grams)
        self.diff_ngram.update(grams)

    def accumulate(self) -> float:
        """Return the share of distinct n-grams in all texts that were added."""
        return len(self.diff_ngram) / self.count

    def score(self) -> float:
        """Return the share of distinct n-grams, as `accumulate`."""
        return self.accumulate()
