"""Metrics of shards: a shard sends its totals, and the front adds their growth to its own metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from pipeline.front.metrics.metrics import SECONDS, Distribution, Metrics, RequestFigures, RunFigures

_LATEST = "last_"  # fields that hold the instant of the latest event, not a total

Totals = Any
"""Numbers of a metric, as lists that msgpack can encode: of a dataclass its fields, of a dict its items."""


def get_totals(value: Any) -> Totals:
    """Return the current numbers of a metric or of a group of metrics, to compute differences later."""
    if isinstance(value, Distribution):
        return [list(value.counts), value.total]
    if isinstance(value, Mapping):
        return [[key, get_totals(entry)] for key, entry in value.items()]
    if is_dataclass(value):
        return [get_totals(getattr(value, field.name)) for field in fields(value)]
    return value


def get_metrics_totals(metrics: Metrics, requests: Mapping[str, RequestFigures]) -> Totals:
    """Return the current numbers of all metrics that a shard counts. requests: figures by model."""
    groups = metrics.outcomes, metrics.request_s, metrics.of_ops, requests
    return [get_totals(group) for group in groups]


def add_metrics_growth(
    metrics: Metrics, requests: Mapping[str, RequestFigures], now: Totals, before: Totals | None
) -> None:
    """Add to the front's metrics how much a shard's metrics have grown between two reports.

    now, before: results of `get_metrics_totals` in the shard; before is None for the first report.
    """
    groups = metrics.outcomes, metrics.request_s, metrics.of_ops, requests
    for group, group_now, group_before in zip(groups, now, before or [[]] * len(groups), strict=True):
        _add_entries(group, group_now, group_before)


def _add_entries(total: Any, now: Totals, before: Totals) -> None:
    """Add the growth of a dict of metrics, entry by entry. A new entry gets the class of the other values."""
    former = {_key(key): entry for key, entry in before}
    for sent_key, entry in now:
        key = _key(sent_key)
        if isinstance(entry, int | float):
            total[key] = total.get(key, 0) + entry - former.get(key, 0)
            continue
        if key not in total:
            total[key] = RunFigures() if isinstance(key, int) else Distribution(SECONDS)
        _add(total[key], entry, former.get(key))


def _add(total: Any, now: Totals, before: Totals | None) -> None:
    """Add the growth of one metric, or of all fields of a group of metrics."""
    if isinstance(total, Distribution):
        counts, sum_before = before or ([0] * len(total.counts), 0.0)
        for place, (count, former) in enumerate(zip(now[0], counts, strict=True)):
            total.counts[place] += count - former
        total.total += now[1] - sum_before
        return
    for place, field in enumerate(fields(total)):
        former = None if before is None else before[place]
        value = getattr(total, field.name)
        if value is None:  # latencies of a model repository, which has no shards
            continue
        if isinstance(value, dict):
            _add_entries(value, now[place], former or [])
        elif not isinstance(value, int | float):
            _add(value, now[place], former)
        elif field.name.startswith(_LATEST):
            setattr(total, field.name, max(value, now[place]))
        else:
            setattr(total, field.name, value + now[place] - (former or 0))


def _key(key: Any) -> Any:
    return tuple(key) if isinstance(key, list) else key
