"""The lines of files of words and texts, which a line feed alone ends.

`str.splitlines` also splits at U+2028, U+0085, U+000B and others, which are words of real vocabularies and
stand in real texts: line 344 of bert-base-chinese's vocab.txt is U+2028, and every word after it would get
the number of its neighbour. Reading as text, as `open` and `Path.read_text` do, ends a line at each U+000D.
"""

from __future__ import annotations

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """The lines of a UTF-8 file, as `split_lines` has them. Raises OSError and UnicodeDecodeError."""
    return split_lines(path.read_bytes().decode("utf-8"))


def split_lines(text: str) -> list[str]:
    r"""The lines without their ends, `\n` or `\r\n`; the last one needs none."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
