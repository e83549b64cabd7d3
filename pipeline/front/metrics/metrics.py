"""Metrics of a service and its Ops for Prometheus, and of a request for its `Server-Timing` header."""

from __future__ import annotations

import itertools
import re
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import INF, floatToGoString

from pipeline.errors import DeadlineExceeded, Overloaded, ServingError, is_clients
from pipeline.front.metrics.latencies import ModelLatencies
from pipeline.messages.messages import OwnFamily, Timings
from pipeline.process.isolation import isolated
from pipeline.process.log import lines_dropped

_NS_PER_S = 1_000_000_000
SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LOAD_RATIOS = (1.05, 1.1, 1.25, 1.5, 2.0, 10.0, 50.0)


class Distribution:
    """Prometheus histogram: counts of observed values by bucket, and their sum.

    bounds: upper bounds of the buckets; the last bucket has no upper bound.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Count a value in its bucket. times: how many equal values to count."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def observe_all(self, values: Iterable[float]) -> None:
        """Count several values, each in its bucket."""
        bounds, counts = self.bounds, self.counts
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            self.total += value


@dataclass(slots=True)
class Failures:
    """Counts of failed requests by reason: rejected, canceled, broken or other, as in Triton's metrics."""

    rejected: int = 0  # for overload or a deadline
    canceled: int = 0  # the client left
    broken: int = 0  # an error of the app or its model
    other: int = 0  # an invalid request
    # failed steps of an ensemble, by the step's name and its Op's
    steps: Counter[tuple[str, str]] = field(default_factory=Counter)

    @isolated(None)
    def count(self, error: ServingError) -> None:
        """Count a failed request by the class of its error."""
        if error.err_no in _OF_TIME_AND_ROOM:
            self.rejected += 1
        elif is_clients(error):
            self.other += 1
        else:
            self.broken += 1


_OF_TIME_AND_ROOM = Overloaded.err_no, DeadlineExceeded.err_no


@dataclass(slots=True)
class CacheFigures:
    """Statistics of one model's lookups in the response cache.

    A request that waited for the result of an identical request counts as a hit.
    """

    hits: int = 0
    hit_ns: int = 0  # of lookups
    misses: int = 0
    miss_ns: int = 0  # of lookups and insertions
    latencies: ModelLatencies | None = None  # None unless the server has latency summaries

    def record_hit(self, lookup_ns: int) -> None:
        """Count a request that the cache has answered."""
        self.hits += 1
        self.hit_ns += lookup_ns
        if self.latencies is not None:
            self.latencies.observe_hit(lookup_ns)

    def record_miss(self, spent_ns: int) -> None:
        """Add the duration of a cache miss.

        spent_ns: nanoseconds of the lookup, and of the insertion if there was one.
        """
        self.miss_ns += spent_ns
        if self.latencies is not None:
            self.latencies.observe_miss(spent_ns)


@dataclass(slots=True)
class RequestFigures:
    """Totals of a model's requests: counts, rows and seconds.

    A request counts once, however many Ops it passes.
    """

    succeeded: int = 0
    succeeded_s: float = 0.0
    failed: int = 0  # of the admitted requests, while their clients waited
    failed_s: float = 0.0
    rows: int = 0
    last_s: float = 0.0  # end of the latest request, Unix time
    failures: Failures = field(default_factory=Failures)
    cache: CacheFigures = field(default_factory=CacheFigures)
    latencies: ModelLatencies | None = None  # None unless the server has latency summaries
    first_response_ms: Distribution | None = None  # None unless the model is decoupled, see `Entry`

    def count(self, took_s: float, rows: int, *, failed: bool) -> None:
        """Count a request that has ended.

        took_s: seconds from admission to response. rows: number of rows that the statistics count.
        """
        self.last_s = time.time()
        if failed:
            self.failed += 1
            self.failed_s += took_s
        else:
            self.succeeded += 1
            self.succeeded_s += took_s
            self.rows += rows


@dataclass(slots=True)
class RunFigures:
    """Number of executed model batches, and their total nanoseconds before, during and after the model."""

    count: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, input_ns: int, infer_ns: int, output_ns: int, times: int = 1) -> None:
        """Add executions of the model that each took these nanoseconds. times: number of executions."""
        self.count += times
        self.input_ns += input_ns * times
        self.infer_ns += infer_ns * times
        self.output_ns += output_ns * times


@dataclass(slots=True)
class OpFigures:
    """Metrics of a pipeline step (Op): queue times, model runs, batch sizes, tokens, failures and retries."""

    queue_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    predictor_s: Distribution = field(default_factory=lambda: Distribution(SECONDS))
    batch_rows: Distribution = field(default_factory=lambda: Distribution(ROWS))  # of all predictor batches
    # time since the arrival of a batch's first request, divided by the compute time of the batch
    load_ratio: Distribution = field(default_factory=lambda: Distribution(LOAD_RATIOS))
    tokens: int = 0  # rows x own length
    padding: int = 0  # tokens that padding has added
    failed: int = 0
    failures: Failures = field(default_factory=Failures)
    retried: int = 0  # requests that were queued again because their worker had died
    moved: int = 0  # requests that another instance ran because theirs seemed to hang
    abandoned: int = 0  # dispatches that were over the Op's timeout
    preprocess_ns: int = 0
    postprocess_ns: int = 0
    # times as requests see them: each request counts the whole time of its batch
    shares: RunFigures = field(default_factory=RunFigures)
    # completed batches, by number of rows; for an Op without a model by number of requests
    by_rows: dict[int, RunFigures] = field(default_factory=dict)
    last_ms: int = 0
    cache: CacheFigures = field(default_factory=CacheFigures)
    latencies: ModelLatencies | None = None  # None unless the server has latency summaries
    first_response_ms: Distribution | None = None  # None unless the model is decoupled, see `Entry`

    def record_run(self, timings: Timings, settled: int, waited_s: float = 0.0) -> None:
        """Add the timings of a worker's reply to the metrics.

        settled: number of requests in the reply. waited_s: seconds since the arrival of the reply's first
        request; 0 for a batch that did not wait.
        """
        input_ns, infer_ns, output_ns = timings.preprocess_ns, timings.process_ns, timings.postprocess_ns
        self.last_ms = time.time_ns() // 1_000_000
        self.preprocess_ns += input_ns
        self.postprocess_ns += output_ns
        self.shares.add(input_ns, infer_ns, output_ns, settled)
        compute_ns = input_ns + infer_ns + output_ns
        if compute_ns:
            self.load_ratio.observe(max(1.0, waited_s * _NS_PER_S / compute_ns), settled)
        if timings.answered:
            run = self.by_rows.get(timings.answered)
            if run is None:
                run = self.by_rows[timings.answered] = RunFigures()
            run.add(input_ns, infer_ns, output_ns)
        if timings.batches:
            self.predictor_s.observe(infer_ns / _NS_PER_S)
            self.batch_rows.observe(timings.rows)
            self.tokens += timings.tokens
            self.padding += timings.padded_tokens - timings.tokens

    @property
    def queued(self) -> int:
        """Number of requests that have left the queue of the pipeline step (Op)."""
        return sum(self.queue_s.counts)

    @property
    def queued_ns(self) -> int:
        """Total time of requests in the queue, in nanoseconds."""
        return int(self.queue_s.total * _NS_PER_S)

    @property
    def runs(self) -> int:
        """Number of executed batches."""
        return sum(run.count for run in self.by_rows.values())

    @property
    def rows(self) -> int:
        """Number of rows in all executed batches; for an Op without a model, number of requests."""
        return sum(rows * run.count for rows, run in self.by_rows.items())


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_NS = 1e-9

_OP_HISTOGRAMS: dict[str, tuple[str, Callable[[OpFigures], Distribution]]] = {
    "queue_seconds": ("From a request's arrival at an Op to its dispatch.", lambda op: op.queue_s),
    "predictor_seconds": ("One run of the predictor, or of `process`.", lambda op: op.predictor_s),
    "batch_rows": ("Rows in one predictor batch.", lambda op: op.batch_rows),
}
_OP_COUNTERS: dict[str, tuple[str, Callable[[OpFigures], float]]] = {
    "tokens": ("Rows x own length given to the predictor.", lambda op: op.tokens),
    "padding_tokens": ("What padding added to them.", lambda op: op.padding),
    "errors": ("Requests that this Op refused or failed.", lambda op: op.failed),
    "retried": ("Requests tried again because their worker had died.", lambda op: op.retried),
    "moved": ("Requests that another instance runs because theirs seemed to hang.", lambda op: op.moved),
    "abandoned": ("Dispatches that were over the Op's timeout.", lambda op: op.abandoned),
    "preprocess_seconds": ("Time in preprocess hooks.", lambda op: op.preprocess_ns * _NS),
    "postprocess_seconds": ("Time in postprocess hooks.", lambda op: op.postprocess_ns * _NS),
}


Rows = Iterable[tuple[dict[str, str], float]]
"""Samples of one metric: labels and value."""


class Metrics:
    """Registry of all Prometheus metrics of one service, for the endpoint /metrics."""

    def __init__(self, service: str) -> None:
        # requests by endpoint and error number; 0 for answered requests
        self.outcomes: Counter[tuple[str, int]] = Counter()
        # durations of the admitted requests, by endpoint
        self.request_s: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(SECONDS))
        self.of_ops: dict[str, OpFigures] = {}  # by Op
        self._registry = CollectorRegistry()
        self._registry.register(_Totals(self, service))
        self._others: list[Callable[[], bytes]] = []

    def op_totals(self) -> dict[tuple[str, str], float]:
        """Return the current sums and counts of each pipeline step's (Op's) metrics, by (metric, Op).

        The buckets of histograms are left out.
        """
        samples = (sample for metric in _op_families(self.of_ops) for sample in metric.samples)
        return {(s.name, s.labels["op"]): s.value for s in samples if "le" not in s.labels}

    def watch(self, name: str, help_text: str, read: Callable[[], Rows]) -> None:
        """Register a gauge whose samples are read whenever /metrics is requested.

        read: returns labels and values.
        """
        self._registry.register(_Watched(GaugeMetricFamily, name, help_text, read))

    def watch_total(self, name: str, help_text: str, read: Callable[[], Rows]) -> None:
        """Register a counter that is read whenever /metrics is requested. Its name must end with `_total`."""
        self._registry.register(_Watched(CounterMetricFamily, name, help_text, read))

    def add(self, text: Callable[[], bytes]) -> None:
        """Register a function that returns further metrics in Prometheus' text format.

        The function is called at each request for /metrics.
        """
        self._others.append(text)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format, the body of /metrics."""
        return b"".join([generate_latest(self._registry), *map(_text, self._others)])


@isolated(b"")
def _text(source: Callable[[], bytes]) -> bytes:
    """Return the metrics text of one source. If the source raises, logs the error and returns b""."""
    return source()


class _Totals(Collector):
    """Prometheus collector of the counters and histograms of requests and Ops."""

    def __init__(self, metrics: Metrics, service: str) -> None:
        self._metrics, self._service = metrics, service

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "paddlewheel_requests",
            "Requests by endpoint and outcome: ok, or the error's number.",
            labels=("service", "door", "err_no"),
        )
        for (endpoint, err_no), count in list(self._metrics.outcomes.items()):
            requests.add_metric((self._service, endpoint, str(err_no) if err_no else "ok"), count)
        yield requests
        yield _histogram(
            "paddlewheel_request_seconds",
            "From a request's admission to its answer.",
            ("service", "door"),
            {(self._service, endpoint): took for endpoint, took in list(self._metrics.request_s.items())},
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
    for name, (description, distribution) in _OP_HISTOGRAMS.items():
        of_ops: dict[tuple[str, ...], Distribution] = {(op,): distribution(ops[op]) for op in ops}
        yield _histogram(f"paddlewheel_op_{name}", description, ("op",), of_ops)
    for name, (description, total) in _OP_COUNTERS.items():
        family = CounterMetricFamily(f"paddlewheel_op_{name}", description, labels=("op",))
        for op, figures in ops.items():
            family.add_metric((op,), total(figures))
        yield family


def _histogram(
    name: str,
    description: str,
    labels: tuple[str, ...],
    distributions: Mapping[tuple[str, ...], Distribution],
) -> Metric:
    """Return a Prometheus histogram with labels.

    distributions: the histogram of each combination of label values.
    """
    family = HistogramMetricFamily(name, description, labels=labels)
    for values, distribution in distributions.items():
        bounds = map(floatToGoString, (*distribution.bounds, INF))
        counts = itertools.accumulate(distribution.counts)
        family.add_metric(values, list(zip(bounds, counts, strict=True)), distribution.total)
    return family


class _Watched(Collector):
    """Prometheus collector of a gauge or counter whose values a function returns at each scrape of /metrics.

    If the function raises, the metric is omitted.
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


_COUNTERS: dict[str, tuple[str, Callable[[Metrics], float]]] = {
    "pd_query_request_success_total": (
        "Requests that were answered.",
        lambda metrics: sum(count for (_, err_no), count in metrics.outcomes.items() if not err_no),
    ),
    "pd_query_request_failure_total": (
        "Requests that were refused or failed.",
        lambda metrics: sum(count for (_, err_no), count in metrics.outcomes.items() if err_no),
    ),
    "pd_inference_count_total": (
        "Runs of predictors.",
        lambda metrics: sum(sum(op.predictor_s.counts) for op in metrics.of_ops.values()),
    ),
    "pd_query_request_duration_us_total": (
        "Microseconds that requests took.",
        lambda metrics: round(sum(took.total for took in metrics.request_s.values()) * 1e6),
    ),
    "pd_inference_duration_us_total": (
        "Microseconds that runs of predictors took.",
        lambda metrics: round(sum(op.predictor_s.total for op in metrics.of_ops.values()) * 1e6),
    ),
}


def serving_metrics(metrics: Metrics) -> bytes:
    """Return the metrics that Paddle Serving exports, under its metric names, in Prometheus' text format."""
    lines = [
        f"# HELP {name} {description}\n# TYPE {name} counter\n{name} {float(read(metrics))}\n"
        for name, (description, read) in _COUNTERS.items()
    ]
    return "".join(lines).encode()


_Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@isolated(b"")
def custom_metrics(families_by_worker: Iterable[Iterable[OwnFamily]]) -> bytes:
    """Return the custom metrics that models count in their workers, in Prometheus' text format.

    families_by_worker: metrics of each worker. Values of several workers under the same labels are added up.
    For gauges the last value counts.
    """
    families: dict[str, OwnFamily] = {}
    samples: dict[str, _Samples] = {}
    for worker_families in families_by_worker:
        for family in worker_families:
            first_family = families.setdefault(family.name, family)
            if first_family.kind == family.kind:
                _add_samples(samples.setdefault(family.name, {}), family)
    return "".join(_gauge_text(family, samples[name]) for name, family in families.items()).encode()


def _add_samples(samples: _Samples, family: OwnFamily) -> None:
    for suffix, labels, value in family.samples:
        key = suffix, tuple(sorted(labels.items()))
        samples[key] = value if family.kind == "gauge" else samples.get(key, 0.0) + value


def _gauge_text(family: OwnFamily, samples: _Samples) -> str:
    """Return a metric with its samples in Prometheus' text format."""
    description = family.description.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {family.name} {description}\n# TYPE {family.name} {family.kind}\n"]
    for (suffix, labels), value in samples.items():
        pairs = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
        lines.append(f"{family.name}{suffix}{f'{{{pairs}}}' if pairs else ''} {value:.17g}\n")
    return "".join(lines)


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


MAX_CHARS = 4096  # gRPC's clients take 8 KiB of metadata
STAGES = ("queue", "preprocess", "process", "postprocess")
_NO_TOKEN = re.compile(r"[^\w!#$%&'*+\-.^`|~]", re.ASCII)  # RFC 9110, section 5.6.2


class RequestTimings:
    """Durations of one request in the queue and hooks of each Op, for the response header `Server-Timing`.

    Several runs of an Op are added up.
    """

    __slots__ = ("_began", "_of_ops", "is_sent")

    def __init__(self, *, is_sent: bool = True) -> None:
        """Create empty timings.

        is_sent: whether the response gets the header. Otherwise only the latency summaries use the durations.
        """
        self.is_sent = is_sent
        self._began = time.monotonic()
        self._of_ops: dict[str, list[float]] = {}

    @isolated(None)
    def add_stages(self, op: str, *stages_s: float) -> None:
        """Add the seconds that a pipeline step (Op) took, one value for each stage in STAGES.

        All times except the queue time are those of the whole batch that contains the request.
        """
        sums = self._of_ops.setdefault(op, [0.0] * len(STAGES))
        for number, spent_s in enumerate(stages_s):
            sums[number] += spent_s

    def get_totals(self) -> list[float]:
        """Return the total seconds of all Ops, one value for each stage in STAGES."""
        return [sum(stage) for stage in zip(*self._of_ops.values(), strict=True)] or [0.0] * len(STAGES)

    @isolated("")
    def header(self) -> str:
        """Return the value of `Server-Timing`, in milliseconds: `total;dur=5.1, bert.queue;dur=0.2, ...`.

        Characters of an Op's name that HTTP does not allow become underscores. Ops that exceed MAX_CHARS are
        omitted.
        """
        entries = [f"total;dur={(time.monotonic() - self._began) * 1000:.3f}"]
        size = len(entries[0])
        for op, sums in self._of_ops.items():
            name = _NO_TOKEN.sub("_", op)
            entry = ", ".join(
                f"{name}.{stage};dur={spent_s * 1000:.3f}"
                for stage, spent_s in zip(STAGES, sums, strict=True)
            )
            size += len(entry) + 2
            if size > MAX_CHARS:
                break
            entries.append(entry)
        return ", ".join(entries)
