"""Draws a confusion matrix as an SVG: a row for each class that is meant, a column for each that is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

MOST_CLASSES = 60  # of a picture that can be looked at; the others become one
OTHERS = "(others)"
_CELL, _LABEL, _TOP, _FOOT = 34, 150, 150, 30
_INK, _FAINT, _RIGHT, _WRONG = "#1f2933", "#66727f", (42, 111, 219), (209, 52, 60)
_LONGEST = 18  # characters of a label in the margin

Confusion = Mapping[tuple[str, str], int]
"""How often, by the class that is meant and the one that is told."""


def draw(title: str, confusion: Confusion) -> str:
    """The picture. Colours are shares of a row, so that rare classes show as well."""
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
    """The classes of the picture, the most frequent where there are too many, and the counts of them."""
    support: dict[str, int] = {}
    for (meant, told), count in confusion.items():
        support[meant] = support.get(meant, 0) + count
        support.setdefault(told, 0)
    if len(support) <= MOST_CLASSES:
        return sorted(support), confusion
    kept = set(sorted(support, key=lambda name: -support[name])[: MOST_CLASSES - 1])
    counts: dict[tuple[str, str], int] = {}
    for pair, count in confusion.items():
        meant, told = (name if name in kept else OTHERS for name in pair)
        counts[meant, told] = counts.get((meant, told), 0) + count
    return [*sorted(kept), OTHERS], counts


def _margins(classes: Sequence[str]) -> Iterator[str]:
    for at, name in enumerate(classes):
        short = escape(name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…")
        middle = at * _CELL + _CELL / 2
        y, x = _TOP + middle + 4, _LABEL + middle + 4
        yield f'<text x="{_LABEL - 8}" y="{y:.0f}" text-anchor="end">{short}</text>'
        yield f'<text transform="translate({x:.0f} {_TOP - 8}) rotate(-90)">{short}</text>'


def _cells(classes: Sequence[str], counts: Confusion) -> Iterator[str]:
    for row, meant in enumerate(classes):
        support = sum(counts.get((meant, told), 0) for told in classes)
        for column, told in enumerate(classes):
            count = counts.get((meant, told), 0)
            share = count / support if support else 0.0
            red, green, blue = _RIGHT if meant == told else _WRONG
            x, y = _LABEL + column * _CELL, _TOP + row * _CELL
            yield (
                f'<rect x="{x}" y="{y}" width="{_CELL - 1}" height="{_CELL - 1}" '
                f'fill="rgb({red},{green},{blue})" fill-opacity="{0.05 + 0.9 * share:.2f}">'
                f"<title>{escape(meant)} answered as {escape(told)}: {count} of {support}</title></rect>"
            )
            if count:
                ink = "#ffffff" if share > 0.5 else _INK
                yield (
                    f'<text x="{x + _CELL / 2:.0f}" y="{y + _CELL / 2 + 4:.0f}" text-anchor="middle" '
                    f'fill="{ink}">{count}</text>'
                )
