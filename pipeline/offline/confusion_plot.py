"""Draws a confusion matrix as an SVG: a row for each labelled class, a column for each predicted class."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

MAX_CLASSES = 60  # of a readable picture; the rarest classes are joined
OTHERS = "(others)"
_CELL, _LABEL, _TOP, _FOOT = 34, 150, 150, 30
_INK, _FAINT, _RIGHT, _WRONG = "#1f2933", "#66727f", (42, 111, 219), (209, 52, 60)
_LONGEST = 18  # characters of a label in the margin

Confusion = Mapping[tuple[str, str], int]
"""Number of rows by (labelled class, predicted class)."""


def draw(title: str, confusion: Confusion) -> str:
    """Draw the matrix. Colours are shares of a row, so that rare classes show as well."""
    classes, counts = _shown(confusion)
    side = _CELL * len(classes)
    width, height = _LABEL + side + 40, _TOP + side + _FOOT
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" font-family="system-ui, sans-serif" font-size="11" fill="{_INK}">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="12" y="42" fill="{_FAINT}">rows: what is meant; columns: what is answered</text>',
        *_margins(classes),
        *_cells(classes, counts),
    ]
    return "\n".join([*parts, "</svg>", ""])


def _shown(confusion: Confusion) -> tuple[list[str], Confusion]:
    """Return the classes of the picture and their counts; beyond MAX_CLASSES rare classes become OTHERS."""
    support: dict[str, int] = {}
    for (expected, predicted), count in confusion.items():
        support[expected] = support.get(expected, 0) + count
        support.setdefault(predicted, 0)
    if len(support) <= MAX_CLASSES:
        return sorted(support), confusion
    frequent = set(sorted(support, key=lambda name: -support[name])[: MAX_CLASSES - 1])
    counts: dict[tuple[str, str], int] = {}
    for pair, count in confusion.items():
        expected, predicted = (name if name in frequent else OTHERS for name in pair)
        counts[expected, predicted] = counts.get((expected, predicted), 0) + count
    return [*sorted(frequent), OTHERS], counts


def _margins(classes: Sequence[str]) -> Iterator[str]:
    for at, name in enumerate(classes):
        short = escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
        middle = at * _CELL + _CELL / 2
        y, x = _TOP + middle + 4, _LABEL + middle + 4
        yield f'<text x="{_LABEL - 8}" y="{y:.0f}" text-anchor="end">{short}</text>'
        yield f'<text transform="translate({x:.0f} {_TOP - 8}) rotate(-90)">{short}</text>'


def _cells(classes: Sequence[str], counts: Confusion) -> Iterator[str]:
    for row, expected in enumerate(classes):
        support = sum(counts.get((expected, predicted), 0) for predicted in classes)
        for column, predicted in enumerate(classes):
            count = counts.get((expected, predicted), 0)
            share = count / support if support else 0.0
            red, green, blue = _RIGHT if expected == predicted else _WRONG
            x, y = _LABEL + column * _CELL, _TOP + row * _CELL
            yield (
                f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'fill="rgb({red},{green},{blue})" fill-opacity="{0.05 + 0.9 * share:.2f}">'
                f"<title>{escape(expected)} answered as {escape(predicted)}: "
                f"{count} of {support}</title></rect>"
            )
            if count:
                ink = "#ffffff" if share > 0.5 else _INK
                yield (
                    f'<text x="{x + _CELL / 2:.0f}" y="{y + _CELL / 2 + 4:.0f}" text-anchor="middle" '
                    f'fill="{ink}">{count}</text>'
                )
