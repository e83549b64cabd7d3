"""Parity: whether two forms of a model give the same outputs, and whether padding leaves them as they are."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import numpy as np

from convert.programs.feeds import Array, Feeds
from pipeline.errors import ConversionError, ParityError
from pipeline.serving_model import FeedPadding, Padding

TOLERANCE = 1e-4

Runner = Callable[[Mapping[str, Array]], Sequence[Array]]
"""Runs a model: feeds by name in, outputs in the order of its fetches out."""


@dataclass(frozen=True)
class OutputParity:
    """How far one output is from its reference, over all batches; `largest` |value| that the latter had."""

    name: str
    max_abs_diff: float
    mean_abs_diff: float
    cosine: float
    top1_agreement: float | None
    largest: float = 0.0


@dataclass(frozen=True)
class Bounds:
    """How far an output may be off: `tolerance` is absolute, or `relative` to its largest value.

    `top1_needed` is the share of rows whose largest entry has to be at the same place.
    """

    tolerance: float = TOLERANCE
    relative: bool = False
    top1_needed: float = 0.0


@dataclass(frozen=True)
class ParityReport:
    """One comparison. `batches` are the shapes of the first feed of each batch that was run; `note` tells why
    outputs could not be compared at all, if so; `entailment` is that class of an NLI model; the others are
    as in Bounds."""

    step: str
    tolerance: float
    outputs: tuple[OutputParity, ...]
    batches: tuple[tuple[int, ...], ...]
    note: str = ""
    entailment: int | None = None
    relative: bool = False
    top1_needed: float = 0.0

    @property
    def max_abs_diff(self) -> float:
        return max((output.max_abs_diff for output in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        # NaN compares as false, so it fails.
        return not self.note and all(self.within(output) for output in self.outputs)

    @property
    def failure(self) -> str:
        """What is wrong, with the first output that is off; empty where nothing is."""
        if self.passed:
            return ""
        why = self.note
        if not why:
            why = self._excess(next(output for output in self.outputs if not self.within(output)))
        return f"{self.step}: {why}"

    def within(self, output: OutputParity) -> bool:
        return self._near(output) and self._same_classes(output)

    def _near(self, output: OutputParity) -> bool:
        return output.max_abs_diff <= self.tolerance * (output.largest if self.relative else 1)

    def _same_classes(self, output: OutputParity) -> bool:
        return output.top1_agreement is None or output.top1_agreement >= self.top1_needed

    def _excess(self, output: OutputParity) -> str:
        if self._near(output):
            return (
                f"output {output.name!r} has the same top-1 in {output.top1_agreement:.1%} of the rows, "
                f"under the {self.top1_needed:.1%} asked for"
            )
        of_what = f" of its largest value {output.largest:.3g}" if self.relative else ""
        return (
            f"output {output.name!r} is off by {output.max_abs_diff:.3g}, over the tolerance of "
            f"{self.tolerance:g}{of_what}"
        )

    def require(self) -> None:
        """Raise FailedParity, a ParityError, naming the output that is off."""
        if not self.passed:
            raise FailedParity(f"{self.failure}; nothing was written.", self)


class FailedParity(ParityError):
    """A comparison that stopped a conversion, with its figures."""

    def __init__(self, message: str, report: ParityReport) -> None:
        super().__init__(message)
        self.report = report


def held_to(report: ParityReport, bounds: Bounds) -> ParityReport:
    """The same figures, judged by these bounds."""
    return replace(report, **asdict(bounds))


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


def padding_parity(
    runner: Runner,
    names: Sequence[str],
    rows: Sequence[Feeds],
    padding: Mapping[str, FeedPadding],
    tolerance: float = TOLERANCE,
    step: str = "padding",
) -> tuple[ParityReport, dict[str, int]]:
    """Compare rows run alone with the same rows in one batch, and each padded by itself.

    `rows` are batches of one, of different lengths. Also returns, by output, the axis along which an
    output grows with its row, and so is to be cut back. Raises ConversionError when no such axis is clear.
    """
    alone = [runner(row) for row in rows]
    cuts = {}
    for i, name in enumerate(names):
        axis = _growing_axis(name, [output[i] for output in alone])
        if axis is not None:
            cuts[name] = axis
    together = runner(pad_rows(rows, padding))
    other: list[Sequence[Array]] = [
        [output[n : n + 1] if output.ndim else output for output in together] for n in range(len(rows))
    ]
    if padding:
        other += [runner(pad_rows([row], padding, lengths=_longest(rows, padding))) for row in rows]
    expected = [*alone, *alone][: len(other)]
    cut = [_cut_back(names, outputs, own, cuts) for outputs, own in zip(other, expected, strict=True)]
    left, right = iter(expected), iter(cut)
    fed = [*rows, *rows][: len(other)]
    report = compare(step, names, lambda _: next(left), lambda _: next(right), fed, tolerance)
    return report, cuts


def pad_rows(
    rows: Sequence[Mapping[str, Array]],
    padding: Mapping[str, FeedPadding],
    lengths: Mapping[str, int] | None = None,
) -> Feeds:
    """Fill each row up along its declared axis, to the longest unless to `lengths`, and join them.

    Raises ConversionError where rows still differ in shape, for a feed that isn't in `padding`.
    """
    lengths = lengths or _longest(rows, padding)
    joined = {}
    for name in rows[0]:
        arrays = [row[name] for row in rows]
        if name in padding:
            axis, value = padding[name].axis, padding[name].value
            arrays = [_pad(array, axis, lengths[name], value) for array in arrays]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            raise ConversionError(
                f"rows of {name!r} are of different length, but only {', '.join(padding)} may be padded; "
                f"declare {name!r}, too."
            )
        joined[name] = np.concatenate(arrays)
    return joined


def padding_of(cuts: Mapping[str, int], feeds: Mapping[str, FeedPadding]) -> Padding:
    """What serving.yml declares once padding was proven safe."""
    return Padding(feeds=dict(feeds), fetches=dict(cuts))


def write_reports(path: Path, reports: Iterable[ParityReport]) -> None:
    """Store reports as JSON."""
    path.write_text(json.dumps(summaries(reports), indent=2) + "\n", encoding="utf-8")


def report_of(fields: Mapping[str, Any]) -> ParityReport:
    """The report that `asdict` of one, gone through JSON, was made of."""
    outputs = tuple(OutputParity(**output) for output in fields["outputs"])
    batches = tuple(tuple(shape) for shape in fields["batches"])
    own = {**fields, "outputs": outputs, "batches": batches}
    return ParityReport(**{field.name: own[field.name] for field in dataclass_fields(ParityReport)})


def summaries(reports: Iterable[ParityReport]) -> list[dict[str, Any]]:
    """Reports as JSON can hold them: null for what is no number."""
    return [
        {**asdict(r), "outputs": [_finite(asdict(o)) for o in r.outputs], "passed": r.passed}
        | _finite({"max_abs_diff": r.max_abs_diff})
        | {"failure": r.failure}
        for r in reports
    ]


def _finite(figures: dict[str, Any]) -> dict[str, Any]:
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in figures.items()
    }


def _unlike(names: Sequence[str], left: Sequence[Array], right: Sequence[Array]) -> str:
    """How outputs differ in number or shape; empty where they don't."""
    if len(left) != len(names) or len(right) != len(names):
        return f"{len(left)} and {len(right)} outputs, expected {len(names)}"
    for name, one, other in zip(names, left, right, strict=True):
        if one.shape != other.shape:
            return f"output {name!r} has shape {list(one.shape)} and then {list(other.shape)}"
    return ""


def _cut_back(
    names: Sequence[str], outputs: Sequence[Array], expected: Sequence[Array], cuts: Mapping[str, int]
) -> list[Array]:
    """The outputs of a padded row, as long as those of the row alone."""
    return [
        output.take(range(min(output.shape[cuts[name]], own.shape[cuts[name]])), axis=cuts[name])
        if name in cuts and output.ndim == own.ndim
        else output
        for name, output, own in zip(names, outputs, expected, strict=True)
    ]


def _longest(rows: Sequence[Mapping[str, Array]], padding: Mapping[str, FeedPadding]) -> dict[str, int]:
    return {name: max(row[name].shape[rule.axis] for row in rows) for name, rule in padding.items()}


def _pad(array: Array, axis: int, length: int, value: float) -> Array:
    widths = [(0, 0)] * array.ndim
    widths[axis] = (0, length - array.shape[axis])
    return np.pad(array, widths, constant_values=value)


def _growing_axis(name: str, outputs: Sequence[Array]) -> int | None:
    if len({output.ndim for output in outputs}) != 1:
        raise ConversionError(f"output {name!r} changes its rank with its input, so rows can't be padded.")
    axes = [a for a in range(1, outputs[0].ndim) if len({output.shape[a] for output in outputs}) > 1]
    if len(axes) > 1:
        raise ConversionError(
            f"output {name!r} grows along axes {axes} with its input; only one can be cut back, so padding "
            "can't be declared."
        )
    return axes[0] if axes else None


def _output_parity(name: str, expected: Sequence[Array], actual: Sequence[Array]) -> OutputParity:
    one = np.concatenate([a.ravel() for a in expected])
    other = np.concatenate([a.ravel() for a in actual])
    if one.dtype.kind == "O" or other.dtype.kind == "O":  # texts are 0 apart, or 1
        one, other = np.zeros(one.size), one != other
    one, other = one.astype(np.float64), other.astype(np.float64)
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
        largest=float(np.abs(one[np.isfinite(one)]).max(initial=0.0)),
    )


def _top1_agreement(expected: Sequence[Array], actual: Sequence[Array]) -> float | None:
    """Share of rows whose largest entry is at the same place; None for outputs without classes."""
    if any(a.ndim < 2 or a.shape[-1] < 2 or a.dtype.kind != "f" for a in expected):
        return None
    same = [(e.argmax(-1) == a.argmax(-1)).ravel() for e, a in zip(expected, actual, strict=True)]
    return float(np.concatenate(same).mean())
