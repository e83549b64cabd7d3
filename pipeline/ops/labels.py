"""Postprocessing of class scores: the best label, the top k, labels over a threshold, a label per token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipeline.errors import ServingError
from pipeline.models.description import (
    ClassesOutput,
    LabelOutput,
    MultiLabelOutput,
    Output,
    TensorOutput,
    TokensOutput,
    get_class_labels,
)
from pipeline.models.signature import Variable

Array = np.ndarray[Any, np.dtype[Any]]
Answer = dict[str, Any]

_SUM_ERROR = 1e-3  # of probabilities in float16


class OutputPrinter:
    """Turns one output tensor of the model into outputs of the response, such as labels and scores."""

    def __init__(self, fetch: Variable, output: Output, prefix: str, labels: Sequence[str]) -> None:
        """`output` describes the tensor, `prefix` precedes the response names, `labels` are the class names.

        `DescribedFetch` determines when a prefix is needed.
        """
        self._alias = fetch.alias
        self._output = output
        self._prefix = prefix
        names = () if isinstance(output, TensorOutput) else get_class_labels(output, labels)
        self._labels = np.array(names) if names else None

    def build_outputs(self, fetches: Mapping[str, Array]) -> Answer:
        """Return the response outputs by name, from the model's output arrays by tensor name.

        Raises ServingError if the number of classes differs from the number of labels.
        """
        output, fetch = self._output, fetches[self._alias]
        if isinstance(output, TensorOutput):
            return {self._alias: fetch}
        if isinstance(output, LabelOutput):
            return {f"{self._prefix}label": self._chosen(fetch)}
        assert isinstance(
            output, ClassesOutput | MultiLabelOutput | TokensOutput
        )  # others are of texts alone
        parts = self._labelled(output, fetch)
        if isinstance(output, ClassesOutput) and output.chosen:
            parts["label"] = self._chosen(fetches[output.chosen])
        named = {f"{self._prefix}{name}": value for name, value in parts.items()}
        return {**named, self._alias: fetch} if output.raw else named

    def _labelled(self, output: ClassesOutput | MultiLabelOutput | TokensOutput, fetch: Array) -> Answer:
        labels = self._get_class_names(fetch.shape[-1])
        if isinstance(output, TokensOutput):
            return {"label": labels[fetch.argmax(-1)]}
        scores = fetch.reshape(-1, fetch.shape[-1]).astype(np.float32)
        if isinstance(output, MultiLabelOutput):
            return over_threshold(sigmoids(scores, output.activation), labels, output.threshold)
        parts = best(probabilities(scores, output.activation), labels, output.top_k)
        return parts if output.top_k > 1 else {name: parts[name] for name in ("label", "score")}

    def _get_class_names(self, classes: int) -> Array:
        if self._labels is None:
            return np.array([str(number) for number in range(classes)])
        if len(self._labels) != classes:
            raise ServingError(
                f"the model gives {classes} scores in {self._alias!r}, and serving.yml has "
                f"{len(self._labels)} labels"
            )
        return self._labels

    def _chosen(self, fetch: Array) -> Array:
        chosen = fetch.reshape(len(fetch), -1)[:, 0]
        if chosen.dtype.kind in "iu" and self._labels is not None:
            if chosen.size and not 0 <= chosen.min() <= chosen.max() < len(self._labels):
                raise ServingError(f"the model chose class {chosen.max()} of {len(self._labels)} labels")
            return self._labels[chosen]
        return np.array([_decode_label(value) for value in chosen.tolist()])


def answer_shapes(fetch: Variable, output: Output, prefix: str) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return datatype and shape of each response output that `OutputPrinter` makes from an output tensor.

    An empty datatype means the datatype of the tensor.
    """
    raw = {fetch.alias: ("", fetch.shape)}
    if isinstance(output, TensorOutput):
        return raw
    named = {f"{prefix}{name}": shape for name, shape in label_shapes(fetch, output).items()}
    return {**named, **raw} if getattr(output, "raw", False) else named


def label_shapes(fetch: Variable, output: Output) -> Mapping[str, tuple[str, tuple[int, ...]]]:
    """Return datatype and shape of the labels and scores from an output tensor, by name without prefix."""
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {"label": ("BYTES", (-1,))}
    if isinstance(output, MultiLabelOutput):
        shapes = {"labels": ("BYTES", (-1, -1)), "scores": ("FP32", (-1, -1))}
    elif isinstance(output, TokensOutput):
        shapes = {"label": ("BYTES", (-1, -1))}
    elif isinstance(output, ClassesOutput):
        shapes["score"] = ("FP32", (-1,))
        if output.top_k > 1:
            many = (-1, min(output.top_k, fetch.shape[-1]) if fetch.shape[-1] > 0 else -1)
            shapes |= {"labels": ("BYTES", many), "scores": ("FP32", many)}
    return shapes


def best(scores: Array, labels: Array, count: int, threshold: float = 0.0) -> Answer:
    """Return the best label and score of each row, and its `count` best labels and scores.

    The outputs are `label`, `score`, `labels` and `scores`. Labels whose score is below the threshold are
    empty.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    top, names = np.take_along_axis(scores, order, 1), labels[order]
    if threshold > 0:
        passes = top >= threshold
        top, names = np.where(passes, top, np.float32(0)), np.where(passes, names, "")
    return {"label": names[:, 0], "score": top[:, 0], "labels": names, "scores": top}


def over_threshold(scores: Array, labels: Array, threshold: float, top_k: int | None = None) -> Answer:
    """Return `labels` and `scores` over the threshold for each row, best first.

    Shorter rows are padded with empty labels to the length of the longest row.
    """
    order = np.argsort(-scores, axis=1, kind="stable")[:, :top_k]
    sorted_scores = np.take_along_axis(scores, order, 1)
    passes = sorted_scores >= threshold
    longest = int(passes.sum(1).max(initial=0))
    shown = passes[:, :longest]
    names = np.where(shown, labels[order][:, :longest], "")
    return {"labels": names, "scores": np.where(shown, sorted_scores[:, :longest], np.float32(0))}


def probabilities(scores: Array, activation: str) -> Array:
    """Turn scores [rows, classes] into probabilities over the classes, by softmax.

    If `activation` is "none", the scores are kept. If it is "auto", rows that already are probabilities are
    kept.
    """
    if activation == "none":
        return scores
    with np.errstate(over="ignore", invalid="ignore"):  # of infinite logits
        powers = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax = np.asarray(powers / powers.sum(axis=1, keepdims=True))
        if activation == "softmax":
            return softmax
        # Row by row: the answer to one must not depend on another.
        done = (scores >= 0).all(axis=1) & (np.abs(scores.sum(axis=1) - 1) < _SUM_ERROR)
        return np.where(done[:, None], scores, softmax)


def sigmoids(scores: Array, activation: str) -> Array:
    """Turn scores into an independent probability for each class by sigmoid.

    If `activation` is "none", the scores are kept.
    """
    if activation == "none":
        return scores
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-scores)), np.float32)


def _decode_label(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
