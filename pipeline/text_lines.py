"""Lines of vocabulary and text files, separated by line feeds only.

`str.splitlines` also splits at U+2028, U+0085, U+000B and others, which occur in real vocabularies and texts.
Line 344 of bert-base-chinese's vocab.txt is U+2028: every word after it would get its neighbour's number.
`open` and `Path.read_text` also end a line at each U+000D.
"""

from __future__ import annotations

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Read a UTF-8 file and split it with `split_lines`. Raises OSError and UnicodeDecodeError."""
    return split_lines(path.read_bytes().decode("utf-8"))


def split_lines(text: str) -> list[str]:
    r"""Split a text into lines without their ends, `\n` or `\r\n`. The last line needs no end."""
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
