"""The base of the metrics, with the methods of `paddle.metric.Metric`."""

from __future__ import annotations

from typing import Any

import numpy as np


class Metric:
    """A metric that adds up over batches.

    `compute` returns Paddle's tensors where its arguments are Paddle's tensors, else NumPy arrays.
    """

    _name: Any = ""

    def compute(self, *args: Any) -> Any:
        """Return what `update` needs of a batch."""
        return args

    def update(self, *args: Any) -> Any:
        """Add a batch."""
        raise NotImplementedError

    def accumulate(self) -> Any:
        """Return the metric of all batches."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all batches."""
        raise NotImplementedError

    def name(self) -> Any:
        return self._name


def to_array(value: Any) -> Any:
    """Return the value as a NumPy array, a Paddle tensor too."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def like(example: Any, array: Any) -> Any:
    """Return the array as a Paddle tensor where the example is such a tensor."""
    if not hasattr(example, "numpy"):
        return array
    import paddle

    return paddle.to_tensor(array)


def precision_recall_f1(correct: Any, inferred: Any, labelled: Any) -> tuple[float, float, float]:
    """Return precision, recall and F1 of counts, 0.0 where a count is zero."""
    precision = float(correct / inferred) if inferred else 0.0
    recall = float(correct / labelled) if labelled else 0.0
    f1 = float(2 * precision * recall / (precision + recall)) if correct else 0.0
    return precision, recall, f1


def largest_first(scores: Any) -> Any:
    """Return the places of the scores of the last axis, the largest first; of equal scores the first."""
    return np.argsort(-to_array(scores), axis=-1, kind="stable")
