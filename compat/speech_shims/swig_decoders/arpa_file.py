"""N-gram language models in ARPA files, read and queried in Python."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

Ngram = tuple[str, ...]


class ArpaModel:
    """A language model of n-grams with back-off weights. Logarithms have base 10, as in the file.

    Raises ValueError if the file is not an ARPA file, and OSError.
    """

    def __init__(self, path: str | Path) -> None:
        self._log_probabilities: dict[Ngram, float] = {}
        self._back_offs: dict[Ngram, float] = {}
        self.order = 0
        with Path(path).open(encoding="utf-8") as file:
            try:
                for order, number, line in _read_ngrams(file):
                    self.order = max(self.order, order)
                    self._add_ngram(order, line.split(), f"line {number}")
            except (UnicodeDecodeError, ValueError) as exc:
                raise ValueError(f"language model {path}: {exc}") from exc
        if not self.order:
            raise ValueError(f"language model {path}: no n-grams; an ARPA file begins with \\data\\")
        self.words = [ngram[0] for ngram in self._log_probabilities if len(ngram) == 1]

    def __contains__(self, word: str) -> bool:
        return (word,) in self._log_probabilities

    def log_probability(self, words: Sequence[str]) -> float:
        """Return the log probability of the last word, given the words before it."""
        ngram = tuple(words[-self.order :])
        back_off = 0.0
        while len(ngram) > 1 and ngram not in self._log_probabilities:
            back_off += self._back_offs.get(ngram[:-1], 0.0)
            ngram = ngram[1:]
        return back_off + self._log_probabilities[ngram]

    def _add_ngram(self, order: int, fields: list[str], place: str) -> None:
        if len(fields) not in (order + 1, order + 2):
            raise ValueError(f"{place} is no {order}-gram with its log probability")
        ngram = tuple(fields[1 : order + 1])
        self._log_probabilities[ngram] = float(fields[0])
        if len(fields) == order + 2:
            self._back_offs[ngram] = float(fields[-1])


def _read_ngrams(lines: Iterator[str]) -> Iterator[tuple[int, int, str]]:
    """Yield the order, the line number and the text of each n-gram of an ARPA file."""
    order = 0
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text.startswith("\\"):
            name = text.strip("\\:")
            order = int(name.removesuffix("-grams")) if name.endswith("-grams") else 0
        elif text and order:
            yield order, number, text
