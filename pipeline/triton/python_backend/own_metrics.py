"""Metric and MetricFamily: custom metrics of a Python model, which the server's /metrics exports."""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pipeline.messages.messages import OwnFamily

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OURS = ("paddlewheel_", "nv_", "pd_")
_COUNTER, _GAUGE, _HISTOGRAM = range(3)
_KINDS = ("counter", "gauge", "histogram")

_lock = threading.Lock()
_families: dict[str, MetricFamily] = {}
_changed = [False]  # whether a metric has changed since the last `changed_families`


class Metric:
    """A custom metric with one set of labels, created by `MetricFamily.Metric`."""

    def __init__(self, kind: int, labels: Mapping[str, str], buckets: Sequence[float]) -> None:
        self._kind = kind
        self._labels = dict(labels)
        self._value = 0.0
        self._buckets = sorted(map(float, buckets))
        self._counts = [0] * (len(self._buckets) + 1)

    def increment(self, by: float) -> None:
        """Add to a counter or gauge. A gauge also accepts negative amounts."""
        self._check("increment", _COUNTER, _GAUGE)
        if self._kind == _COUNTER and by < 0:
            raise ValueError("a counter can't be decremented")
        self._change(self._value + float(by))

    def set(self, value: float) -> None:
        """Set a gauge."""
        self._check("set", _GAUGE)
        self._change(float(value))

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._check("observe", _HISTOGRAM)
        number = float(value)
        self._counts[bisect_left(self._buckets, number)] += 1
        self._change(self._value + number)

    def value(self) -> float:
        """Return the value of a counter or gauge."""
        self._check("value", _COUNTER, _GAUGE)
        return self._value

    def samples(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """Yield name suffix, labels and value of each sample, for the worker."""
        if self._kind != _HISTOGRAM:
            yield "", self._labels, self._value
            return
        below = 0
        for bound, count in zip((*map(repr, self._buckets), "+Inf"), self._counts, strict=True):
            below += count
            yield "_bucket", {**self._labels, "le": bound}, below
        yield "_sum", self._labels, self._value
        yield "_count", self._labels, below

    def _check(self, method: str, *kinds: int) -> None:
        if self._kind not in kinds:
            raise ValueError(f"a {_KINDS[self._kind]} has no '{method}'")

    def _change(self, value: float) -> None:
        with _lock:
            self._value = value
            _changed[0] = True


class MetricFamily:
    """Custom metrics of the model with the same name and different labels."""

    COUNTER, GAUGE, HISTOGRAM = _COUNTER, _GAUGE, _HISTOGRAM

    def __init__(self, name: str, description: str, kind: int) -> None:
        if not _NAME.fullmatch(name) or name.startswith(_OURS):
            raise ValueError(
                f"{name!r} can't be a metric's name: letters, digits and _, not the server's own"
            )
        if kind not in range(len(_KINDS)):
            raise ValueError(f"kind {kind!r} is none of MetricFamily.COUNTER, GAUGE and HISTOGRAM")
        self._name, self._description, self._kind = name, str(description), kind
        self._metrics: dict[tuple[tuple[str, str], ...], Metric] = {}
        if _families.setdefault(name, self)._kind != kind:
            raise ValueError(f"there is a metric family {name!r} of another kind")

    def Metric(
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """Return the family's metric with these labels; a new one for new labels."""
        label_values = {str(name): str(value) for name, value in (labels or {}).items()}
        if wrong := [name for name in label_values if not _LABEL.fullmatch(name)]:
            raise ValueError(f"{wrong[0]!r} can't be a label's name: letters, digits and _")
        if (self._kind == _HISTOGRAM) != bool(buckets):
            raise ValueError("a histogram has buckets, and nothing else has any")
        metrics = _families[self._name]._metrics
        key = tuple(sorted(label_values.items()))
        if key not in metrics:
            metrics[key] = Metric(self._kind, label_values, buckets or ())
            _changed[0] = True
        return metrics[key]

    def family(self) -> OwnFamily:
        """Return the family's samples as the worker sends them to the front."""
        samples = [sample for metric in list(self._metrics.values()) for sample in metric.samples()]
        return OwnFamily(self._name, self._description, _KINDS[self._kind], samples)


def changed_families() -> list[Any] | None:
    """Return all families if a metric has changed since the last call, else None. For the worker."""
    if not _changed[0]:
        return None
    with _lock:
        _changed[0] = False
        return [family.family() for family in _families.values()]
