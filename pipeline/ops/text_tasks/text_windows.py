"""Long texts: splits the tokens of a text into windows that fit the model, and joins the windows' scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipeline.errors import InvalidInput

Array = np.ndarray[Any, np.dtype[Any]]
Span = tuple[int, int]
CHARS_PER_TOKEN = 20  # a longer text has surely more tokens than the model reads


class Reading(NamedTuple):
    """Limits for long texts: maximum tokens per row, and whether to refuse, truncate or use windows."""

    max_tokens: int  # in one row, special tokens included
    too_long: str = "refuse"  # or "truncate", or "windows"
    stride: int | None = None  # tokens from window to window; None: three quarters of a window
    max_windows: int = 1

    @property
    def most_chars(self) -> int:
        """Maximum characters of a text. A text with more characters certainly exceeds the limit on tokens."""
        return CHARS_PER_TOKEN * self.max_tokens * (self.max_windows if self.too_long == "windows" else 1)


class Cut(NamedTuple):
    """The spans of a text's tokens that the model reads: one span, or several windows of a long text."""

    spans: list[Span]  # the first token of each part, and the token behind its last
    truncated: bool = False  # whether tokens are left out


def cut(tokens: int, room: int, reading: Reading, where: str) -> Cut:
    """Split a text of `tokens` tokens into the spans that the model reads, each of at most `room` tokens.

    `where` names the text in errors. Raises InvalidInput if the settings do not allow a text of this length.
    """
    if tokens <= room:
        return Cut([(0, tokens)])
    if reading.too_long == "truncate":
        return Cut([(0, room)], truncated=True)
    over = reading.max_tokens - room
    if reading.too_long == "refuse":
        raise InvalidInput(
            f"{where} has {tokens + over} tokens, the model reads {reading.max_tokens}: shorten or split it"
        )
    stride = min(room, reading.stride or max(1, room * 3 // 4))
    starts = range(0, tokens - room + stride, stride)
    if len(starts) > reading.max_windows:
        raise InvalidInput(
            f"{where} has {tokens} tokens, which are {len(starts)} windows; {reading.max_windows} are "
            "allowed: shorten or split it"
        )
    # The last window ends with the text, so that it has as much to go by as the others.
    return Cut([(min(start, tokens - room), min(start, tokens - room) + room) for start in starts])


def nearest_window(tokens: int, spans: Sequence[Span]) -> Array:
    """Return, for each token, the index of the window that gives it the most context on both sides."""
    place = np.arange(tokens)
    first, last = np.array(spans).reshape(-1, 2, 1).transpose(1, 0, 2)
    to_left = np.where(first > 0, place - first, tokens)
    to_right = np.where(last < tokens, last - 1 - place, tokens)
    return np.asarray(np.minimum(to_left, to_right).argmax(axis=0))


def pooled(scores: Array, counts: Sequence[int], pooling: str) -> Array:
    """Combine the scores of windows into scores of texts, by maximum (`pooling` "max") or mean.

    `counts` has the number of windows of each text.
    """
    if len(counts) == len(scores):
        return scores
    starts = np.cumsum([0, *counts[:-1]])
    if pooling == "max":
        return np.asarray(np.maximum.reduceat(scores, starts, axis=0))
    sums = np.add.reduceat(scores, starts, axis=0)
    return np.asarray(sums / np.asarray(counts, scores.dtype).reshape(-1, *[1] * (scores.ndim - 1)))
