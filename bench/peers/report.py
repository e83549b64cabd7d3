"""The table of all comparisons."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table


class Turn(NamedTuple):
    """One load of ours or the peer's. CPU of all its processes, ms per request."""

    per_s: float
    p50_ms: float
    p99_ms: float
    cpu_ms: float
    errors: int


class Pair(NamedTuple):
    """Two turns, one right after the other."""

    ours: Turn
    theirs: Turn


Rounds = dict[tuple[str, int], list[Pair]]  # by peer and connections


def print_table(console: Console, rounds: Rounds, title: str) -> None:
    """A line for each peer and number of connections: medians, and the ratios of pairs with their spread."""
    table = Table(title=title, title_justify="left")
    table.add_column("ours beside")
    for heading in ("connections", "requests/s", "ours/peer", "p50 ms", "ours/peer", "p99 ms", "ours/peer",
                    "CPU ms", "ours/peer", "errors"):  # fmt: skip
        table.add_column(heading, justify="right")
    for (name, connections), pairs in rounds.items():
        table.add_row(
            name, str(connections),
            *_both(pairs, lambda turn: turn.per_s, ",.0f"),
            *_both(pairs, lambda turn: turn.p50_ms, ".2f"),
            *_both(pairs, lambda turn: turn.p99_ms, ".2f"),
            *_both(pairs, lambda turn: turn.cpu_ms, ".3f"),
            f"{sum(pair.ours.errors for pair in pairs)} | {sum(pair.theirs.errors for pair in pairs)}",
        )  # fmt: skip
    console.print(table)
    console.print(
        "ours | the peer's, medians of the rounds; ratios of each round's pair: median (least to most)"
    )


def _both(pairs: Sequence[Pair], figure: Callable[[Turn], float], form: str) -> tuple[str, str]:
    ours, theirs = ([figure(turn) for turn in turns] for turns in zip(*pairs, strict=True))
    ratios = [own / other for own, other in zip(ours, theirs, strict=True)]
    both = f"{median(ours):{form}} | {median(theirs):{form}}"
    return both, f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
