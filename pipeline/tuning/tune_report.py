"""What `paddlewheel tune` tells at its end: a table, a file with everything, and how to go further."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table

from pipeline.tuning.frontier import Chosen, Measured, Point, frontier
from pipeline.tuning.kept import machine, versions
from pipeline.tuning.tune import Search, Wanted

_BUSY = 0.85  # of the cores: from here on they are what bounds the throughput


def print_table(console: Console, measured: Sequence[Measured], chosen: Chosen) -> None:
    """The frontier, by throughput; the choice is marked."""
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


def choice_lines(wanted: Wanted, chosen: Chosen, baseline: Chosen | None) -> list[str]:
    """The choice in words, beside what config.yml gives as it was."""
    lines = [f"chosen: {chosen.settings.name}: {_figures(chosen.point)}"]
    if not chosen.met:
        lines.append(f"no candidate holds a p99 of {wanted.p99_ms:g} ms; the chosen one has the lowest")
    if baseline is None:
        lines.append("config.yml as it was can't be run")
    elif baseline.settings == chosen.settings:
        lines.append("config.yml as it was is as good as the best, within what two measurements differ by")
    else:
        lines.append(f"config.yml as it was: {baseline.settings.name}: {_figures(baseline.point)}")
    return lines


def further_lines(wanted: Wanted, chosen: Chosen, missing: Mapping[str, str], left_out: int) -> list[str]:
    """What it would take to go further. missing: engines that are not installed, each with its remedy."""
    lines = []
    used = f"{chosen.point.cores:.1f} of {wanted.cores} cores"
    if chosen.point.cores >= _BUSY * wanted.cores:
        lines.append(
            f"the service keeps {used} busy: more throughput takes more cores, a smaller model or a smaller "
            "precision (--precision bf16, `paddlewheel convert precision`)"
        )
    elif chosen.point.connections == wanted.connections[-1]:
        lines.append(f"the service used {used} (the load has its part, too): try more --connections")
    elif wanted.p99_ms is not None:
        lines.append(f"at this p99 the service used {used}: more throughput takes a longer p99")
    if not chosen.met:
        lines.append("a lower p99 takes shorter requests, a smaller model or faster cores")
    lines += [f"{name} was not tried: {remedy}" for name, remedy in missing.items()]
    if left_out:
        lines.append(f"{left_out} candidates were left out for lack of time: give a longer --budget")
    return lines


def as_json(search: Search, wanted: Wanted, chosen: Chosen, facts: Mapping[str, Any]) -> str:
    """Everything that was measured, with machine and versions."""

    def of(one: Measured) -> dict[str, Any]:
        points = msgspec.to_builtins(one.points()) if one.rounds else []
        failed = sum(each.failed for each in one.rounds)
        return {
            "settings": msgspec.to_builtins(one.settings),
            "points": points,
            "failed": failed,
            "refused": one.refused,
        }

    document = {
        **facts,
        "machine": machine(),
        "versions": versions(),
        "wanted": msgspec.to_builtins(wanted),
        "chosen": msgspec.to_builtins(chosen),
        "in_turns": [of(one) for one in search.finals.values()],
        "tried": [of(one) for one in search.tried.values()],
        "left_out": msgspec.to_builtins(search.left_out),
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _figures(point: Point) -> str:
    return f"{point.per_s:.0f} requests/s, p99 {point.p99_ms:.3g} ms at {point.connections} connections"
