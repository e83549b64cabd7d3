"""Vocabulary files as the C++ packages' models read them."""

from __future__ import annotations

from pathlib import Path


class WordPiece:
    """`WordPiece.read_file(path)`: the numbers of tokens that stand in a file, one a line."""

    @staticmethod
    def read_file(vocab_file: str) -> dict[str, int]:
        r"""Number by token; the first line has 0. Only "\n", "\r" and "\r\n" end a line."""
        with Path(vocab_file).open(encoding="utf-8") as file:
            return {line.rstrip("\n"): number for number, line in enumerate(file)}

    get_vocab_from_file = read_file  # as it was called in faster_tokenizers


FastWordPiece = FasterWordPiece = WordPiece
