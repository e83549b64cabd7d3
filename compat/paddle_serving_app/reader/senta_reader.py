"""Preprocessing of a Chinese text for the Senta sentiment model: words to ids."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from paddle_serving_app.reader.vocabulary_file import words_file

VOCABULARY = "senta_vocab.txt"
_ADDRESS = "https://paddle-serving.bj.bcebos.com/reader/senta/senta_vocab.txt"


class SentaReader:
    """Converts words to ids, by `process(words)`.

    Each line of the vocabulary file has a word, a tab and the word's id.
    """

    def __init__(self, vocab_path: str | Path = VOCABULARY, max_seq_len: int = 20) -> None:
        self.max_seq_len = max_seq_len
        self.word_dict = {}
        for line in words_file(vocab_path or VOCABULARY, "SentaReader", _ADDRESS):
            first, *fields = line.strip().split("\t")
            word, number = (first, fields[0]) if fields else ("", first)  # the word is only spaces
            self.word_dict[word] = int(number)
        self.word_dict["<unk>"] = len(self.word_dict)

    def process(self, cols: Iterable[str]) -> list[int]:
        """Return the id of each word. Unknown words get the size of the vocabulary as their id."""
        return [self.word_dict.get(word, len(self.word_dict)) for word in cols]
