"""/overview.json: models, Ops, their figures and recent errors, which the page at /docs draws.

Counters and histograms are totals since the start. The page subtracts earlier totals, so that the server
keeps no state of a page.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from pipeline.api.app import ServedModel
from pipeline.front.http.openapi import accepts_requests
from pipeline.front.metrics.metrics import SECONDS, Distribution
from pipeline.front.metrics.recent_errors import ErrorCause, merge_causes
from pipeline.front.repository import Repository, Standing
from pipeline.front.scheduler.batcher import Batcher
from pipeline.front.scheduler.scheduler import Scheduler
from pipeline.process.processes import resident_bytes

MAX_MODELS = 200
MAX_OPS = 200
MAX_OUTCOMES = 50  # the most frequent; an app's own class of error may have any number
_MAX_CHARS = 300  # of a reason
_OF_UPGRADE = ("model", "old_version", "new_version", "result", "phase", "requests", "changed", "noise")
_NS_PER_S = 1e9


class Overview:
    """Collects the live state and metrics of a service for each request of /overview.json."""

    def __init__(self, scheduler: Scheduler, repository: Repository) -> None:
        self._scheduler = scheduler
        self._repository = repository

    def build_body(self) -> bytes:
        """Return the body of /overview.json."""
        return msgspec.json.encode(self.collect())

    def collect(self) -> dict[str, Any]:
        """Return the state and metrics as a dict for JSON.

        `left_out` has the numbers of models and Ops beyond MAX_MODELS and MAX_OPS, and of rare outcomes.
        """
        scheduler, metrics = self._scheduler, self._scheduler.metrics
        models, batchers = list(self._list_models()), self._sort_batchers()
        outcomes = metrics.outcomes.most_common(MAX_OUTCOMES)
        return {
            "service": scheduler.app.name,
            "at": time.time(),
            "ready": scheduler.ready,
            "pending": scheduler.pending + (0 if scheduler.shards is None else scheduler.shards.pending),
            "bounds": SECONDS,
            "requests": _sum_up(metrics.request_s.values()),
            "outcomes": [[endpoint, err_no, count] for (endpoint, err_no), count in outcomes],
            "memory": resident_bytes(),
            "ops": {batcher.op: self._describe_op(batcher) for batcher in batchers[:MAX_OPS]},
            "models": models[:MAX_MODELS],
            "errors": self._list_errors(),
            "upgrade": self._describe_upgrade(),
            "left_out": {
                "models": max(0, len(models) - MAX_MODELS),
                "ops": max(0, len(batchers) - MAX_OPS),
                "outcomes": max(0, len(metrics.outcomes) - MAX_OUTCOMES),
            },
        }

    def _describe_upgrade(self) -> dict[str, Any] | None:
        """Return the state of the latest model upgrade, without data of requests; None if there was none."""
        if self._repository.upgrade is None:
            return None
        report = self._repository.upgrade.build_report()
        canary = report["canary"]
        return {name: report[name] for name in _OF_UPGRADE} | {
            "reason": _shorten(report["reason"]),
            "canary": canary and {name: canary[name] for name in ("share", "shares", "steps")},
        }

    def _list_errors(self) -> list[ErrorCause]:
        """Return the recent errors of the front-end process and of shards, the latest first."""
        shards = self._scheduler.shards
        causes = self._scheduler.recent_errors.list_causes()
        if shards is not None:
            causes = merge_causes([causes, shards.list_causes()])
        return causes[::-1]

    def _sort_batchers(self) -> list[Batcher]:
        """Return the batchers, those of the most used Ops first."""
        of_ops = self._scheduler.metrics.of_ops
        return sorted(self._scheduler.batchers.values(), key=lambda b: of_ops[b.op].queued, reverse=True)

    def _describe_op(self, batcher: Batcher) -> dict[str, Any]:
        """Return state and figures of an Op. Times are in seconds."""
        figures, pool = self._scheduler.metrics.of_ops[batcher.op], batcher.pool
        shards = self._scheduler.shards
        shares = figures.shares
        return {
            "version": pool.plan.version,
            "engine": pool.plan.engine if pool.card is None else pool.card.engine,
            "ready": batcher.sound,
            "instances": pool.size,
            "restarts": pool.restarts,
            "memory": sum(process.resident_bytes for process in pool.processes),
            "waiting": batcher.waiting + (0 if shards is None else shards.waiting),
            "queue": _list_numbers(figures.queue_s),
            "run": _list_numbers(figures.predictor_s),
            # Sums over requests: each request counts the whole time of its batch.
            "answered": shares.count,
            "preprocess_s": shares.input_ns / _NS_PER_S,
            "run_s": shares.infer_ns / _NS_PER_S,
            "postprocess_s": shares.output_ns / _NS_PER_S,
            "batches": figures.runs,
            "rows": figures.rows,
            "errors": figures.failed,
            "retried": figures.retried + figures.moved,
        }

    def _list_models(self) -> Iterator[dict[str, Any]]:
        """Yield a description of each model that is served, is being loaded, or can't be served."""
        app = self._scheduler.app
        for model in app.models:
            if not accepts_requests(model, self._scheduler):
                continue
            yield self._describe_served_model(model)
            failure = self._repository.failures.get(model.op)
            if failure is not None and failure.version and failure.version != model.version:
                yield _describe_absent(model.name, failure.version, "UNAVAILABLE", failure.message)
        loading = {name for name, _ in self._repository.loading}
        for name, versions in self._repository.loading:
            for version in versions or [""]:
                yield _describe_absent(name, version, "LOADING", "")
        for name, (version, reason) in app.unavailable.items():
            if name not in loading:
                yield _describe_absent(name, version, "UNAVAILABLE", reason)

    def _describe_served_model(self, model: ServedModel) -> dict[str, Any]:
        """Return name, version, state and graph of a served model."""
        graph = model.graph
        standing = self._get_standing(model)
        steps = [
            {"name": node.name, "op": node.op, "inputs": graph.inputs[node.name], "jumps": node.jumps}
            for node in graph.steps
        ]
        return {
            "name": model.name,
            "version": self._scheduler.version(model.key),
            "state": standing.state,
            "reason": _shorten(standing.reason),
            "op": model.op,
            "steps": steps,
            "response": graph.response,
        }

    def _get_standing(self, model: ServedModel) -> Standing:
        """Return the state of a model: READY, or the state of its first Op that is not READY."""
        parts = [*model.graph.ops]
        if not model.op and self._scheduler.is_unloaded(model.key):
            parts.insert(0, model.key)
        standings = [self._repository.standing(part) for part in parts]
        return next((standing for standing in standings if standing.state != "READY"), standings[0])


def _describe_absent(name: str, version: str, state: str, reason: str) -> dict[str, Any]:
    return {
        "name": name, "version": version, "state": state, "reason": _shorten(reason),
        "op": "", "steps": [], "response": "",
    }  # fmt: skip


def _shorten(reason: str) -> str:
    return reason.partition("\n")[0][:_MAX_CHARS]


def _list_numbers(distribution: Distribution) -> list[Any]:
    """Return a histogram as JSON: its counts by bucket, and the sum of the observed values."""
    return [distribution.counts, distribution.total]


def _sum_up(distributions: Iterable[Distribution]) -> list[Any]:
    """Return the sum of several histograms: the counts by bucket, and the sum of all values."""
    total = Distribution(SECONDS)
    for distribution in distributions:
        total.counts = [sum(pair) for pair in zip(total.counts, distribution.counts, strict=True)]
        total.total += distribution.total
    return _list_numbers(total)
