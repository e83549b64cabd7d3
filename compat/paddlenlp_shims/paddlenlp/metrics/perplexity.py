"""Perplexity of a language model."""

from __future__ import annotations

from typing import Any

import numpy as np

from .metric import Metric, like, to_array


class Perplexity(Metric):
    """Computes perplexity: the exponential of the mean cross entropy of the words."""

    def __init__(self, name: str = "Perplexity") -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.total_ce: Any = 0
        self.total_word_num: Any = 0

    def compute(self, pred: Any, label: Any, seq_mask: Any = None) -> Any:
        """Return the cross entropy of each word of a batch, and with a mask also the number of words."""
        scores, labels = to_array(pred), to_array(label)
        labels = labels[:, :, None] if labels.ndim == 2 else labels
        largest = scores.max(axis=-1, keepdims=True)
        log_sum = largest + np.log(np.exp(scores - largest).sum(axis=-1, keepdims=True))
        entropy = (log_sum - np.take_along_axis(scores, labels, axis=-1))[..., 0]
        if seq_mask is None:
            return like(pred, entropy)
        mask = to_array(seq_mask)
        return like(pred, entropy * mask.astype(entropy.dtype)), like(pred, mask.sum())

    def update(self, ce: Any, word_num: Any = None) -> None:
        """Add a batch, with the result of `compute`."""
        entropy = to_array(ce)
        self.total_ce += np.sum(entropy)
        self.total_word_num += entropy.shape[0] * entropy.shape[1] if word_num is None else word_num.item()

    def accumulate(self) -> Any:
        """Return the perplexity of all batches."""
        return np.exp(self.total_ce / self.total_word_num)
