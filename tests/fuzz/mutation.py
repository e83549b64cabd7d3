"""Mutations of recorded messages, the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

MAX_BYTES = 64 * 1024  # of a mutated message; what is larger teaches nothing new
_NUMBERS = [
    str(n).encode()
    for n in (0, -1, 1, 127, 128, 255, 256, 65535, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 32, 1 << 63,
              (1 << 64) - 1, 1 << 64, -(1 << 63), 10**19, 10**399, 10**401)
] + [b"9" * 5000, b"1e999", b"-0", b"1.5", b"NaN", b"Infinity", b"-Infinity", b"0x10", b"1_0",
b"\xd9\xa1"]  # fmt: skip
_BYTES = [
    b"\x00",
    b"\xff",
    b"\x7f",
    b"\x80",
    b"\xed\xa0\x80",
    b"\xc0\xaf",
    b"\xf4\x90\x80\x80",
    b"\xef\xbb\xbf",
]
_LENGTHS = [b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\x00\x00\x00\x80", b"\xff" * 9 + b"\x01", b"\x00" * 8]
_DIGITS = frozenset(b"0123456789")


class Mutator:
    """Makes one message of a corpus into another. words: what the format has a meaning for."""

    def __init__(self, corpus: Sequence[bytes], words: Sequence[bytes], seed: int) -> None:
        self._corpus = list(corpus)
        self._words = list(words) + _NUMBERS + _BYTES + _LENGTHS
        self._random = random.Random(seed)
        self._ways: list[Callable[[bytearray], None]] = [
            self._flip, self._set, self._insert, self._cut, self._repeat, self._splice, self._truncate,
            self._word, self._word, self._number, self._number, self._swap, self._nest,
        ]  # fmt: skip

    def next(self) -> bytes:
        """A message of the corpus, changed in one to four places."""
        data = bytearray(self._random.choice(self._corpus))
        for _ in range(self._random.choice((1, 1, 1, 2, 2, 3, 4))):
            self._random.choice(self._ways)(data)
        return bytes(data[:MAX_BYTES])

    def _at(self, data: bytearray) -> int:
        return self._random.randrange(len(data) + 1)

    def _span(self, data: bytearray) -> slice:
        start = self._at(data)
        return slice(start, start + self._random.choice((1, 2, 4, 8, 32, 256)))

    def _flip(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)

    def _set(self, data: bytearray) -> None:
        if data:
            data[self._random.randrange(len(data))] = self._random.randrange(256)

    def _insert(self, data: bytearray) -> None:
        at = self._at(data)
        data[at:at] = self._random.randbytes(self._random.choice((1, 2, 4, 9)))

    def _cut(self, data: bytearray) -> None:
        del data[self._span(data)]

    def _repeat(self, data: bytearray) -> None:
        span = self._span(data)
        data[span.start : span.start] = data[span] * self._random.choice((1, 2, 50))

    def _splice(self, data: bytearray) -> None:
        other = self._random.choice(self._corpus)
        start = self._random.randrange(len(other) + 1)
        data[self._span(data)] = other[start : start + self._random.choice((4, 32, 256))]

    def _truncate(self, data: bytearray) -> None:
        del data[self._at(data) :]

    def _word(self, data: bytearray) -> None:
        at = self._at(data)
        data[at : at + self._random.choice((0, 0, 1, 4))] = self._random.choice(self._words)

    def _number(self, data: bytearray) -> None:
        """Another number in place of one; where none stands, a word."""
        if not data:
            return
        start = self._random.randrange(len(data))
        while start < len(data) and data[start] not in _DIGITS:
            start += 1
        end = start
        while end < len(data) and data[end] in _DIGITS:
            end += 1
        data[start:end] = self._random.choice(_NUMBERS)

    def _swap(self, data: bytearray) -> None:
        one, other = self._span(data), self._span(data)
        data[one], data[other] = data[other], data[one]

    def _nest(self, data: bytearray) -> None:
        """Brackets, or a field in a field in a field."""
        levels = self._random.choice((5, 40, 2000))
        opening, closing = self._random.choice(
            (
                (b"[", b"]"),
                (b'{"a":', b"}"),
                (b"{", b"}"),
                (b"m {", b"}"),
                (b"\x1a\x7f", b""),
                (b"\x0b", b"\x0c"),
            )
        )
        at = self._at(data)
        data[at:at] = opening * levels + (closing * levels if self._random.random() < 0.7 else b"")
