"""The counters of /metrics that dashboards of Paddle Serving read, `pd_*` (`dag.enable_prometheus`)."""

from __future__ import annotations

from collections.abc import Callable

from pipeline.front.metrics.metrics import Metrics

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
    """In Prometheus' text format, each request counted once."""
    lines = [
        f"# HELP {name} {told}\n# TYPE {name} counter\n{name} {float(read(metrics))}\n"
        for name, (told, read) in _COUNTERS.items()
    ]
    return "".join(lines).encode()
