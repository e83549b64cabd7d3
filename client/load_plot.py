"""Draws a load test as an SVG: latency of each request over time, with a histogram beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from client.load_report import Sample, histogram, percentile

WIDTH, HEIGHT = 1000, 420
TOP, BOTTOM = 64, 372  # of both panels
LEFT, SPLIT, BARS, RIGHT = 72, 680, 704, 904
MAX_POINTS = 5000  # an SVG of more is slow to open
ANSWERED, GRID, INK, FAINT = "#2a6fdb", "#e3e6ea", "#1f2933", "#66727f"
POINT = f'r="1.6" fill="{ANSWERED}" fill-opacity="0.45"'
FAILED_POINT = 'r="2.6" fill="#d1343c" fill-opacity="0.9"'
LINE = 14  # from one label to the next, at least


class _Scale:
    """The plot's vertical axis: converts latencies to pixels on a logarithmic scale, upwards."""

    def __init__(self, low_ms: float, high_ms: float) -> None:
        self.low = math.log10(max(low_ms, 0.001)) - 0.05
        self.high = max(math.log10(max(high_ms, 0.001)) + 0.05, self.low + 0.3)

    def y(self, ms: float) -> float:
        """Return the y coordinate in pixels of a latency."""
        part = (math.log10(max(ms, 0.001)) - self.low) / (self.high - self.low)
        return BOTTOM - part * (BOTTOM - TOP)

    def ticks(self) -> Iterator[float]:
        """Yield the latencies, in ms, at which the plot has a line and a label: 1, 2, 5, 10, 20, ..."""
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for digit in (1, 2, 5):
                if self.low <= math.log10(tick := digit * 10.0**power) <= self.high:
                    yield tick


def write_plot(path: Path, title: str, samples: Sequence[Sample]) -> None:
    """Write the SVG plot of a load test's requests to a file. `samples` must not be empty."""
    path.write_text(draw(title, samples), encoding="utf-8")


def draw(title: str, samples: Sequence[Sample]) -> str:
    """Return the SVG text of the plot of a load test's requests. `samples` must not be empty."""
    latencies = [sample.latency_ms for sample in samples]
    answered = sorted(sample.latency_ms for sample in samples if sample.error is None)
    scale = _Scale(min(latencies), max(latencies))
    failed = len(samples) - len(answered)
    head = f"{len(answered)} answered, {failed} failed"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _draw_text(LEFT, 28, title, size=15),
        _draw_text(LEFT, 48, f"latency in ms over time; {head}", fill=FAINT),
        _draw_text(BARS, 48, "requests by latency", fill=FAINT),
        *_grid(scale),
        *_points(samples, scale),
        *_bars(latencies, scale),
    ]
    if answered:
        parts += _marks(answered, scale)
    return "\n".join([*parts, "</svg>", ""])


def _grid(scale: _Scale) -> Iterator[str]:
    for tick in scale.ticks():
        y = scale.y(tick)
        yield f'<path d="M{LEFT} {y:.1f}H{SPLIT}M{BARS} {y:.1f}H{RIGHT}" stroke="{GRID}"/>'
        yield _draw_text(LEFT - 8, y + 4, f"{tick:g}", anchor="end", fill=FAINT)


def _points(samples: Sequence[Sample], scale: _Scale) -> Iterator[str]:
    end_s = max(max(sample.at_s for sample in samples), 0.001)
    step = _round_step(end_s / 6)
    for number in range(int(end_s / step) + 1):
        x = LEFT + number * step / end_s * (SPLIT - LEFT)
        yield _draw_text(x, BOTTOM + 18, f"{number * step:g} s", anchor="middle", fill=FAINT)
    for sample in _thinned(samples):
        x = LEFT + sample.at_s / end_s * (SPLIT - LEFT)
        style = POINT if sample.error is None else FAILED_POINT
        y = scale.y(sample.latency_ms)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" {style}/>'


def _thinned(samples: Sequence[Sample]) -> list[Sample]:
    """Return every n-th request, and all failed and slowest requests, so that the plot stays small."""
    if len(samples) <= MAX_POINTS:
        return list(samples)
    stride = math.ceil(len(samples) / MAX_POINTS)
    slow_ms = percentile(sorted(sample.latency_ms for sample in samples), 99.5)
    return [
        sample
        for number, sample in enumerate(samples)
        if number % stride == 0 or sample.error is not None or sample.latency_ms >= slow_ms
    ]


def _bars(latencies_ms: Sequence[float], scale: _Scale) -> Iterator[str]:
    bins = histogram(latencies_ms, bins=32)
    largest = max(bin.size for bin in bins)
    for bin in bins:
        top, bottom = scale.y(bin.high_ms), scale.y(bin.low_ms)
        width = bin.size / largest * (RIGHT - BARS)
        height = max(bottom - top - 1, 1)
        yield f'<rect x="{BARS}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{ANSWERED}"/>'
    yield _draw_text(RIGHT, BOTTOM + 18, str(largest), anchor="end", fill=FAINT)
    yield _draw_text(BARS, BOTTOM + 18, "0", fill=FAINT)


def _marks(answered: Sequence[float], scale: _Scale) -> Iterator[str]:
    label_y = float(HEIGHT)
    for percent in (50, 99):
        ms = percentile(answered, percent)
        y = scale.y(ms)
        label_y = min(y + 4, label_y - LINE)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{INK}" stroke-dasharray="4 3" stroke-width="0.8"/>'
        yield _draw_text(RIGHT + 6, label_y, f"p{percent} {ms:.3g}")


def _round_step(step: float) -> float:
    """Return the smallest of 1, 2, 5, 10, 20, ... (and 0.1, 0.2, ...) that is at least `step`."""
    power: float = 10.0 ** math.floor(math.log10(step))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= step * 0.999)


def _draw_text(
    x: float, y: float, text: str, *, size: int = 12, anchor: str = "start", fill: str = INK
) -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
