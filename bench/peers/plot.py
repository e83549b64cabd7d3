"""Draws a comparison as SVG: requests per second relative to our service, as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench.peers.figures import Report, Row
from bench.peers.scenarios import BUSY, DEMO
from bench.peers.wording import Words, get_title, words_in
from pipeline.tuning.svg import FAINT, INK, LINE, MARK, page, text

TOLD = 64  # connections of a panel; else the next lower number
WIDTH, MARGIN, TOP = 960, 24, 84
COLUMNS, GAP = 2, 36
NAMES, FIGURES = 196, 84  # widths beside the bars
BAR, LINE_HEIGHT, HEADING = 13, 19, 34
_OTHERS, _LIMIT = "#aab4be", "#e3e6ea"
_LEFT_OUT = (
    "ours-onnxruntime",
    "ours-processes",
    "ours-shards",
    "trial",
    "loop-all",
    "loop-openvino",
    "loop-openvino-bf16",
)


def draw(report: Report, language: str) -> str:
    words = words_in(language)
    panels = [
        sorted_rows(report.get_rows((model, workload, connections)))
        for model, workload, connections in select_scenarios(report)
        if model != DEMO and workload != BUSY
    ]
    width = (WIDTH - 2 * MARGIN - (COLUMNS - 1) * GAP) / COLUMNS
    parts = [
        text(MARGIN, 34, words.plot, size=18),
        text(MARGIN, 56, words.plot_note, FAINT),
        *_legend(words),
    ]
    y = float(TOP)
    for first in range(0, len(panels), COLUMNS):
        line = panels[first : first + COLUMNS]
        for number, rows in enumerate(line):
            parts += _panel(rows, MARGIN + number * (width + GAP), y, width, words)
        y += HEADING + max(map(len, line)) * LINE_HEIGHT + 16
    return page(WIDTH, y, parts)


def select_scenarios(report: Report) -> list[tuple[str, str, int]]:
    """Return the scenario to draw for each model and kind of texts."""
    chosen: dict[tuple[str, str], int] = {}
    for model, workload, connections in report.scenarios():
        if connections <= TOLD:
            chosen[model, workload] = max(connections, chosen.get((model, workload), 0))
    return [(*kind, connections) for kind, connections in chosen.items()]


def sorted_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the rows to draw: servers from the fastest, then the limit.

    The tables have the other rows, too.
    """
    drawn = [row for row in rows if row.key not in _LEFT_OUT]
    return sorted(drawn, key=lambda row: (row.is_limit, -row.ratio()))


def _legend(words: Words) -> Iterator[str]:
    x = float(WIDTH - MARGIN)
    for color, label in ((_LIMIT, words.limit), (_OTHERS, words.others), (LINE, words.ours)):
        yield text(x, 34, label, FAINT, anchor="end")
        x -= 7.5 * sum(2 if ord(letter) > 0x2E80 else 1 for letter in label) * 0.82 + 18
        yield f'<rect x="{x:.1f}" y="24" width="12" height="12" fill="{color}"/>'
        x -= 16


def _panel(rows: Sequence[Row], x: float, y: float, width: float, words: Words) -> Iterator[str]:
    model, workload, connections = rows[0].scenario
    title = f"{get_title(model, workload, words)}, {words.connections.format(connections)}"
    yield text(x, y + 14, title, size=13)
    start, room = x + NAMES, width - NAMES - FIGURES
    scale = room / max(1.0, *(row.ratio() for row in rows))
    y += HEADING - 8
    for number, row in enumerate(rows):
        yield from _bar(row, start, y + number * LINE_HEIGHT, scale, words)
        per_s = row.theirs(lambda turn: turn.per_s)
        label, ink = f"{row.ratio():.2f}  ({per_s:,.0f}/s)", INK if row.is_ours else FAINT
        yield text(x + width, y + number * LINE_HEIGHT + BAR - 2, label, ink, size=11, anchor="end")
    down = f"M{start + scale:.1f} {y - 3:.1f}V{y + len(rows) * LINE_HEIGHT:.1f}"
    yield f'<path d="{down}" stroke="{MARK}" stroke-dasharray="3 3"/>'


def _bar(row: Row, start: float, y: float, scale: float, words: Words) -> Iterator[str]:
    color = LINE if row.is_ours else _LIMIT if row.is_limit else _OTHERS
    name, ink = words.subjects.get(row.key, row.name), INK if row.is_ours else FAINT
    yield text(start - 8, y + BAR - 2, name, ink, anchor="end")
    width = row.ratio() * scale
    yield f'<rect x="{start:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BAR}" fill="{color}"/>'
