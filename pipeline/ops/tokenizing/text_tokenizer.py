"""TextTokenizer: texts to token ids, with the special tokens set around them afterwards.

A text is tokenized without special tokens. So it may be cut into windows, or be the first of many pairs, and
is tokenized once all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pipeline.errors import ConfigError


class Tokens(NamedTuple):
    """A tokenized text."""

    ids: list[int]
    offsets: list[tuple[int, int]] = []  # characters of each piece, in the text or in its word
    words: list[int] = []  # number of each piece's word, for texts that clients have split


class Row(NamedTuple):
    """A row of the model's feeds: token ids and segments."""

    ids: list[int]
    types: list[int]
    at: int  # place of the first text's first token


class _Part(NamedTuple):
    """Special tokens in front of a text, and the segment of the text; of the last part no text follows."""

    ids: list[int]
    types: list[int]
    segment: int = 0


class TextTokenizer:
    """Wraps a `Tokenizer` of the library `tokenizers`; used by several threads at once."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._single = self._layout(paired=False)
        self._paired = self._layout(paired=True)
        self.space: int | None = tokenizer.token_to_id("▁")  # of SentencePiece: stands for a space alone

    @property
    def vocabulary_size(self) -> int:
        """How many tokens there are."""
        return int(self._tokenizer.get_vocab_size())

    def tokens(self, texts: Sequence[str], *, places: bool = False) -> list[Tokens]:
        """Return the tokens of each text. places: with their offsets."""
        if len(texts) == 1:  # without the threads of the library
            encoding = self._tokenizer.encode(texts[0], add_special_tokens=False)
            return [Tokens(encoding.ids, encoding.offsets if places else [])]
        if not places:
            encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
            return [Tokens(encoding.ids) for encoding in encoded]
        encoded = self._tokenizer.encode_batch(list(texts), add_special_tokens=False)
        return [Tokens(encoding.ids, encoding.offsets) for encoding in encoded]

    def tokens_of_split(self, texts: Sequence[Sequence[str]]) -> list[Tokens]:
        """Return the tokens of texts that clients have split into words."""
        split = [list(tokens) for tokens in texts]
        encoded = self._tokenizer.encode_batch(split, is_pretokenized=True, add_special_tokens=False)
        return [Tokens(encoding.ids, encoding.offsets, encoding.word_ids) for encoding in encoded]

    def encode(self, text: str, *, special: bool) -> Any:
        """Return the encoding of a text: `ids`, `tokens`, `offsets`, `special_tokens_mask`.

        special: whether special tokens stand around the text.
        """
        return self._tokenizer.encode(text, add_special_tokens=special)

    def special(self, *, paired: bool) -> int:
        """How many special tokens a row has."""
        return sum(len(part.ids) for part in (self._paired if paired else self._single))

    def row(self, first: Sequence[int], second: Sequence[int] | None = None) -> Row:
        """A text, or a pair, with the special tokens around it."""
        texts = (first,) if second is None else (first, second)
        layout = self._single if second is None else self._paired
        ids: list[int] = []
        types: list[int] = []
        for part, text in zip(layout, texts, strict=False):
            ids += part.ids
            types += part.types
            ids += text
            types += [part.segment] * len(text)
        ids += layout[-1].ids
        types += layout[-1].types
        return Row(ids, types, len(layout[0].ids))

    def _layout(self, *, paired: bool) -> list[_Part]:
        """Where the special tokens stand, read off a text that is known."""
        encoding = self._tokenizer.encode("a", "a" if paired else None)
        parts: list[_Part] = []
        ids: list[int] = []
        types: list[int] = []
        last = None
        for number, segment, text in zip(encoding.ids, encoding.type_ids, encoding.sequence_ids, strict=True):
            if text is None:
                ids.append(number)
                types.append(segment)
            elif text != last:
                parts.append(_Part(ids, types, segment))
                ids, types = [], []
            last = text
        if len(parts) != 1 + paired:
            raise ConfigError("the tokenizer beside the model makes no token of the text 'a': is it whole?")
        return [*parts, _Part(ids, types)]


def shortened(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """A pair cut to `room` tokens in all: of the longer text until both are equally long, then of both."""
    if len(first) + len(second) <= room:
        return first, second
    half = min(len(first), len(second), room // 2)
    if len(first) <= len(second):
        return first[:half], second[: room - half]
    return first[: room - half], second[:half]
