"""Replaces the part of a page of docs/ that a measurement writes, between two marks."""

from __future__ import annotations

import re

from bench.load import CannotMeasure


def with_part(page: str, begin: str, end: str, part: str) -> str:
    """Return the page with this part between its marks. Raises CannotMeasure without the marks."""
    marked = re.escape(begin) + ".*?" + re.escape(end)
    if not re.search(marked, page, re.S):
        raise CannotMeasure(f"the page has no place for the tables: {begin} ... {end}")
    return re.sub(marked, lambda _: f"{begin}\n\n{part}\n\n{end}", page, count=1, flags=re.S)
