"""The base of the metrics, with the methods of `paddle.metric.Metric`."""

from __future__ import annotations

from typing import Any

import numpy as np


class Metric:
    """Base class of the metrics, which are accumulated over batches.

    Pass the result of `compute` to `update`. `accumulate` returns the metric. `compute` returns Paddle
    tensors if its arguments are Paddle tensors, else NumPy arrays.
    """

    _name: Any = ""

    def compute(self, *args: Any) -> Any:
        """Return the arguments of `update` for a batch of predictions and labels."""
        return args

    def update(self, *args: Any) -> Any:
        """Add a batch. The arguments are the result of `compute`."""
        raise NotImplementedError

    def accumulate(self) -> Any:
        """Return the metric over all batches."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all batches."""
        raise NotImplementedError

    def name(self) -> Any:
        """Return the metric's name."""
        return self._name


def to_array(value: Any) -> Any:
    """Convert a Paddle tensor or any other value to a NumPy array."""
    return value.numpy() if hasattr(value, "numpy") else np.asarray(value)


def like(example: Any, array: Any) -> Any:
    """Convert an array to a Paddle tensor if `example` is a Paddle tensor; else return it unchanged."""
    if not hasattr(example, "numpy"):
        return array
    import paddle

    return paddle.to_tensor(array)


def precision_recall_f1(correct: Any, inferred: Any, labelled: Any) -> tuple[float, float, float]:
    """Return precision, recall and F1 from counts; 0.0 for a ratio whose divisor is zero.

    correct: number of `inferred` items that are also `labelled`.
    """
    precision = float(correct / inferred) if inferred else 0.0
    recall = float(correct / labelled) if labelled else 0.0
    f1 = float(2 * precision * recall / (precision + recall)) if correct else 0.0
    return precision, recall, f1


def largest_first(scores: Any) -> Any:
    """Return the indices that sort the last axis in descending order; ties keep their order."""
    return np.argsort(-to_array(scores), axis=-1, kind="stable")
