"""The settings of Triton's metrics: `--metrics-config` and `--allow-cpu-metrics`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipeline.errors import ConfigError

_FORM = "write NAME=VALUE, as in summary_latencies=true"
_QUANTILES_FORM = "write QUANTILE:ERROR,..., as in 0.5:0.05,0.99:0.001, with numbers between 0 and 1"
_MAX_QUANTILES = 100
FIRST_RESPONSE = "nv_inference_first_response_histogram_ms"
FIRST_RESPONSE_BUCKETS = (100.0, 500.0, 2000.0, 5000.0)  # Triton's


class MetricsSettings(NamedTuple):
    """Kinds of latency metrics that /metrics has for each model."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)
    cpu: bool = True  # CPU and memory of the machine
    gpu: bool = True  # utilization, memory and power of each GPU


DEFAULT_METRICS = MetricsSettings()


def parse_metrics_settings(
    arguments: Sequence[str], *, cpu: bool = True, gpu: bool = True
) -> MetricsSettings:
    """Parse the values of `--metrics-config`.

    cpu and gpu: values of `--allow-cpu-metrics` and `--allow-gpu-metrics`.
    Raises ConfigError for a malformed value and for an unknown setting.
    """
    settings: dict[str, Any] = {}
    for text in arguments:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--metrics-config={text}: {_FORM}")
        parse = _PARSERS.get(name)
        if parse is None:
            names = ", ".join(_PARSERS)
            raise ConfigError(f"--metrics-config={text}: there is no setting {name!r}, only {names}")
        settings[name] = parse(text, value)
    return MetricsSettings(**settings, cpu=cpu, gpu=gpu)


def _parse_switch(text: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise ConfigError(f"--metrics-config={text}: {value!r} is neither true nor false")
    return value.lower() == "true"


def _parse_quantiles(text: str, value: str) -> tuple[float, ...]:
    quantiles = []
    for pair in value.split(","):
        parts = pair.split(":")
        try:
            quantile, error = map(float, parts)
            is_valid = 0 <= quantile <= 1 and 0 <= error <= 1
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigError(f"--metrics-config={text}: {pair!r} is no quantile; {_QUANTILES_FORM}")
        quantiles.append(quantile)
    if len(quantiles) > _MAX_QUANTILES:
        raise ConfigError(f"--metrics-config={text}: at most {_MAX_QUANTILES} quantiles are computed")
    return tuple(dict.fromkeys(quantiles))


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "counter_latencies": _parse_switch,
    "summary_latencies": _parse_switch,
    "histogram_latencies": _parse_switch,
    "summary_quantiles": _parse_quantiles,
}
