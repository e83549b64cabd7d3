"""Preprocessing of an English review for the IMDB sentiment examples: words to ids."""

from __future__ import annotations

import re
from pathlib import Path

from pipeline.text_lines import read_lines

_SPLIT = re.compile(r"(;|,|\.|\?|!|\s|\(|\))")


class IMDBDataset:
    """Converts a review to word ids: `load_resource("imdb.vocab")`, then `get_words_only(text)`.

    Unknown words get the number of words as their id.
    """

    def load_resource(self, dictfile: str | Path) -> None:
        """Read a vocabulary file with one word per line. Raise OSError."""
        self._ids = {line.strip(): number for number, line in enumerate(read_lines(Path(dictfile)))}

    def get_words_only(self, line: str) -> list[int]:
        """Return the ids of a text's words and punctuation marks."""
        text = line.lower().replace("<br />", " ").strip()
        return [self._ids.get(word, len(self._ids)) for word in _SPLIT.split(text) if word and word != " "]

    def get_words_and_label(self, line: str) -> tuple[list[int], list[int]]:
        """Parse a line "text|label" to the ids of the words and [label]."""
        text, _, label = line.rpartition("|")
        return self.get_words_only(text), [int(label)]
