"""The metrics of the GLUE benchmark: accuracy and F1, Matthews, Pearson and Spearman, multi-label."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from .metric import Metric, largest_first, like, to_array


class AccuracyAndF1(Metric):
    """Computes accuracy of all labels, and precision, recall and F1 of the label 1.

    topk: for each k, an accuracy is computed that counts a prediction as right if the label is among the k
    most likely. pos_label: the column of scores from which label 1 is predicted.
    """

    def __init__(self, topk: Sequence[int] = (1,), pos_label: int = 1, name: str = "acc_and_f1") -> None:
        self.topk = topk
        self.pos_label = pos_label
        self._name = name
        self.reset()

    def reset(self) -> None:
        self._correct = [0.0] * len(self.topk)
        self._samples = 0
        self._tp = self._fp = self._recalled = self._missed = 0
        self.label: Any = None
        self.preds_pos: Any = None

    def compute(self, pred: Any, label: Any, *args: Any) -> Any:
        """Return whether each of the most likely labels of a row is the right label, as 1.0 or 0.0."""
        scores, labels = to_array(pred), to_array(label)
        powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
        self.preds_pos = (powers / powers.sum(axis=-1, keepdims=True))[:, self.pos_label]
        self.label = labels
        if labels.ndim == 1 or (labels.ndim == 2 and labels.shape[-1] == 1):
            labels = labels.reshape(-1, 1)
        elif labels.shape[-1] != 1:
            labels = np.argmax(labels, axis=-1)[..., None]
        best = largest_first(scores)[..., : max(self.topk)]
        return like(pred, (best == labels).astype("float32"))

    def update(self, correct: Any, *args: Any) -> None:
        """Add the batch with which `compute` was last called. correct: the result of `compute`."""
        rows = to_array(correct)
        self._samples += math.prod(rows.shape[:-1])
        for place, k in enumerate(self.topk):
            self._correct[place] += float(rows[..., :k].sum())
        assert self.preds_pos is not None, "call compute before update"
        is_positive = self.label.reshape(len(self.label), -1)[:, 0] == 1
        # Paddle's precision rounds 0.5 up, and its recall rounds 0.5 down.
        inferred, recalled = np.floor(self.preds_pos + 0.5) == 1, np.rint(self.preds_pos) == 1
        self._tp += int(np.sum(inferred & is_positive))
        self._fp += int(np.sum(inferred & ~is_positive))
        self._recalled += int(np.sum(recalled & is_positive))
        self._missed += int(np.sum(~recalled & is_positive))

    def accumulate(self) -> tuple[Any, float, float, float, Any]:
        """Return accuracy, precision, recall, F1, and the mean of accuracy and F1."""
        accuracies = [correct / self._samples if self._samples else 0.0 for correct in self._correct]
        accuracy: Any = accuracies[0] if len(self.topk) == 1 else accuracies
        precision = self._tp / (self._tp + self._fp) if self._tp + self._fp else 0.0
        recall = self._recalled / (self._recalled + self._missed) if self._recalled + self._missed else 0.0
        f1 = 2 * precision * recall / (precision + recall) if precision and recall else 0.0
        return accuracy, precision, recall, f1, (accuracy + f1) / 2


class Mcc(Metric):
    """Computes Matthews' correlation coefficient of predictions with two labels."""

    def __init__(self, name: str = "mcc") -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.tp = self.fp = self.tn = self.fn = 0

    def compute(self, pred: Any, label: Any, *args: Any) -> tuple[Any, Any]:
        """Return the most likely label of each row, and the right labels."""
        return like(pred, largest_first(pred)[:, :1]), label

    def update(self, preds_and_labels: Sequence[Any]) -> None:
        """Add the predicted and the right labels of a batch."""
        preds, labels = (to_array(values).reshape(-1) for values in preds_and_labels)
        self.tp += int(np.sum((preds == 1) & (labels == 1)))
        self.fp += int(np.sum((preds == 1) & (labels != 1)))
        self.tn += int(np.sum((preds != 1) & (preds == labels)))
        self.fn += int(np.sum((preds != 1) & (preds != labels)))

    def accumulate(self) -> tuple[float]:
        """Return the coefficient over all batches, as a tuple of length 1.

        It is 0.0 if one of the four counts is zero.
        """
        tp, fp, tn, fn = self.tp, self.fp, self.tn, self.fn
        if 0 in (tp, fp, tn, fn):
            return (0.0,)
        return ((tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)),)


class PearsonAndSpearman(Metric):
    """Computes Pearson's and Spearman's correlation of predicted and true scores, and their mean."""

    def __init__(self, name: str = "pearson_and_spearman") -> None:
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.preds: list[Any] = []
        self.labels: list[Any] = []

    def update(self, preds_and_labels: Sequence[Any]) -> None:
        """Add the predicted and the true scores of a batch."""
        for values, batch in zip((self.preds, self.labels), preds_and_labels, strict=True):
            values.append(to_array(batch).reshape(-1).tolist())

    def accumulate(self) -> tuple[float, float, float]:
        """Return Pearson's and Spearman's correlation, and their mean."""
        preds, labels = (
            [value for batch in batches for value in batch] for batches in (self.preds, self.labels)
        )
        pearson, spearman = self.pearson(preds, labels), self.spearman(preds, labels)
        return pearson, spearman, (pearson + spearman) / 2

    def pearson(self, preds: Sequence[float], labels: Sequence[float]) -> float:
        """Return Pearson's correlation of two lists of scores."""
        count = len(preds)
        sum1, sum2 = sum(map(float, preds)), sum(map(float, labels))
        square1, square2 = sum(v**2.0 for v in preds), sum(v**2.0 for v in labels)
        product = sum(pred * label for pred, label in zip(preds, labels, strict=True))
        below = math.sqrt((square1 - sum1**2 / count) * (square2 - sum2**2 / count))
        return (product - (sum1 * sum2 / count)) / below if below else 0.0

    def spearman(self, preds: Sequence[float], labels: Sequence[float]) -> float:
        """Return Spearman's rank correlation of two lists of scores."""
        ranks, count = zip(self.get_rank(preds), self.get_rank(labels), strict=True), len(preds)
        total = int(sum((first - second) ** 2 for first, second in ranks))
        return 1 - float(6 * total) / (count * (count**2 - 1))

    def get_rank(self, raw_list: Sequence[float]) -> Any:
        """Return the rank of each value; the largest value has rank 1."""
        order = np.argsort(-np.array(raw_list))
        ranks = np.empty(order.shape, dtype=int)
        ranks[order] = np.arange(1, len(order) + 1)
        return ranks


class MultiLabelsMetric(Metric):
    """Computes precision, recall and F1 of a classifier with `num_labels` labels."""

    def __init__(self, num_labels: int, name: str = "multi_labels_metric") -> None:
        if num_labels <= 1:
            raise ValueError(f"The num_labels is {num_labels}, which must be greater than 1.")
        self.num_labels = num_labels
        self._name = name
        self.reset()

    def reset(self) -> None:
        self._confusion_matrix = np.zeros((self.num_labels, 2, 2), dtype=int)

    def compute(self, pred: Any, label: Any) -> tuple[Any, Any]:
        """Return the most likely and the right label of each row. Raise ValueError for shapes that differ."""
        scores, labels = to_array(pred), to_array(label)
        if scores.shape[-1] != self.num_labels:
            raise ValueError(f"The last dim of pred is {scores.shape[-1]}, which should be num_labels")
        best = np.argmax(scores.reshape(-1, self.num_labels), axis=-1)
        if labels.shape[-1] == self.num_labels:
            labels = np.argmax(labels.reshape(-1, self.num_labels), axis=-1)
        else:
            labels = labels.reshape(-1)
            if labels.max() >= self.num_labels:
                raise ValueError(f"Tensor label has value {labels.max()}, which is no less than num_labels")
        if best.shape[0] != labels.shape[0]:
            raise ValueError("The length of pred is not equal to the length of label")
        return like(pred, best), like(label, labels)

    def update(self, args: Sequence[Any]) -> None:
        """Add the predicted and the right labels of a batch."""
        pred, label = map(to_array, args)
        right, inferred, labelled = (
            np.bincount(numbers, minlength=self.num_labels) for numbers in (label[pred == label], pred, label)
        )
        false, missed = inferred - right, labelled - right
        rest = pred.shape[0] - right - false - missed
        self._confusion_matrix += np.array([rest, false, missed, right]).T.reshape(-1, 2, 2)

    def accumulate(self, average: str | None = None, pos_label: int = 1) -> tuple[Any, Any, Any]:
        """Return precision, recall and F1: arrays with a value for each label, or averages.

        average: "binary" (of `pos_label`), "micro" (of all counts), "macro", "weighted" (by the labels).
        """
        if average not in {"binary", "micro", "macro", "weighted", None}:
            raise ValueError(f"The average is {average}, which is unknown.")
        if average == "binary" and pos_label >= self.num_labels:
            raise ValueError(
                f"The pos_label is {pos_label}; it must be less than num_labels, {self.num_labels}."
            )
        matrix = self._confusion_matrix
        if average == "binary":
            matrix = matrix[pos_label][None]
        elif average == "micro":
            matrix = matrix.sum(axis=0, keepdims=True)
        right = matrix[:, 1, 1]
        inferred, labelled = right + matrix[:, 0, 1], right + matrix[:, 1, 0]
        precision = _divide(right, inferred, "precision")
        recall = _divide(right, labelled, "recall")
        scores = (precision, recall, _divide(2 * precision * recall, precision + recall, "f1"))
        if average is None:
            return scores
        if average == "weighted" and labelled.sum() == 0:
            return (np.float64(0.0),) * 3
        weights = labelled if average == "weighted" else None
        return tuple(np.average(score, weights=weights) for score in scores)


def _divide(above: Any, below: Any, metric: str) -> Any:
    """Divide. If the divisor is zero, return 0.0 with a warning. metric: name for the warning."""
    is_zero = below == 0.0
    if np.any(is_zero):
        warnings.warn(f"Zero division when calculating {metric}.", UserWarning, stacklevel=3)
    return np.where(is_zero, 0.0, above / np.where(is_zero, 1, below))
