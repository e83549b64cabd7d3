"""The base of the metrics that compare generated texts with reference texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .metric import Metric, to_array

Tokens = Sequence[Any]


class GeneratedText(Metric):
    """Base of the metrics that compare generated texts (candidates) with references, both tokenized.

    trans_func: converts a batch of model outputs and labels to candidates and references. vocab: maps ids to
    tokens, for the conversion without `trans_func`.
    """

    trans_func: Callable[..., Any] | None
    vocab: Any

    def update(self, output: Any, label: Any, seq_mask: Any = None) -> None:
        """Add a batch of model outputs and labels. Raise AttributeError without `trans_func` and `vocab`."""
        if self.trans_func is not None:
            candidates, references = self.trans_func(output, label, seq_mask)
        elif self.vocab is not None:
            candidates, references = _texts_of_batch(output, label, seq_mask, self.vocab)
        else:
            raise AttributeError(
                "The `update` method requires users to provide `trans_func` or `vocab` when initializing "
                f"{type(self).__name__}."
            )
        if len(candidates) != len(references):
            raise ValueError("Length error! Please check the output of network.")
        for candidate, refs in zip(candidates, references, strict=True):
            self.add_inst(candidate, refs)

    def add_inst(self, cand: Tokens, ref_list: Sequence[Tokens]) -> None:
        """Add a candidate and its references."""
        raise NotImplementedError

    def score(self) -> float:
        """Return the metric of all texts, as `accumulate`."""
        value: float = self.accumulate()
        return value


def ngrams(tokens: Tokens, size: int) -> list[tuple[Any, ...]]:
    """Return all n-grams of `size` tokens."""
    return [tuple(tokens[place : place + size]) for place in range(len(tokens) - size + 1)]


def _texts_of_batch(output: Any, label: Any, seq_mask: Any, vocab: Any) -> tuple[list[Any], list[Any]]:
    """Return the most likely tokens, and the labels, for each text of a batch of scores.

    seq_mask: 1 for the tokens of a text, 0 after its end.
    """
    mask = to_array(seq_mask).astype(bool)
    best = np.argmax(to_array(output) * mask[:, :, None], axis=2)
    lengths = [_length(row) for row in mask]
    labels = np.squeeze(to_array(label), axis=2)
    candidates = [_tokens(row[:length], vocab) for row, length in zip(best, lengths, strict=True)]
    references = [[_tokens(row[:length], vocab)] for row, length in zip(labels, lengths, strict=True)]
    return candidates, references


def _length(mask: Any) -> int:
    return int(np.argmin(mask)) if not mask.all() else len(mask)


def _tokens(ids: Iterable[int], vocab: Any) -> list[Any]:
    return [vocab[number] for number in ids]
