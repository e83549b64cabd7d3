"""The demo's vocabulary: specials, ASCII, punctuation and the 6,763 hanzi of GB2312, one token a line."""

from __future__ import annotations

import string

SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Rows of GB2312: 1 holds Chinese punctuation, 3 full-width ASCII, 16 to 87 the hanzi.
_PUNCTUATION_ROWS = (1, 3)
_HANZI_ROWS = range(16, 88)
_CELLS = range(1, 95)
# In today's headlines, yet not in GB2312.
_MORE_PUNCTUATION = "•·–—～￥€£™%％"


def hanzi() -> tuple[str, ...]:
    """The 6,763 hanzi of GB2312 in the order of the standard."""
    return _rows(_HANZI_ROWS)


def vocabulary() -> tuple[str, ...]:
    """Every token once; its index is its id, and [PAD] is 0.

    ASCII letters and digits come as a word's first piece and as its continuation (`a`, `##a`), so that
    every ASCII word has an encoding.
    """
    ascii_tokens = [c for c in string.printable if not c.isspace()]
    continuations = [f"##{c}" for c in string.ascii_letters + string.digits]
    punctuation = [c for c in _rows(_PUNCTUATION_ROWS) + tuple(_MORE_PUNCTUATION) if not c.isspace()]
    return tuple(dict.fromkeys([*SPECIALS, *ascii_tokens, *continuations, *punctuation, *hanzi()]))


def vocabulary_text() -> str:
    """The content of vocab.txt."""
    return "\n".join(vocabulary()) + "\n"


def _rows(rows: range | tuple[int, ...]) -> tuple[str, ...]:
    cells = (bytes((0xA0 + row, 0xA0 + cell)) for row in rows for cell in _CELLS)
    decoded = (cell.decode("gb2312", errors="ignore") for cell in cells)
    return tuple(char for char in decoded if char)
