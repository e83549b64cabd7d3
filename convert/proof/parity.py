"""Compares the outputs of two copies of a model on the same inputs; writes and reads the reports as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convert.programs.program_feeds import OTHER_INPUTS
from pipeline.errors import ParityError

if TYPE_CHECKING:
    from convert.programs.program_feeds import Array
    from convert.programs.runners import Runner


TOLERANCE = 1e-4
MIN_SCALE = 1.0


@dataclass(frozen=True)
class OutputParity:
    """Differences between one output of a model and the reference model's output, over all batches."""

    name: str
    max_abs_diff: float
    mean_abs_diff: float
    cosine: float
    top1_agreement: float | None
    largest: float = 0.0  # greatest |value| of the reference, its scale
    unknown: float = 0.0  # share of NaN in the reference, with which nothing can be compared


@dataclass(frozen=True)
class Bounds:
    """Allowed differences of outputs, relative to the largest absolute value of the reference output."""

    tolerance: float = TOLERANCE
    least_scale: float = MIN_SCALE  # smaller scales count as this: an absolute tolerance for small outputs
    top1_needed: float = 0.0  # share of rows whose largest entries must have equal indices


@dataclass(frozen=True)
class ParityReport:
    """Result of comparing two models: figures for each output, and the bounds by which they are judged."""

    step: str
    tolerance: float
    outputs: tuple[OutputParity, ...]
    batches: tuple[tuple[int, ...], ...]  # shape of the first feed of each batch
    note: str = ""  # why outputs could not be compared
    entailment: int | None = None  # that class of an NLI model
    least_scale: float = MIN_SCALE
    top1_needed: float = 0.0

    @property
    def max_abs_diff(self) -> float:
        """The largest absolute difference of any output; 0 without outputs."""
        return max((output.max_abs_diff for output in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        """Whether outputs could be compared and all are within the bounds."""
        # NaN compares as false, so it fails.
        return not self.note and all(self.within(output) for output in self.outputs)

    @property
    def failure(self) -> str:
        """The reason of a failed comparison, with the first output out of bounds; empty if it has passed."""
        if self.passed:
            return ""
        why = self.note
        if not why:
            why = self._excess(next(output for output in self.outputs if not self.within(output)))
        return f"{self.step}: {why}"

    def within(self, output: OutputParity) -> bool:
        """Return whether an output's differences and top-1 agreement are within the report's bounds."""
        return self._near(output) and self._same_classes(output)

    def _near(self, output: OutputParity) -> bool:
        return output.max_abs_diff <= self.allowed(output)

    def allowed(self, output: OutputParity) -> float:
        """Return the largest absolute difference that this output may have."""
        return self.tolerance * max(output.largest, self.least_scale)

    def _same_classes(self, output: OutputParity) -> bool:
        return output.top1_agreement is None or output.top1_agreement >= self.top1_needed

    def _excess(self, output: OutputParity) -> str:
        if output.unknown:
            return (
                f"output {output.name!r} of the original is nan in {output.unknown:.1%} of its values, so "
                f"nothing can be compared; {OTHER_INPUTS}"
            )
        if self._near(output):
            return (
                f"output {output.name!r} has the same top-1 in {output.top1_agreement:.1%} of the rows, "
                f"under the {self.top1_needed:.1%} asked for"
            )
        if math.isnan(output.max_abs_diff):
            return f"output {output.name!r} is nan where that of the original is not"
        top1 = "" if output.top1_agreement is None else f", top-1 {output.top1_agreement:.1%}"
        scale = f"largest value {output.largest:.3g}"
        allowed, scale_remark = "", f"{scale}, "
        if output.largest > self.least_scale:
            allowed, scale_remark = f" of its {scale}, that is {self.allowed(output):.3g}", ""
        return (
            f"output {output.name!r} is off by {output.max_abs_diff:.3g}, over the tolerance of "
            f"{self.tolerance:g}{allowed} (--tolerance; {scale_remark}cosine {output.cosine:.6f}{top1})"
        )

    def require(self) -> None:
        """Raise FailedParity, a ParityError that names the output out of bounds, if the report has failed."""
        if not self.passed:
            raise FailedParity(f"{self.failure}; nothing was written.", self)


class FailedParity(ParityError):
    """Raised when outputs differ more than the bounds allow.

    It carries the report, and stops a conversion.
    """

    def __init__(self, message: str, report: ParityReport) -> None:
        super().__init__(message)
        self.report = report


def judge_by(report: ParityReport, bounds: Bounds) -> ParityReport:
    """Return a copy of the report with other bounds, which determine whether it has passed."""
    return replace(report, **asdict(bounds))


def write_reports(path: Path, reports: Iterable[ParityReport]) -> None:
    """Write comparison reports to a JSON file."""
    path.write_text(json.dumps(summaries(reports), indent=2) + "\n", encoding="utf-8")


def parse_report(fields: Mapping[str, Any]) -> ParityReport:
    """Build a report from the dictionary that `asdict` and JSON made of a report."""
    outputs = tuple(OutputParity(**output) for output in fields["outputs"])
    batches = tuple(tuple(shape) for shape in fields["batches"])
    values = {**fields, "outputs": outputs, "batches": batches}
    return ParityReport(**{field.name: values[field.name] for field in dataclass_fields(ParityReport)})


def parse_bounds(fields: Mapping[str, Any]) -> Bounds:
    """Build bounds from the dictionary in convert.json.

    Older files have no `least_scale`, which is then 0.
    """
    return Bounds(fields["tolerance"], fields.get("least_scale", 0.0), fields["top1_needed"])


def summaries(reports: Iterable[ParityReport]) -> list[dict[str, Any]]:
    """Return reports as dictionaries for JSON, with null for NaN and infinities."""
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
    """Run two models on every batch and return a report of their output differences.

    step: the report's name. names: the outputs, in order. reference, candidate: functions that run a model.
    If the outputs differ in number or shape, the report has failed, and has a note instead of figures.
    """
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
    """Return a sentence about outputs that differ in number or shape; empty if number and shapes agree."""
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
    """Return the largest finite absolute value of an array, without fill values of masked positions.

    Such fill values (-1e4, -1e9, the lowest float) say nothing about the scale. A large value that occurs
    many times counts as a fill value.
    """
    sizes = np.abs(values[np.isfinite(values)])
    if sizes.max(initial=0.0) >= _FILL:
        large, counts = np.unique(sizes[sizes >= _FILL], return_counts=True)
        sizes = np.concatenate([sizes[sizes < _FILL], large[counts <= _CHANCE]])
    return float(sizes.max(initial=0.0))


def _top1_agreement(expected: Sequence[Array], actual: Sequence[Array]) -> float | None:
    """Return the share of rows with the same index of the largest entry; None for outputs without classes."""
    if any(a.ndim < 2 or a.shape[-1] < 2 or a.dtype.kind != "f" for a in expected):
        return None
    same = [(e.argmax(-1) == a.argmax(-1)).ravel() for e, a in zip(expected, actual, strict=True)]
    return float(np.concatenate(same).mean())
