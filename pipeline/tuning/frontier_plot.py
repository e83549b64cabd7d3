"""Draws what a search has measured as an SVG: p99 over throughput, the frontier as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from pipeline.tuning.frontier import Chosen, Measured, Point, frontier
from pipeline.tuning.svg import FAINT, GRID, LINE, MARK, page, text

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 870, 84, 404


class _Scale:
    """Requests/s to the right from 0, p99 upwards on a logarithmic scale."""

    def __init__(self, most_per_s: float, lowest_ms: float, highest_ms: float) -> None:
        self.most = most_per_s * 1.08
        self.low, self.high = math.log10(lowest_ms) - 0.1, math.log10(highest_ms) + 0.1

    def x(self, per_s: float) -> float:
        return LEFT + per_s / self.most * (RIGHT - LEFT)

    def y(self, ms: float) -> float:
        return BOTTOM - (math.log10(ms) - self.low) / (self.high - self.low) * (BOTTOM - TOP)

    def ticks(self) -> Iterator[float]:
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for digit in (1, 2, 5):
                if self.low <= math.log10(tick := digit * 10.0**power) <= self.high:
                    yield tick


def draw(title: str, measured: Sequence[Measured], chosen: Chosen, p99_ms: float | None) -> str:
    """The picture; `measured` holds at least one point. p99_ms: what was asked for, a line across."""
    points = [point for one in measured if not one.refused for point in one.points()]
    limits = [point.p99_ms for point in points] + ([p99_ms] if p99_ms else [])
    scale = _Scale(max(point.per_s for point in points), min(limits), max(limits))
    told = _describe_point(chosen.settings.name, chosen.point)
    parts = [
        text(LEFT, 28, title, size=15),
        text(LEFT, 48, "p99 in ms over requests/s; the line is the frontier", FAINT),
        text(LEFT, 68, f"chosen: {told}", MARK),
        *_grid(scale),
    ]
    if p99_ms:
        y = f"{scale.y(p99_ms):.1f}"
        parts.append(f'<path d="M{LEFT} {y}H{RIGHT}" stroke="{MARK}" stroke-dasharray="4 3"/>')
    parts += [_dot(scale, point, FAINT, 2.5) for point in points]
    best = frontier(measured)
    line = " ".join(f"{scale.x(point.per_s):.1f},{scale.y(point.p99_ms):.1f}" for _, point in best)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{LINE}" stroke-width="1.5"/>')
    parts += [_dot(scale, point, LINE, 4, _describe_point(settings.name, point)) for settings, point in best]
    return page(WIDTH, HEIGHT, [*parts, _dot(scale, chosen.point, MARK, 6, told)])


def _grid(scale: _Scale) -> Iterator[str]:
    for ms in scale.ticks():
        y = scale.y(ms)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{GRID}"/>'
        yield text(LEFT - 8, y + 4, f"{ms:g}", FAINT, anchor="end")
    for part in range(1, 5):
        per_s = scale.most * part / 4
        yield text(scale.x(per_s), BOTTOM + 18, f"{per_s:.0f}/s", FAINT, anchor="end")


def _dot(scale: _Scale, point: Point, color: str, radius: float, told: str = "") -> str:
    at = f'cx="{scale.x(point.per_s):.1f}" cy="{scale.y(point.p99_ms):.1f}"'
    return f'<circle {at} r="{radius:g}" fill="{color}"><title>{escape(told)}</title></circle>'


def _describe_point(name: str, point: Point) -> str:
    return f"{name}: {point.per_s:.0f}/s, p99 {point.p99_ms:.3g} ms at {point.connections} connections"
