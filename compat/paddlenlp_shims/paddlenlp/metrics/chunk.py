"""Precision, recall and F1 of chunks of tokens, such as the names in a text."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..utils.log import logger
from .metric import Metric, like, precision_recall_f1, to_array

Chunk = tuple[int, str, int, int]  # sentence, type, first and last token


class ChunkEvaluator(Metric):
    """Computes precision, recall and F1 of chunks from token labels such as B-PER and I-PER.

    suffix: whether B, I, E and S are at the end of a label.
    """

    def __init__(self, label_list: Sequence[str], suffix: bool = False) -> None:
        self.id2label_dict = dict(enumerate(label_list))
        self.suffix = suffix
        self._name = ("precision", "recall", "f1")
        self.reset()

    def reset(self) -> None:
        self.num_infer_chunks: Any = 0
        self.num_label_chunks: Any = 0
        self.num_correct_chunks: Any = 0

    def compute(self, lengths: Any, predictions: Any, labels: Any, dummy: Any = None) -> Any:
        """Return the numbers of chunks inferred, labelled and correct in a batch of label ids.

        The older form of the call, with `inputs` as the first argument, works, too.
        """
        if dummy is not None:
            logger.warning("ChunkEvaluator.compute takes lengths, predictions and labels, without inputs")
            lengths, predictions, labels = predictions, labels, dummy
        predicted, expected = (
            [
                [self.id2label_dict.get(int(number), "O") for number in row[: int(length)]]
                for row, length in zip(to_array(numbers), to_array(lengths), strict=False)
            ]
            for numbers in (predictions, labels)
        )
        inferred, labelled = get_chunks(predicted, self.suffix), get_chunks(expected, self.suffix)
        sizes = (len(inferred), len(labelled), len(inferred & labelled))
        return tuple(like(predictions, np.array([size])) for size in sizes)

    def update(self, num_infer_chunks: Any, num_label_chunks: Any, num_correct_chunks: Any) -> None:
        """Add the numbers of chunks that `compute` returned for a batch."""
        names = ("num_infer_chunks", "num_label_chunks", "num_correct_chunks")
        values = (num_infer_chunks, num_label_chunks, num_correct_chunks)
        for name, value in zip(names, values, strict=True):
            if not isinstance(value, (int, float, np.int64, np.ndarray)):
                raise ValueError(f"The '{name}' must be a number or a numpy ndarray.")
            setattr(self, name, getattr(self, name) + value)

    def accumulate(self) -> tuple[float, float, float]:
        """Return precision, recall and F1 of all batches."""
        counts = (self.num_correct_chunks, self.num_infer_chunks, self.num_label_chunks)
        return precision_recall_f1(*(count.item() if hasattr(count, "item") else count for count in counts))


def get_chunks(sentences: Sequence[Sequence[str]], suffix: bool = False) -> set[Chunk]:
    """Return the chunks in sentences of token labels, by the rules of seqeval 1.2.2."""
    chunks = set()
    for number, labels in enumerate(sentences):
        tag, kind, begin = "O", "", 0
        for place, label in enumerate([*labels, "O"]):
            next_tag, next_kind = _split_label(label, suffix)
            if _ends(tag, next_tag, kind, next_kind):
                chunks.add((number, kind, begin, place - 1))
            if _starts(tag, next_tag, kind, next_kind):
                begin = place
            tag, kind = next_tag, next_kind
    return chunks


def _split_label(label: str, suffix: bool) -> tuple[str, str]:
    marks = ("-B", "-I", "-E", "-S") if suffix else ("B-", "I-", "E-", "S-")
    is_marked = label.endswith(marks) if suffix else label.startswith(marks)
    if not is_marked and label not in ("O", "B", "I", "E", "S"):
        warnings.warn(f"{label} seems not to be NE tag.", stacklevel=2)
    if suffix:
        return label[-1], label[:-1].rsplit("-", maxsplit=1)[0] or "_"
    return label[0], label[1:].split("-", maxsplit=1)[-1] or "_"


def _ends(tag: str, next_tag: str, kind: str, next_kind: str) -> bool:
    """Return whether a chunk ends between two labels. tag: B, I, E, S or O; kind: such as PER."""
    is_inside = tag not in ("O", ".")
    return (
        tag in ("E", "S")
        or (tag in ("B", "I") and next_tag in ("B", "S", "O"))
        or (is_inside and kind != next_kind)
    )


def _starts(tag: str, next_tag: str, kind: str, next_kind: str) -> bool:
    """Return whether a chunk starts between two labels. tag: B, I, E, S or O; kind: such as PER."""
    is_inside = next_tag not in ("O", ".")
    return (
        next_tag in ("B", "S")
        or (tag in ("E", "S", "O") and next_tag in ("E", "I"))
        or (is_inside and kind != next_kind)
    )
