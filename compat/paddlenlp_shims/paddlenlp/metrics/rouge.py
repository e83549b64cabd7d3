"""ROUGE, a metric of generated text: the share of the references that the text covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .generated_text import GeneratedText, Tokens, ngrams


class RougeL(GeneratedText):
    """Computes ROUGE-L, from the longest common subsequence of text and reference.

    gamma: weight of the recall.
    """

    def __init__(
        self,
        trans_func: Callable[..., Any] | None = None,
        vocab: Any = None,
        gamma: float = 1.2,
        name: str = "rouge-l",
    ) -> None:
        self.gamma, self.vocab, self.trans_func = gamma, vocab, trans_func
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.inst_scores: list[float] = []

    def lcs(self, string: Tokens, sub: Tokens) -> float:
        """Return the length of the longest common subsequence of two tokenized texts."""
        row = [0.0] * (len(sub) + 1)
        for token in string:
            last, row = row, [0.0]
            for place, other in enumerate(sub):
                row.append(last[place] + 1 if token == other else max(last[place + 1], row[place]))
        return row[-1]

    def add_inst(self, cand: Tokens, ref_list: Sequence[Tokens]) -> None:
        """Add a generated text and its references, all as tokens."""
        common = [(self.lcs(cand, reference), len(reference)) for reference in ref_list]
        precision = max(length / len(cand) if len(cand) else 0.0 for length, _ in common)
        recall = max(length / size if size else 0.0 for length, size in common)
        weight, score = self.gamma**2, 0.0
        if precision and recall:
            score = ((1 + weight) * precision * recall) / float(recall + weight * precision)
        self.inst_scores.append(score)

    def accumulate(self) -> float:
        """Return the mean ROUGE-L of all texts that were added."""
        return 1.0 * sum(self.inst_scores) / len(self.inst_scores)


class RougeN:
    """Computes ROUGE-N: the share of the references' distinct n-grams that occur in the generated texts."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.reset()

    def reset(self) -> None:
        self.overlapping_count = 0
        self.reference_count = 0

    def compute(
        self, evaluated_sentences_ids: Sequence[Tokens], reference_sentences_ids: Sequence[Tokens]
    ) -> tuple[int, int]:
        """Return how many distinct n-grams texts and references share, and how many the references have.

        Each text has one reference. Raises ValueError if there is no text.
        """
        if len(evaluated_sentences_ids) <= 0 or len(reference_sentences_ids) <= 0:
            raise ValueError("Collections must contain at least 1 sentence.")
        common = total = 0
        for candidate, reference in zip(evaluated_sentences_ids, reference_sentences_ids, strict=False):
            grams = set(ngrams(reference, self.n))
            total += len(grams)
            common += len(grams.intersection(ngrams(candidate, self.n)))
        return common, total

    def score(
        self, evaluated_sentences_ids: Sequence[Tokens], reference_sentences_ids: Sequence[Tokens]
    ) -> float:
        """Return ROUGE-N of only these texts, without adding them."""
        common, total = self.compute(evaluated_sentences_ids, reference_sentences_ids)
        return common / total

    def update(self, overlapping_count: int, reference_count: int) -> None:
        """Add the counts that `compute` returned for a batch."""
        self.overlapping_count += overlapping_count
        self.reference_count += reference_count

    def accumulate(self) -> float:
        """Return ROUGE-N of all batches."""
        return self.overlapping_count / self.reference_count

    def name(self) -> str:
        return f"Rouge-{self.n}"


class Rouge1(RougeN):
    """Computes ROUGE-1: ROUGE-N over single tokens."""

    def __init__(self) -> None:
        super().__init__(n=1)


class Rouge2(RougeN):
    """Computes ROUGE-2: ROUGE-N over pairs of tokens."""

    def __init__(self) -> None:
        super().__init__(n=2)
