"""Reads vocabulary files, as `fast_tokenizer.models` of PaddleNLP does."""

from __future__ import annotations

from pathlib import Path


class WordPiece:
    """A namespace for `WordPiece.read_file(path)`, which reads a vocabulary."""

    @staticmethod
    def read_file(vocab_file: str) -> dict[str, int]:
        r"""Read a vocabulary file with one token per line. Returns a dict from token to token id.

        The first line has id 0. Only "\n", "\r" and "\r\n" end a line.
        """
        with Path(vocab_file).open(encoding="utf-8") as file:
            return {line.rstrip("\n"): number for number, line in enumerate(file)}

    get_vocab_from_file = read_file  # as it was called in faster_tokenizers


FastWordPiece = FasterWordPiece = WordPiece
