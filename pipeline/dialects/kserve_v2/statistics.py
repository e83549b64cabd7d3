"""The statistics of a model as Triton tells them, from our own figures.

A service's are those of all its requests, whichever door they came through; its queue and compute times are
the sums over its Ops, its executions those of the Op that answers. An Op's are those of all it did.
"""

from __future__ import annotations

from typing import Any

from pipeline.dialects.kserve.models import KServeModel, KServeModels, version_number
from pipeline.dialects.kserve.refusals import KServeRefusal
from pipeline.errors import UnknownVersion
from pipeline.front.metrics.figures import OpFigures, RunFigures
from pipeline.front.scheduler.scheduler import Scheduler


def model_stats(
    scheduler: Scheduler, models: KServeModels, name: str = "", version: str = ""
) -> dict[str, Any]:
    """The statistics of one model, or of all that are loaded. Raises KServeRefusal, in words of its own."""
    if not name:
        return {"model_stats": [statistics(scheduler, models, model) for model in models.loaded()]}
    if version:
        version_number(version)
    try:
        model = models.find(name, version)
    except UnknownVersion:
        raise KServeRefusal(f"requested model version is not available for model '{name}'") from None
    except KServeRefusal:
        raise KServeRefusal(f"requested model '{name}' is not available") from None
    return {"model_stats": [statistics(scheduler, models, model)]}


def statistics(scheduler: Scheduler, models: KServeModels, model: KServeModel) -> dict[str, Any]:
    """One element of `model_stats`."""
    of_ops, requests = scheduler.metrics.of_ops, scheduler.requests(model.key)
    if requests is None:
        return _of_op(model, of_ops[model.op])
    answering, ops = of_ops[models.answering_op(model)], [of_ops[op] for op in models.ops(model)]
    total = RunFigures()
    for op in ops:
        total.input_ns += op.shares.input_ns
        total.infer_ns += op.shares.infer_ns
        total.output_ns += op.shares.output_ns
    total.count = requests.succeeded
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": int(requests.last_s * 1e3),
        "inference_count": requests.rows,
        "execution_count": answering.runs,
        "inference_stats": {
            "success": _duration(requests.succeeded, int(requests.succeeded_s * 1e9)),
            "fail": _duration(requests.failed, int(requests.failed_s * 1e9)),
            "queue": _duration(requests.succeeded, sum(op.queued_ns for op in ops)),
            **_computed(total),
            **_NO_CACHE,
        },
        "response_stats": {},
        "batch_stats": _batches(answering),
        "memory_usage": [],
    }


def _of_op(model: KServeModel, op: OpFigures) -> dict[str, Any]:
    shares = op.shares
    succeeded = shares.count - op.failed
    took_ns = op.queued_ns + shares.input_ns + shares.infer_ns + shares.output_ns
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": op.last_ms,
        "inference_count": op.rows,
        "execution_count": op.runs,
        "inference_stats": {
            "success": _duration(succeeded, took_ns),
            "fail": _duration(op.failed, 0),
            "queue": _duration(op.queued, op.queued_ns),
            **_computed(shares),
            **_NO_CACHE,
        },
        "response_stats": {},
        "batch_stats": _batches(op),
        "memory_usage": [],
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


_NO_CACHE = {"cache_hit": _duration(0, 0), "cache_miss": _duration(0, 0)}


def _computed(run: RunFigures) -> dict[str, Any]:
    return {
        "compute_input": _duration(run.count, run.input_ns),
        "compute_infer": _duration(run.count, run.infer_ns),
        "compute_output": _duration(run.count, run.output_ns),
    }


def _batches(op: OpFigures) -> list[dict[str, Any]]:
    return [{"batch_size": rows, **_computed(run)} for rows, run in sorted(op.by_rows.items())]
