"""The metrics of SIGHAN: F1 of detecting and of correcting misspelt Chinese characters."""

from __future__ import annotations

from typing import Any

import numpy as np

from .metric import Metric


class DetectionF1(Metric):
    """Computes F1 of the detection of sentences with errors. All errors of a sentence must be found."""

    def __init__(self, pos_label: int = 1, name: str = "DetectionF1") -> None:
        self.pos_label = pos_label
        self._name = name
        self.reset()

    def reset(self) -> None:
        self.tp = self.fp = self.fn = 0

    def update(self, preds: Any, labels: Any, length: Any, *args: Any) -> None:
        """Add a batch of scores [batch, tokens, 2]. The first token, [CLS], does not count."""
        for row, expected, count in zip(preds.argmax(axis=-1), labels, length, strict=False):
            predicted, label = row[1 : 1 + count], expected[1 : 1 + count]
            self._add(label, predicted, (predicted == label).all())

    def _add(self, label: Any, predicted: Any, is_right: Any) -> None:
        if (label == self.pos_label).any():
            self.tp, self.fn = self.tp + int(bool(is_right)), self.fn + int(not is_right)
        elif (label != predicted).any():
            self.fp += 1

    def accumulate(self) -> tuple[float, float, float]:
        """Return F1, precision and recall of all batches."""
        precision = self.tp / (self.tp + self.fp) if self.tp + self.fp else np.nan
        recall = self.tp / (self.tp + self.fn) if self.tp + self.fn else np.nan
        f1 = 2 * precision * recall / (precision + recall) if self.tp else 0.0
        return f1, precision, recall


class CorrectionF1(DetectionF1):
    """Computes F1 of the correction of sentences with errors. All errors of a sentence must be corrected."""

    def __init__(self, pos_label: int = 1, name: str = "CorrectionF1") -> None:
        super().__init__(pos_label, name)

    def update(  # type: ignore[override]
        self, det_preds: Any, det_labels: Any, corr_preds: Any, corr_labels: Any, length: Any, *args: Any
    ) -> None:
        """Add a batch of detection scores and correction scores, with the labels of both."""
        columns = (det_preds.argmax(axis=-1), det_labels, corr_preds.argmax(axis=-1), corr_labels)
        for *rows, count in zip(*columns, length, strict=False):
            predicted, label, correction, corrected = (row[1 : 1 + count] for row in rows)
            self._add(label, predicted, (correction * predicted == label * corrected).all())
