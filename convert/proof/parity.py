"""Parity: whether two forms of a model give the same outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from convert.programs.program_feeds import Array
from convert.programs.runners import Runner
from convert.proof.parity_report import TOLERANCE, OutputParity, ParityReport

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
    """Run both on every batch. Outputs that differ in number or shape fail with the report's note."""
    expected: list[list[Array]] = [[] for _ in names]
    actual: list[list[Array]] = [[] for _ in names]
    shapes = []
    for feeds in batches:
        left, right = reference(feeds), candidate(feeds)
        shapes.append(tuple(next(iter(feeds.values())).shape))
        note = _unlike(names, left, right)
        if note:
            return ParityReport(step, tolerance, (), tuple(shapes), note)
        for i, (one, other) in enumerate(zip(left, right, strict=True)):
            expected[i].append(one)
            actual[i].append(other)
    outputs = tuple(_output_parity(n, e, a) for n, e, a in zip(names, expected, actual, strict=True))
    return ParityReport(step, tolerance, outputs, tuple(shapes))


def _unlike(names: Sequence[str], left: Sequence[Array], right: Sequence[Array]) -> str:
    """How outputs differ in number or shape; empty where they don't."""
    if len(left) != len(names) or len(right) != len(names):
        return f"{len(left)} and {len(right)} outputs, expected {len(names)}"
    for name, one, other in zip(names, left, right, strict=True):
        if one.shape != other.shape:
            return f"output {name!r} has shape {list(one.shape)} and then {list(other.shape)}"
    return ""


def _output_parity(name: str, expected: Sequence[Array], actual: Sequence[Array]) -> OutputParity:
    one = np.concatenate([a.ravel() for a in expected])
    other = np.concatenate([a.ravel() for a in actual])
    if one.dtype.kind == "O" or other.dtype.kind == "O":  # texts are 0 apart, or 1
        one, other = np.zeros(one.size), one != other
    one, other = one.astype(np.float64), other.astype(np.float64)
    nan = np.isnan(one)
    # Equal infinities are equal; inf - inf would be NaN.
    with np.errstate(invalid="ignore"):
        difference = np.where(one == other, 0.0, np.abs(one - other))
    norm = float(np.linalg.norm(one) * np.linalg.norm(other))
    return OutputParity(
        name=name,
        max_abs_diff=float(difference.max(initial=0.0)),
        mean_abs_diff=float(difference.mean()) if difference.size else 0.0,
        cosine=float(one @ other) / norm if norm > 0 else float(np.array_equal(one, other)),
        top1_agreement=_top1_agreement(expected, actual),
        largest=_scale(one),
        unknown=float(nan.mean()) if nan.size else 0.0,
    )


def _scale(values: Array) -> float:
    """The largest finite |value|.

    What stands at masked places (-1e4, -1e9, the least float) tells nothing of the others' scale, and is left
    out: a value of that size that occurs again and again.
    """
    sizes = np.abs(values[np.isfinite(values)])
    if sizes.max(initial=0.0) >= _FILL:
        large, counts = np.unique(sizes[sizes >= _FILL], return_counts=True)
        sizes = np.concatenate([sizes[sizes < _FILL], large[counts <= _CHANCE]])
    return float(sizes.max(initial=0.0))


def _top1_agreement(expected: Sequence[Array], actual: Sequence[Array]) -> float | None:
    """Share of rows whose largest entry is at the same place; None for outputs without classes."""
    if any(a.ndim < 2 or a.shape[-1] < 2 or a.dtype.kind != "f" for a in expected):
        return None
    same = [(e.argmax(-1) == a.argmax(-1)).ravel() for e, a in zip(expected, actual, strict=True)]
    return float(np.concatenate(same).mean())
