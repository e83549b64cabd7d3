"""Parity: the comparison of the outputs of two forms of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from convert.proof.parity_report import TOLERANCE, OutputParity, ParityReport

if TYPE_CHECKING:
    from convert.programs.program_feeds import Array
    from convert.programs.runners import Runner

_FILL = 1e4
_CHANCE = 16  # times that the same row may have been run


def compare(
    step: str,
    names: Sequence[str],
    reference: Runner,
    candidate: Runner,
    batches: Iterable[Mapping[str, Array]],
    tolerance: float = TOLERANCE,
) -> ParityReport:
    """Run both runners on every batch. Outputs of different number or shape fail with the report's note."""
    expected: list[list[Array]] = [[] for _ in names]
    actual: list[list[Array]] = [[] for _ in names]
    shapes = []
    for feeds in batches:
        reference_outputs, candidate_outputs = reference(feeds), candidate(feeds)
        shapes.append(tuple(next(iter(feeds.values())).shape))
        note = _describe_mismatch(names, reference_outputs, candidate_outputs)
        if note:
            return ParityReport(step, tolerance, (), tuple(shapes), note)
        for i, (reference_output, candidate_output) in enumerate(
            zip(reference_outputs, candidate_outputs, strict=True)
        ):
            expected[i].append(reference_output)
            actual[i].append(candidate_output)
    outputs = tuple(_output_parity(n, e, a) for n, e, a in zip(names, expected, actual, strict=True))
    return ParityReport(step, tolerance, outputs, tuple(shapes))


def _describe_mismatch(names: Sequence[str], reference: Sequence[Array], candidate: Sequence[Array]) -> str:
    """Describe the difference of outputs in number or shape; empty if there is none."""
    if len(reference) != len(names) or len(candidate) != len(names):
        return f"{len(reference)} and {len(candidate)} outputs, expected {len(names)}"
    for name, expected, actual in zip(names, reference, candidate, strict=True):
        if expected.shape != actual.shape:
            return f"output {name!r} has shape {list(expected.shape)} and then {list(actual.shape)}"
    return ""


def _output_parity(name: str, expected: Sequence[Array], actual: Sequence[Array]) -> OutputParity:
    reference = np.concatenate([a.ravel() for a in expected])
    candidate = np.concatenate([a.ravel() for a in actual])
    if reference.dtype.kind == "O" or candidate.dtype.kind == "O":  # texts are 0 apart, or 1
        reference, candidate = np.zeros(reference.size), reference != candidate
    reference, candidate = reference.astype(np.float64), candidate.astype(np.float64)
    nan = np.isnan(reference)
    # Equal infinities are equal; inf - inf would be NaN.
    with np.errstate(invalid="ignore"):
        difference = np.where(reference == candidate, 0.0, np.abs(reference - candidate))
    norm = float(np.linalg.norm(reference) * np.linalg.norm(candidate))
    return OutputParity(
        name=name,
        max_abs_diff=float(difference.max(initial=0.0)),
        mean_abs_diff=float(difference.mean()) if difference.size else 0.0,
        cosine=float(reference @ candidate) / norm
        if norm > 0
        else float(np.array_equal(reference, candidate)),
        top1_agreement=_top1_agreement(expected, actual),
        largest=_scale(reference),
        unknown=float(nan.mean()) if nan.size else 0.0,
    )


def _scale(values: Array) -> float:
    """Return the largest finite |value|.

    Fill values of masked positions (-1e4, -1e9, the lowest float) are no measure of the scale. A large value
    that occurs again and again counts as a fill value and is ignored.
    """
    sizes = np.abs(values[np.isfinite(values)])
    if sizes.max(initial=0.0) >= _FILL:
        large, counts = np.unique(sizes[sizes >= _FILL], return_counts=True)
        sizes = np.concatenate([sizes[sizes < _FILL], large[counts <= _CHANCE]])
    return float(sizes.max(initial=0.0))


def _top1_agreement(expected: Sequence[Array], actual: Sequence[Array]) -> float | None:
    """Return the share of rows whose largest entries have equal indices; None for outputs without classes."""
    if any(a.ndim < 2 or a.shape[-1] < 2 or a.dtype.kind != "f" for a in expected):
        return None
    same = [(e.argmax(-1) == a.argmax(-1)).ravel() for e, a in zip(expected, actual, strict=True)]
    return float(np.concatenate(same).mean())
