"""Reading of vocabulary and text files, with lines that end at line feeds only.

`str.splitlines` also splits at U+2028, U+0085, U+000B and others, which occur in real vocabularies and texts.
Line 344 of bert-base-chinese's vocab.txt is U+2028: every word after it would get its neighbour's number.
`open` and `Path.read_text` also end a line at each U+000D.
"""

from __future__ import annotations

from pathlib import Path


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 file, without line ends. Raises OSError and UnicodeDecodeError."""
    return split_lines(path.read_bytes().decode("utf-8"))


def split_lines(text: str) -> list[str]:
    r"""Split a text at `\n` and `\r\n` only, and return the lines without their ends.

    The last line may lack a line end.
    """
    lines = text.split("\n")
    if not lines[-1]:
        del lines[-1]
    return [line.removesuffix("\r") for line in lines]
