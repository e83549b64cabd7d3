"""A BERT WordPiece tokenizer with the same ids as paddle_serving_app's `FullTokenizer`.

The algorithm is that of Google's BERT (tokenization.py of google-research/bert), with Python's character
tables and lower case. The package tokenizers has older tables and gives other ids for hundreds of characters.
`[MASK]`, `[SEP]` and the like in a text are three tokens each, as any word in brackets.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path

from paddle_serving_app.reader.vocabulary_file import words_file

UNKNOWN = "[UNK]"
MAX_CHARACTERS = 100  # of a word; a longer one is unknown
_IDEOGRAPHS = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)


def read_vocabulary(path: str | Path, reader: str, address: str) -> dict[str, int]:
    """Read a vocabulary file, and return the id of each token.

    A line has a token, whose id is the line number, or a token, a tab and its id. Reading stops at a line
    with more parts. reader, address: the class, and the URL of the file, for the error message. Raises
    FileNotFoundError, and ValueError for an invalid id.
    """
    ids: dict[str, int] = {}
    for number, line in enumerate(words_file(path, reader, address)):
        piece, *fields = line.strip().split("\t")
        if len(fields) > 1:
            break
        ids[piece.strip()] = int(fields[0]) if fields else number
    return ids


class BertTokenizer:
    """An uncased WordPiece tokenizer: `tokenize(text)`, then `convert_tokens_to_ids(tokens)`."""

    def __init__(self, vocab: Mapping[str, int]) -> None:
        self.vocab = vocab

    def tokenize(self, text: str) -> list[str]:
        """Split a text into lower-case tokens without accents. An unknown word becomes "[UNK]"."""
        plain = unicodedata.normalize("NFD", text.translate(_CLEANED).lower())
        return [piece for word in plain.translate(_SPLIT).split() for piece in self._pieces(word)]

    def convert_tokens_to_ids(self, tokens: Iterable[str]) -> list[int]:
        """Return the ids of tokens. Raise KeyError for a token that is not in the vocabulary."""
        return [self.vocab[token] for token in tokens]

    def _pieces(self, word: str) -> list[str]:
        """Split a word from left to right into tokens of the vocabulary, each as long as possible."""
        if len(word) > MAX_CHARACTERS:
            return [UNKNOWN]
        pieces: list[str] = []
        start = 0
        while start < len(word):
            lead = "##" if start else ""
            ends = range(len(word), start, -1)
            end = next((end for end in ends if lead + word[start:end] in self.vocab), None)
            if end is None:
                return [UNKNOWN]
            pieces.append(lead + word[start:end])
            start = end
        return pieces


class _Cleaned(dict[int, str]):
    """A table for `str.translate` that removes control characters and puts spaces around ideographs.

    All white space becomes a space.
    """

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if char in " \t\n\r" or category == "Zs":
            new = " "
        elif code == 0xFFFD or category[0] == "C":
            new = ""
        elif any(code in block for block in _IDEOGRAPHS):
            new = f" {char} "
        else:
            new = char
        self[code] = new
        return new


class _Split(dict[int, str]):
    """A table for `str.translate` that removes accents and puts spaces around punctuation and symbols."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        category = unicodedata.category(char)
        if category == "Mn":
            new = ""
        elif category[0] == "P" or (char.isascii() and category[0] == "S"):
            new = f" {char} "
        else:
            new = char
        self[code] = new
        return new


_CLEANED, _SPLIT = _Cleaned(), _Split()
