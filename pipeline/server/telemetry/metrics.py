"""Metrics: what /metrics says, in Prometheus' text format."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pipeline.server.telemetry.figures import OpFigures

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_NS = 1e-9


class Metrics:
    """All figures of one service."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "paddlewheel_requests",
            "Requests by door and outcome: ok, or the error's number.",
            ("service", "door", "err_no"),
            registry=self.registry,
        )
        self.request_s = Histogram(
            "paddlewheel_request_seconds",
            "From a request's admission to its answer.",
            ("service",),
            registry=self.registry,
            buckets=_SECONDS,
        ).labels(service)
        self._of_ops = _OpFamilies(self.registry)
        self._others: list[Callable[[], bytes]] = []
        self._service = service
        self._outcomes: dict[tuple[str, int], Counter] = {}

    def count(self, door: str, err_no: int) -> None:
        """One answered or refused request."""
        counter = self._outcomes.get((door, err_no))
        if counter is None:
            label = "ok" if err_no == 0 else str(err_no)
            counter = self._outcomes[door, err_no] = self.requests.labels(self._service, door, label)
        counter.inc()

    def of_op(self, op: str) -> OpMetrics:
        return OpMetrics(self._of_ops, op)

    def op_totals(self) -> dict[tuple[str, str], float]:
        """By sample and Op: the sums and counts since the start."""
        samples = (sample for metric in self._of_ops.collect() for sample in metric.samples)
        return {(s.name, s.labels["op"]): s.value for s in samples if "le" not in s.labels}

    def watch(
        self, name: str, help_text: str, read: Callable[[], Iterable[tuple[dict[str, str], float]]]
    ) -> None:
        """A gauge that is read when /metrics is asked for."""
        self.registry.register(_Gauge(name, help_text, read))

    def add(self, text: Callable[[], bytes]) -> None:
        """More of /metrics, in Prometheus' text format, asked for each time."""
        self._others.append(text)

    def text(self) -> bytes:
        return b"".join([generate_latest(self.registry), *(text() for text in self._others)])


class _OpFamilies:
    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"paddlewheel_op_{name}", text, ("op",), registry=registry, buckets=buckets)

        def counter(name: str, text: str) -> Counter:
            return Counter(f"paddlewheel_op_{name}", text, ("op",), registry=registry)

        self.queue_s = histogram(
            "queue_seconds", "From a request's arrival at an Op to its hand-over.", _SECONDS
        )
        self.predictor_s = histogram(
            "predictor_seconds", "One run of the predictor, or of `process`.", _SECONDS
        )
        self.batch_rows = histogram("batch_rows", "Rows in one predictor batch.", _ROWS)
        self.tokens = counter("tokens", "Rows x own length given to the predictor.")
        self.padding = counter("padding_tokens", "What padding added to them.")
        self.errors = counter("errors", "Requests that this Op refused or failed.")
        self.preprocess_s = counter("preprocess_seconds", "Time in preprocess hooks.")
        self.postprocess_s = counter("postprocess_seconds", "Time in postprocess hooks.")

    def collect(self) -> Iterator[Metric]:
        for family in vars(self).values():
            yield from family.collect()


class OpMetrics:
    """The figures of one Op, labels bound once; `figures` is the same for who reads them."""

    def __init__(self, families: _OpFamilies, op: str) -> None:
        self._predictor_s = families.predictor_s.labels(op)
        self._batch_rows = families.batch_rows.labels(op)
        self._tokens = families.tokens.labels(op)
        self._padding = families.padding.labels(op)
        self._preprocess_s = families.preprocess_s.labels(op)
        self._postprocess_s = families.postprocess_s.labels(op)
        self._queue_s = families.queue_s.labels(op)
        self._errors = families.errors.labels(op)
        self.figures = OpFigures()

    def observe_queue(self, waited_s: float) -> None:
        self._queue_s.observe(waited_s)
        self.figures.note_queue(waited_s)

    def count_error(self) -> None:
        self._errors.inc()
        self.figures.failed += 1

    def observe_run(self, timings: Sequence[int], settled: int) -> None:
        """The timings of a reply, see `pipeline.worker.executor.Executor.run`; settled: its requests."""
        self.figures.note_run(timings, settled)
        preprocess, process, postprocess, batches, rows, tokens, padded = timings[:7]
        self._preprocess_s.inc(preprocess * _NS)
        self._postprocess_s.inc(postprocess * _NS)
        if not batches:
            return
        self._predictor_s.observe(process * _NS)
        self._batch_rows.observe(rows)
        self._tokens.inc(tokens)
        self._padding.inc(padded - tokens)


class _Gauge(Collector):
    def __init__(
        self, name: str, help_text: str, read: Callable[[], Iterable[tuple[dict[str, str], float]]]
    ) -> None:
        self._name, self._help, self._read = name, help_text, read

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        rows = list(self._read())
        family = GaugeMetricFamily(self._name, self._help, labels=list(rows[0][0]) if rows else [])
        for labels, value in rows:
            family.add_metric(list(labels.values()), value)
        yield family


def resident_bytes(pid: int | str = "self") -> float:
    """Resident memory of a process; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm") as statm:  # noqa: PTH123 - a few microseconds, on each scrape
            return float(statm.read().split()[1]) * resource.getpagesize()
    except OSError:
        return 0.0
