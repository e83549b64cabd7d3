"""Rows in windows, sorted by length within each and cut into requests. Pure: no file, no model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.offline.rows import Row

MOST_WINDOW_CHARS = 32 << 20  # so that a window of long texts stays small in memory
REQUEST_ROWS = 128  # as many as four batches: what a request costs by itself is a tenth of 32 short rows
REQUEST_CHARS = 8192  # rows x the longest of them: as many characters as a worker runs tokens at once


def windows(rows: Iterable[Row], most_rows: int) -> Iterator[list[Row]]:
    """Rows one after another, so many at once, fewer where they are long."""
    window: list[Row] = []
    chars = 0
    for row in rows:
        window.append(row)
        chars += estimate_length(row.columns)
        if len(window) == most_rows or chars > MOST_WINDOW_CHARS:
            yield window
            window, chars = [], 0
    if window:
        yield window


def split_window(inputs: Sequence[Mapping[str, Any]], most_rows: int) -> list[list[int]]:
    """The rows of a window in requests, as indices: rows of like length together, the longest first.

    The longest first, so that the last of several connections are not busy with them alone.
    """
    lengths = [estimate_length(one) for one in inputs]
    order = sorted(range(len(inputs)), key=lambda at: -lengths[at])
    requests: list[list[int]] = []
    most = 0
    for at in order:
        if not requests or len(requests[-1]) >= most:
            requests.append([])
            most = max(1, min(most_rows, REQUEST_CHARS // max(1, lengths[at])))
        requests[-1].append(at)
    return requests


def estimate_length(columns: Mapping[str, Any]) -> int:
    """How long a row is: the characters of its texts, the elements of its lists."""
    return sum(len(value) for value in columns.values() if isinstance(value, str | list))
