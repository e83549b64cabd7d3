"""Metrics: what /metrics says, in Prometheus' text format."""

from __future__ import annotations

import itertools
import resource
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

from pipeline.front.metrics.figures import SECONDS, Distribution, OpFigures
from pipeline.process.isolation import isolated
from pipeline.process.log import lines_dropped

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NS = 1e-9

_OP_HISTOGRAMS: dict[str, tuple[str, Callable[[OpFigures], Distribution]]] = {
    "queue_seconds": ("From a request's arrival at an Op to its hand-over.", lambda op: op.queue_s),
    "predictor_seconds": ("One run of the predictor, or of `process`.", lambda op: op.predictor_s),
    "batch_rows": ("Rows in one predictor batch.", lambda op: op.batch_rows),
}
_OP_COUNTERS: dict[str, tuple[str, Callable[[OpFigures], float]]] = {
    "tokens": ("Rows x own length given to the predictor.", lambda op: op.tokens),
    "padding_tokens": ("What padding added to them.", lambda op: op.padding),
    "errors": ("Requests that this Op refused or failed.", lambda op: op.failed),
    "retried": ("Requests tried again because their worker had died.", lambda op: op.retried),
    "moved": ("Requests that another instance runs because theirs seemed to hang.", lambda op: op.moved),
    "abandoned": ("Hand-overs that were over the Op's timeout.", lambda op: op.abandoned),
    "preprocess_seconds": ("Time in preprocess hooks.", lambda op: op.preprocess_ns * _NS),
    "postprocess_seconds": ("Time in postprocess hooks.", lambda op: op.postprocess_ns * _NS),
}


Rows = Iterable[tuple[dict[str, str], float]]
"""Samples of one metric: labels and value."""


class Metrics:
    """All figures of one service.

    outcomes: requests by door and error number, 0 for those that were answered. request_s: what each admitted
    one took, by door. of_ops: by Op.
    """

    def __init__(self, service: str) -> None:
        self.outcomes: Counter[tuple[str, int]] = Counter()
        self.request_s: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(SECONDS))
        self.of_ops: dict[str, OpFigures] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Totals(self, service))
        self._others: list[Callable[[], bytes]] = []

    def op_totals(self) -> dict[tuple[str, str], float]:
        """By sample and Op: the sums and counts since the start."""
        samples = (sample for metric in _op_families(self.of_ops) for sample in metric.samples)
        return {(s.name, s.labels["op"]): s.value for s in samples if "le" not in s.labels}

    def watch(self, name: str, help_text: str, read: Callable[[], Rows]) -> None:
        """A gauge that is read when /metrics is asked for."""
        self._registry.register(_Watched(GaugeMetricFamily, name, help_text, read))

    def watch_total(self, name: str, help_text: str, read: Callable[[], Rows]) -> None:
        """The same of what only grows: its name ends with `_total`."""
        self._registry.register(_Watched(CounterMetricFamily, name, help_text, read))

    def add(self, text: Callable[[], bytes]) -> None:
        """More of /metrics, in Prometheus' text format, asked for each time."""
        self._others.append(text)

    def text(self) -> bytes:
        return b"".join([generate_latest(self._registry), *map(_text, self._others)])


@isolated(b"")
def _text(source: Callable[[], bytes]) -> bytes:
    return source()


class _Totals(Collector):
    """The families of what only grows, read from the figures."""

    def __init__(self, metrics: Metrics, service: str) -> None:
        self._metrics, self._service = metrics, service

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "paddlewheel_requests",
            "Requests by door and outcome: ok, or the error's number.",
            labels=("service", "door", "err_no"),
        )
        for (door, err_no), count in list(self._metrics.outcomes.items()):
            requests.add_metric((self._service, door, str(err_no) if err_no else "ok"), count)
        yield requests
        yield _histogram(
            "paddlewheel_request_seconds",
            "From a request's admission to its answer.",
            ("service", "door"),
            {(self._service, door): took for door, took in list(self._metrics.request_s.items())},
        )
        yield from _op_families(self._metrics.of_ops)
        dropped = CounterMetricFamily(
            "paddlewheel_log_lines_dropped",
            "Log lines of the front that nobody read in time.",
            labels=("service",),
        )
        dropped.add_metric((self._service,), lines_dropped())
        yield dropped


def _op_families(ops: Mapping[str, OpFigures]) -> Iterator[Metric]:
    for name, (told, distribution) in _OP_HISTOGRAMS.items():
        of_ops: dict[tuple[str, ...], Distribution] = {(op,): distribution(ops[op]) for op in ops}
        yield _histogram(f"paddlewheel_op_{name}", told, ("op",), of_ops)
    for name, (told, total) in _OP_COUNTERS.items():
        family = CounterMetricFamily(f"paddlewheel_op_{name}", told, labels=("op",))
        for op, figures in ops.items():
            family.add_metric((op,), total(figures))
        yield family


def _histogram(
    name: str, told: str, labels: tuple[str, ...], distributions: Mapping[tuple[str, ...], Distribution]
) -> Metric:
    """distributions: by the values of the labels."""
    family = HistogramMetricFamily(name, told, labels=labels)
    for values, distribution in distributions.items():
        bounds = map(floatToGoString, (*distribution.bounds, INF))
        counts = itertools.accumulate(distribution.counts)
        family.add_metric(values, list(zip(bounds, counts, strict=True)), distribution.total)
    return family


class _Watched(Collector):
    """A family whose samples are read when they are asked for. kind: gauges or counters.

    A family that can't be read is left out: /metrics has the others.
    """

    def __init__(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        help_text: str,
        read: Callable[[], Rows],
    ) -> None:
        self._kind, self._name, self._help, self._read = kind, name, help_text, read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._families()

    @isolated(())
    def _families(self) -> list[Metric]:
        rows = list(self._read())
        family = self._kind(self._name, self._help, labels=list(rows[0][0]) if rows else [])
        for labels, value in rows:
            family.add_metric(list(labels.values()), value)
        return [family]


def resident_bytes(pid: int | str = "self") -> float:
    """Resident memory of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:  # noqa: PTH123 - a few microseconds, on each scrape
            return float(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0.0
