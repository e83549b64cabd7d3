"""The report of `paddlewheel tune`: a table, a JSON file, an SVG of p99 over throughput, and hints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline.tuning.choice import describe_machine, list_engine_versions
from pipeline.tuning.svg import FAINT, GRID, LINE, MARK, page, text
from pipeline.tuning.tune import Chosen, Goal, Measured, Point, Search, frontier

_BUSY = 0.85  # share of busy cores from which on the CPU limits the throughput


def print_table(console: Console, measured: Sequence[Measured], chosen: Chosen) -> None:
    """Print the best settings (Pareto frontier) as a table, by ascending throughput. The choice is marked."""
    table = Table("", "settings", title="Throughput against p99: what nothing else beats in both")
    for column in ("connections", "requests/s", "p50 ms", "p99 ms", "CPU ms/request"):
        table.add_column(column, justify="right")
    rows = frontier(measured)
    if (chosen.settings, chosen.point) not in rows:
        rows = sorted([*rows, (chosen.settings, chosen.point)], key=lambda row: row[1].per_s)
    for settings, point in rows:
        mark = "*" if (settings, point) == (chosen.settings, chosen.point) else ""
        figures = (point.per_s, point.p50_ms, point.p99_ms, point.cpu_ms)
        table.add_row(mark, settings.name, str(point.connections), *(f"{figure:.2f}" for figure in figures))
    console.print(table)


def choice_lines(
    goal: Goal, chosen: Chosen, baseline: Chosen | None, config: str = "config.yml"
) -> list[str]:
    """Return lines of text about the chosen settings, and about the result of the unchanged configuration.

    baseline: result of the unchanged configuration; None if the service could not be run. config: name of the
    configuration's file.
    """
    lines = [f"chosen: {chosen.settings.name}: {_figures(chosen.point)}"]
    if not chosen.met:
        lines.append(f"no candidate holds a p99 of {goal.p99_ms:g} ms; the chosen one has the lowest")
    if baseline is None:
        lines.append(f"{config} as it was can't be run")
    elif baseline.settings == chosen.settings:
        lines.append(f"{config} as it was is as good as the best, within what two measurements differ by")
    else:
        lines.append(f"{config} as it was: {baseline.settings.name}: {_figures(baseline.point)}")
    return lines


def further_lines(goal: Goal, chosen: Chosen, missing: Mapping[str, str], left_out: int) -> list[str]:
    """Return lines of text with hints for better results.

    missing: engines that are not installed, each with its remedy. left_out: number of candidates that were
    skipped for lack of time.
    """
    lines = []
    used = f"{chosen.point.cores:.1f} of {goal.cores} cores"
    if chosen.point.cores >= _BUSY * goal.cores:
        lines.append(
            f"the service keeps {used} busy: more throughput takes more cores, a smaller model or a smaller "
            "precision (--precision bf16, `paddlewheel convert precision`)"
        )
    elif chosen.point.connections == goal.connections[-1]:
        lines.append(f"the service used {used} (the load has its part, too): try more --connections")
    elif goal.p99_ms is not None:
        lines.append(f"at this p99 the service used {used}: more throughput takes a longer p99")
    if not chosen.met:
        lines.append("a lower p99 takes shorter requests, a smaller model or faster cores")
    lines += [f"{name} was not tried: {remedy}" for name, remedy in missing.items()]
    if left_out:
        lines.append(f"{left_out} candidates were left out for lack of time: give a longer --budget")
    return lines


def as_json(search: Search, goal: Goal, chosen: Chosen, facts: Mapping[str, Any]) -> str:
    """Return all measurements as the text of a JSON file, with machine and versions.

    facts: further keys and values of the JSON object.
    """

    def describe_candidate(candidate: Measured) -> dict[str, Any]:
        points = msgspec.to_builtins(candidate.points()) if candidate.rounds else []
        failed = sum(each.failed for each in candidate.rounds)
        return {
            "settings": msgspec.to_builtins(candidate.settings),
            "points": points,
            "failed": failed,
            "refused": candidate.refused,
        }

    document = {
        **facts,
        "machine": describe_machine(),
        "versions": list_engine_versions(),
        "wanted": msgspec.to_builtins(goal),
        "chosen": msgspec.to_builtins(chosen),
        "in_turns": [describe_candidate(candidate) for candidate in search.finals.values()],
        "tried": [describe_candidate(candidate) for candidate in search.tried.values()],
        "left_out": msgspec.to_builtins(search.left_out),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _figures(point: Point) -> str:
    """Return throughput, p99 and connections of a point as text."""
    return f"{point.per_s:.0f} requests/s, p99 {point.p99_ms:.3g} ms at {point.connections} connections"


WIDTH, HEIGHT = 900, 460
LEFT, RIGHT, TOP, BOTTOM = 70, 870, 84, 404


class _Scale:
    """Axes of the SVG chart: requests/s from 0, and p99 on a logarithmic scale, in pixels."""

    def __init__(self, most_per_s: float, lowest_ms: float, highest_ms: float) -> None:
        self.most = most_per_s * 1.08
        self.low, self.high = math.log10(lowest_ms) - 0.1, math.log10(highest_ms) + 0.1

    def x(self, per_s: float) -> float:
        """Return the horizontal position of a throughput, in pixels."""
        return LEFT + per_s / self.most * (RIGHT - LEFT)

    def y(self, ms: float) -> float:
        """Return the vertical position of a latency, in pixels."""
        return BOTTOM - (math.log10(ms) - self.low) / (self.high - self.low) * (BOTTOM - TOP)

    def ticks(self) -> Iterator[float]:
        """Yield the latencies of the horizontal grid lines, in milliseconds."""
        for power in range(math.floor(self.low), math.ceil(self.high) + 1):
            for digit in (1, 2, 5):
                if self.low <= math.log10(tick := digit * 10.0**power) <= self.high:
                    yield tick


def draw(title: str, measured: Sequence[Measured], chosen: Chosen, p99_ms: float | None) -> str:
    """Return an SVG chart of p99 over throughput, with all points, the frontier and the choice.

    measured: candidates with at least one point. p99_ms: requested p99, drawn as a line.
    """
    points = [point for candidate in measured if not candidate.refused for point in candidate.points()]
    limits = [point.p99_ms for point in points] + ([p99_ms] if p99_ms else [])
    scale = _Scale(max(point.per_s for point in points), min(limits), max(limits))
    chosen_label = _describe_point(chosen.settings.name, chosen.point)
    parts = [
        text(LEFT, 28, title, size=15),
        text(LEFT, 48, "p99 in ms over requests/s; the line is the frontier", FAINT),
        text(LEFT, 68, f"chosen: {chosen_label}", MARK),
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
    return page(WIDTH, HEIGHT, [*parts, _dot(scale, chosen.point, MARK, 6, chosen_label)])


def _grid(scale: _Scale) -> Iterator[str]:
    """Yield the SVG elements of the grid lines and axis labels."""
    for ms in scale.ticks():
        y = scale.y(ms)
        yield f'<path d="M{LEFT} {y:.1f}H{RIGHT}" stroke="{GRID}"/>'
        yield text(LEFT - 8, y + 4, f"{ms:g}", FAINT, anchor="end")
    for part in range(1, 5):
        per_s = scale.most * part / 4
        yield text(scale.x(per_s), BOTTOM + 18, f"{per_s:.0f}/s", FAINT, anchor="end")


def _dot(scale: _Scale, point: Point, color: str, radius: float, label: str = "") -> str:
    """Return an SVG circle at a point, with a label as its tooltip."""
    at = f'cx="{scale.x(point.per_s):.1f}" cy="{scale.y(point.p99_ms):.1f}"'
    return f'<circle {at} r="{radius:g}" fill="{color}"><title>{escape(label)}</title></circle>'


def _describe_point(name: str, point: Point) -> str:
    """Return the settings and figures of a point as text."""
    return f"{name}: {point.per_s:.0f}/s, p99 {point.p99_ms:.3g} ms at {point.connections} connections"
