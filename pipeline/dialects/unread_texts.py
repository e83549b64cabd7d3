"""UnreadTexts: texts of a request as the client wrote them, for the worker to read."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import numpy as np

from pipeline.errors import InvalidInput, TooLarge
from pipeline.messages.values import Unread

_decoder = msgspec.json.Decoder()
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_START = re.compile(rb"\s*\[\s*(.)")  # of a list, with the first character of its first element


class UnreadTexts(Unread, eq=False):
    """Texts as a client wrote them in JSON: one, a list, or a list of token ids or of lists of these.

    name: the field, for messages. most, most_chars: how many texts there may be, and how long. width: 0 for
    these; else `data` holds texts or pairs as TEI's clients write them, and each has so many texts, of which
    `part` says the one that is read. as_tensor: for a model that takes a tensor of BYTES, and no token ids.
    """

    kind = "texts.json"
    name: str
    most: int
    most_chars: int
    width: int = 0
    part: int = 0
    as_tensor: bool = False

    def count(self) -> int:
        """Return how many texts there are, without decoding them. Raises TooLarge."""
        start = _START.match(self.data)
        if start is None or start[1] not in (b'"[' if not self.width else b"["):
            return 1  # a text, a pair, or the token ids of a text
        try:
            count = len(_elements.decode(self.data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return 1  # refused by `read`
        self._check_number(count)
        return count

    def read(self) -> Any:
        """The texts, or lists of token ids; as a tensor an array of `bytes` objects.

        Raises InvalidInput and TooLarge that name the field.
        """
        texts = self._parse_texts()
        if not self.as_tensor:
            return texts
        if type(texts[0]) is list:
            raise InvalidInput(f"'{self.name}' has token ids, and the model takes texts alone")
        array = np.empty(len(texts), object)
        array[:] = [text.encode() for text in texts]
        return array

    def _parse_texts(self) -> list[Any]:
        try:
            given = _decoder.decode(self.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidInput(f"'{self.name}' can't be read: {exc}") from None
        if self.width:
            return self._checked([self._element(pair) for pair in _sequences(given, self.name)])
        if isinstance(given, str):
            return self._checked([given])
        if not isinstance(given, list) or not given:
            told = "is an empty list" if given == [] else "is no text and no list of texts"
            raise InvalidInput(f"'{self.name}' {told}: send a text, or a list with one at least")
        return self._checked([given] if type(given[0]) is int else given)

    def _element(self, pair: list[str]) -> str:
        if len(pair) != self.width:
            told = "a pair; the model takes single texts" if self.width == 1 else "a text without its second"
            raise InvalidInput(f"'{self.name}' has {told}")
        return pair[self.part]

    def _check_number(self, count: int) -> None:
        if count > self.most:
            raise TooLarge(f"'{self.name}' has {count} texts; {self.most} are allowed in a request")

    def _checked(self, texts: list[Any]) -> list[Any]:
        self._check_number(len(texts))
        for number, text in enumerate(texts):
            where = f"'{self.name}'" if len(texts) == 1 else f"text {number} of '{self.name}'"
            if isinstance(text, str):
                if not text.strip():
                    raise InvalidInput(f"{where} is empty")
                if len(text) > self.most_chars:
                    raise TooLarge(
                        f"{where} has {len(text)} characters; limits.text_chars is {self.most_chars}"
                    )
            elif type(text) is not list or not text or any(type(token) is not int for token in text):
                raise InvalidInput(f"{where} is no text, and no list of token ids")
        if len({type(text) for text in texts}) > 1:
            raise InvalidInput(f"'{self.name}' has texts beside lists of token ids: send one or the other")
        return texts


def _sequences(given: Any, name: str) -> list[list[str]]:
    """Texts and pairs as TEI's clients write them: "a", ["a"], ["a", "b"], [["a"], ["b", "c"]]."""
    if isinstance(given, str):
        return [[given]]
    if isinstance(given, list) and given:
        many = given if all(type(one) is list for one in given) else [given]
        if all(1 <= len(one) <= 2 and all(type(text) is str for text in one) for one in many):
            return many
    raise InvalidInput(f"'{name}' is no text, no pair of texts, and no list of such lists")
