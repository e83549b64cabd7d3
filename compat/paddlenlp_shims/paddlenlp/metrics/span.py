"""Precision, recall and F1 of text spans from probabilities of their starts and ends, as UIE finds them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .metric import Metric, precision_recall_f1, to_array


class SpanEvaluator(Metric):
    """Computes precision, recall and F1 of spans whose start and end probabilities exceed a limit."""

    def __init__(self, limit: float = 0.5) -> None:
        self.limit = limit
        self._name = ("precision", "recall", "f1")
        self.reset()

    def reset(self) -> None:
        self.num_infer_spans = 0
        self.num_label_spans = 0
        self.num_correct_spans = 0

    def compute(self, start_probs: Any, end_probs: Any, gold_start_ids: Any, gold_end_ids: Any) -> Any:
        """Return the numbers of correct, inferred and labelled spans in a batch of probabilities."""
        columns = (start_probs, end_probs, gold_start_ids, gold_end_ids)
        places = [[(row > self.limit).nonzero()[0].tolist() for row in to_array(rows)] for rows in columns]
        counts = [self.eval_span(*row) for row in zip(*places, strict=False)]
        return tuple(sum(column) for column in zip(*counts, strict=True)) or (0, 0, 0)

    def eval_span(
        self,
        predict_start_ids: Sequence[int],
        predict_end_ids: Sequence[int],
        label_start_ids: Sequence[int],
        label_end_ids: Sequence[int],
    ) -> tuple[int, int, int]:
        """Return the numbers of correct, inferred and labelled spans in one text."""
        inferred, labelled = (
            get_span(predict_start_ids, predict_end_ids),
            get_span(label_start_ids, label_end_ids),
        )
        # Labelled spans may share a start or an end.
        count = max(len(label_start_ids), len(label_end_ids))
        return len(inferred & labelled), len(inferred), count

    def update(self, num_correct_spans: int, num_infer_spans: int, num_label_spans: int) -> None:
        """Add the numbers of spans that `compute` returned for a batch."""
        self.num_infer_spans += num_infer_spans
        self.num_label_spans += num_label_spans
        self.num_correct_spans += num_correct_spans

    def accumulate(self) -> tuple[float, float, float]:
        """Return precision, recall and F1 of all batches."""
        return precision_recall_f1(self.num_correct_spans, self.num_infer_spans, self.num_label_spans)


def get_span(start_ids: Sequence[int], end_ids: Sequence[int]) -> set[tuple[int, int]]:
    """Return the (start, end) spans of token positions.

    An end is paired with the last start at or before it. A start is paired with only one end.
    """
    starts, ends = sorted(start_ids), sorted(end_ids)
    pairs: dict[int, int] = {}
    start = end = 0
    while start < len(starts) and end < len(ends):
        if starts[start] <= ends[end]:
            pairs[ends[end]] = starts[start]
            end += starts[start] == ends[end]
            start += 1
        else:
            end += 1
    return {(first, last) for last, first in pairs.items()}
