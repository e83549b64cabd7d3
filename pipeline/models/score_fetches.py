"""Finds the fetch with scores of classes, and the operator that makes a fetch."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.models.onnx_file import inspect_onnx
from pipeline.models.serving_model import ServingModel
from pipeline.models.signature import Variable


def find_producer(model: ServingModel, fetch: Variable) -> str:
    """The operator that makes a fetch; empty where that is not known."""
    return inspect_onnx(model.program).makers.get(fetch.name, "") if model.format == "onnx" else ""


def _may_be_scores(fetch: Variable) -> bool:
    return len(fetch.shape) in (2, 3) and fetch.dtype.startswith(("float", "bfloat"))


def find_score_fetch(fetches: Sequence[Variable], labels: Sequence[str]) -> Variable | None:
    """The only fetch with a score for each class; None where it can't be told."""
    floats = [fetch for fetch in fetches if _may_be_scores(fetch)]
    if labels:
        candidates = [f for f in floats if f.shape[-1] == len(labels)] or [
            f for f in floats if f.shape[-1] == -1
        ]
    else:
        candidates = [f for f in floats if len(f.shape) == 2 and f.shape[-1] not in (-1, 1)]
    return candidates[0] if len(candidates) == 1 else None
