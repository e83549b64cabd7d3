"""Parity reports: how far outputs are off, whether that is within bounds, and their form in JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from convert.programs.program_feeds import OTHER_INPUTS
from pipeline.errors import ParityError

TOLERANCE = 1e-4
MIN_SCALE = 1.0


@dataclass(frozen=True)
class OutputParity:
    """How far one output is from its reference, over all batches."""

    name: str
    max_abs_diff: float
    mean_abs_diff: float
    cosine: float
    top1_agreement: float | None
    largest: float = 0.0  # greatest |value| of the reference, its scale
    unknown: float = 0.0  # share of NaN in the reference, with which nothing can be compared


@dataclass(frozen=True)
class Bounds:
    """How far an output may be off: by `tolerance` times its scale, the largest |value| of the reference."""

    tolerance: float = TOLERANCE
    least_scale: float = MIN_SCALE  # smaller scales count as this: an absolute tolerance for small outputs
    top1_needed: float = 0.0  # share of rows whose largest entries must have equal indices


@dataclass(frozen=True)
class ParityReport:
    """The figures of one comparison, with the bounds that judge them."""

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
        return max((output.max_abs_diff for output in self.outputs), default=0.0)

    @property
    def passed(self) -> bool:
        # NaN compares as false, so it fails.
        return not self.note and all(self.within(output) for output in self.outputs)

    @property
    def failure(self) -> str:
        """The error of the first output that is off; empty for a passed report."""
        if self.passed:
            return ""
        why = self.note
        if not why:
            why = self._excess(next(output for output in self.outputs if not self.within(output)))
        return f"{self.step}: {why}"

    def within(self, output: OutputParity) -> bool:
        return self._near(output) and self._same_classes(output)

    def _near(self, output: OutputParity) -> bool:
        return output.max_abs_diff <= self.allowed(output)

    def allowed(self, output: OutputParity) -> float:
        """Return how far this output may be off."""
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
        """Raise FailedParity, a ParityError, naming the output that is off."""
        if not self.passed:
            raise FailedParity(f"{self.failure}; nothing was written.", self)


class FailedParity(ParityError):
    """A comparison that stopped a conversion, with its figures."""

    def __init__(self, message: str, report: ParityReport) -> None:
        super().__init__(message)
        self.report = report


def judge_by(report: ParityReport, bounds: Bounds) -> ParityReport:
    """Return the figures of a report, judged by other bounds."""
    return replace(report, **asdict(bounds))


def write_reports(path: Path, reports: Iterable[ParityReport]) -> None:
    """Store reports as JSON."""
    path.write_text(json.dumps(summaries(reports), indent=2) + "\n", encoding="utf-8")


def parse_report(fields: Mapping[str, Any]) -> ParityReport:
    """Parse a report that `asdict` and JSON have serialised."""
    outputs = tuple(OutputParity(**output) for output in fields["outputs"])
    batches = tuple(tuple(shape) for shape in fields["batches"])
    values = {**fields, "outputs": outputs, "batches": batches}
    return ParityReport(**{field.name: values[field.name] for field in dataclass_fields(ParityReport)})


def parse_bounds(fields: Mapping[str, Any]) -> Bounds:
    """Parse the bounds of a stamp; older stamps have no `least_scale`, which then is 0."""
    return Bounds(fields["tolerance"], fields.get("least_scale", 0.0), fields["top1_needed"])


def summaries(reports: Iterable[ParityReport]) -> list[dict[str, Any]]:
    """Return reports as JSON values, with null for NaN and infinities."""
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
