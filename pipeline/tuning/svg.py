"""Elements of an SVG drawing, as text: the page, labels, and the colours of all drawings."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, FAINT, GRID, LINE, MARK = "#1f2933", "#66727f", "#e3e6ea", "#2a6fdb", "#d1343c"


def page(width: float, height: float, parts: Iterable[str]) -> str:
    """Return the text of an SVG file with these elements, on a white page of this size in pixels."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="system-ui, sans-serif" font-size="12" fill="{INK}">'
    )
    white = f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>'
    return "\n".join([head, white, *parts, "</svg>", ""])


def text(x: float, y: float, content: str, fill: str = INK, *, size: int = 12, anchor: str = "start") -> str:
    """Return an SVG text element.

    y: the text's baseline. anchor: `text-anchor` of SVG, the point of the text that is at x.
    """
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(content)}</text>'
