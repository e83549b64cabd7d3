"""Parity reports as JSON, in parity.json and from steps in other processes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from convert.proof.parity_report import Bounds, OutputParity, ParityReport


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
