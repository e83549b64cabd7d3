"""Draws what a search has measured as an SVG: p99 over throughput, the frontier as a line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape

from pipeline.tuning.frontier import Chosen, Measured, Point, frontier

WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 870, 64, 404
_INK, _FAINT, _GRID, _LINE, _CHOSEN = "#1f2933", "#66727f", "#e3e6ea", "#2a6fdb", "#d1343c"


def draw(title: str, measured: Sequence[Measured], chosen: Chosen, p99_ms: float | None) -> str:
    """Throughput to the right, p99 upwards on a logarithmic scale. `measured` holds at least one point."""
    points = [point for one in measured if not one.refused for point in one.points()]
    best = frontier(measured)
    most = max(point.per_s for point in points) * 1.08
    limits = [point.p99_ms for point in points] + ([p99_ms] if p99_ms else [])
    low, high = math.log10(min(limits)) - 0.1, math.log10(max(limits)) + 0.1

    def x(per_s: float) -> float:
        return LEFT + per_s / most * (RIGHT - LEFT)

    def y(ms: float) -> float:
        return BOTTOM - (math.log10(ms) - low) / (high - low) * (BOTTOM - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="12" fill="{_INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(LEFT, 28, title, size=15),
        _text(
            LEFT, 48, "p99 in ms over requests/s; the line is the frontier, red is what was chosen", _FAINT
        ),
    ]
    for ms in _ticks(low, high):
        parts.append(f'<path d="M{LEFT} {y(ms):.1f}H{RIGHT}" stroke="{_GRID}"/>')
        parts.append(_text(LEFT - 8, y(ms) + 4, f"{ms:g}", _FAINT, anchor="end"))
    for part in range(1, 5):
        per_s = most * part / 4
        parts.append(_text(x(per_s), BOTTOM + 18, f"{per_s:.0f}/s", _FAINT, anchor="end"))
    if p99_ms:
        parts.append(
            f'<path d="M{LEFT} {y(p99_ms):.1f}H{RIGHT}" stroke="{_CHOSEN}" stroke-dasharray="4 3" '
            f'class="goal"/>'
        )
    parts += [_dot(x(p.per_s), y(p.p99_ms), _FAINT, 2.5, "measured") for p in points]
    line = " ".join(f"{x(p.per_s):.1f},{y(p.p99_ms):.1f}" for _, p in best)
    parts.append(f'<polyline points="{line}" fill="none" stroke="{_LINE}" stroke-width="1.5"/>')
    for settings, point in best:
        parts.append(_dot(x(point.per_s), y(point.p99_ms), _LINE, 4, _told(settings.name, point)))
    told = _told(chosen.settings.name, chosen.point)
    at = x(chosen.point.per_s), y(chosen.point.p99_ms)
    parts += [
        _dot(*at, _CHOSEN, 6, told),
        _text(at[0] - 10, at[1] - 8, told, anchor="end" if at[0] > 450 else "start"),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _told(name: str, point: Point) -> str:
    return f"{name}: {point.per_s:.0f}/s, p99 {point.p99_ms:.3g} ms at {point.connections} connections"


def _ticks(low: float, high: float) -> Iterator[float]:
    for power in range(math.floor(low), math.ceil(high) + 1):
        for digit in (1, 2, 5):
            if low <= math.log10(tick := digit * 10.0**power) <= high:
                yield tick


def _dot(x: float, y: float, color: str, radius: float, told: str) -> str:
    title = f"<title>{escape(told)}</title>"
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{color}">{title}</circle>'


def _text(x: float, y: float, text: str, fill: str = _INK, *, size: int = 12, anchor: str = "start") -> str:
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'
