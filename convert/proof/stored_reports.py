"""Reports as JSON, of which parity.json is made and which come from steps in other processes."""

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
    """The report that `asdict` of one, gone through JSON, was made of."""
    outputs = tuple(OutputParity(**output) for output in fields["outputs"])
    batches = tuple(tuple(shape) for shape in fields["batches"])
    own = {**fields, "outputs": outputs, "batches": batches}
    return ParityReport(**{field.name: own[field.name] for field in dataclass_fields(ParityReport)})


def parse_bounds(fields: Mapping[str, Any]) -> Bounds:
    """The bounds that a stamp has; those before `least_scale` were relative to the scale alone."""
    return Bounds(fields["tolerance"], fields.get("least_scale", 0.0), fields["top1_needed"])


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
