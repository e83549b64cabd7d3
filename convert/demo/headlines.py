"""The data of the demo: labelled Chinese headlines, their fixed split, and the vocabulary."""

from __future__ import annotations

import hashlib
import string
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from pipeline.errors import ConversionError
from pipeline.text_lines import read_lines

HEADLINES_FILE = Path(__file__).parent / "headlines.tsv"

# TNEWS's classes in TNEWS's order; a model's logits follow it, so it never changes.
LABELS = (
    "story",
    "culture",
    "entertainment",
    "sports",
    "finance",
    "house",
    "car",
    "edu",
    "tech",
    "military",
    "travel",
    "world",
    "stock",
    "agriculture",
    "game",
)

HELD_OUT_ONE_IN = 6
NEAR_DUPLICATE = 0.8


class Headline(NamedTuple):
    """A labelled headline, one line of headlines.tsv."""

    label: str
    text: str


class Split(NamedTuple):
    """Training and held-out headlines. No training headline is a near-duplicate of a held-out headline."""

    train: tuple[Headline, ...]
    held_out: tuple[Headline, ...]


def read_headlines(path: Path = HEADLINES_FILE) -> tuple[Headline, ...]:
    """Read `class<TAB>headline` lines in file order. Raises ConversionError that names a wrong line."""
    headlines: list[Headline] = []
    try:
        lines = read_lines(path)
    except (OSError, UnicodeDecodeError) as exc:
        raise ConversionError(f"{path} can't be read ({exc}); restore it from the repository.") from exc
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        label, tab, text = line.partition("\t")
        if not tab or label not in LABELS or not text.strip():
            raise ConversionError(f"{path}:{number} must be one of the 15 classes, a tab and a headline.")
        headlines.append(Headline(label, text.strip()))
    return tuple(headlines)


def is_held_out(text: str) -> bool:
    """Return whether a headline is held out, by a hash of its text.

    A headline therefore keeps its place when other headlines are added.
    """
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % HELD_OUT_ONE_IN == 0


def split_headlines(headlines: Iterable[Headline]) -> Split:
    """Split headlines into training and held-out headlines.

    Training headlines that are near-duplicates of held-out headlines are dropped.
    """
    train: list[Headline] = []
    held_out: list[Headline] = []
    for headline in headlines:
        (held_out if is_held_out(headline.text) else train).append(headline)
    held_out_bigrams = [bigrams(headline.text) for headline in held_out]
    distinct = (h for h in train if largest_overlap(h.text, held_out_bigrams) <= NEAR_DUPLICATE)
    return Split(tuple(distinct), tuple(held_out))


def bigrams(text: str) -> frozenset[str]:
    """Return the set of character bigrams of a headline."""
    return frozenset(text[i : i + 2] for i in range(len(text) - 1))


def largest_overlap(text: str, other_bigrams: Sequence[frozenset[str]]) -> float:
    """Return the largest Jaccard index between the bigrams of `text` and those of any other headline."""
    text_bigrams = bigrams(text)
    return max(
        (len(text_bigrams & other) / max(1, len(text_bigrams | other)) for other in other_bigrams),
        default=0.0,
    )


SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")

# Rows of GB2312: 1 holds Chinese punctuation, 3 full-width ASCII, 16 to 87 the hanzi.
_PUNCTUATION_ROWS = (1, 3)
_HANZI_ROWS = range(16, 88)
_CELLS = range(1, 95)
# In today's headlines, yet not in GB2312.
_MORE_PUNCTUATION = "•·–—～￥€£™%％"


def hanzi() -> tuple[str, ...]:
    """Return the 6,763 hanzi of the GB2312 standard, in its order."""
    return _rows(_HANZI_ROWS)


def vocabulary() -> tuple[str, ...]:
    """Return every token once; its index is its id, and [PAD] is 0.

    ASCII letters and digits are listed both as the first piece of a word and as a continuation (`a`, `##a`),
    so that every ASCII word can be encoded.
    """
    ascii_tokens = [c for c in string.printable if not c.isspace()]
    continuations = [f"##{c}" for c in string.ascii_letters + string.digits]
    punctuation = [c for c in _rows(_PUNCTUATION_ROWS) + tuple(_MORE_PUNCTUATION) if not c.isspace()]
    return tuple(dict.fromkeys([*SPECIALS, *ascii_tokens, *continuations, *punctuation, *hanzi()]))


def vocabulary_text() -> str:
    """Return the content of vocab.txt: a token on each line."""
    return "\n".join(vocabulary()) + "\n"


def _rows(rows: range | tuple[int, ...]) -> tuple[str, ...]:
    cells = (bytes((0xA0 + row, 0xA0 + cell)) for row in rows for cell in _CELLS)
    decoded = (cell.decode("gb2312", errors="ignore") for cell in cells)
    return tuple(char for char in decoded if char)
