"""WORKER PROCESS: decodes the texts in requests to text models, and checks the vectors in their outputs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from pipeline.errors import InvalidInput, TooLarge, UnprintableAnswer
from pipeline.messages.frames import Unread

_decoder = msgspec.json.Decoder()
_elements = msgspec.json.Decoder(list[msgspec.Raw])
_START = re.compile(rb"\s*\[\s*(.)")  # start of a list, with the first character of its first element
EMBEDDING, TOKENS = "embedding", "tokens"


class UnreadTexts(Unread, eq=False):
    """The texts of a request in JSON, which the worker process decodes instead of the front process.

    `data` is a text, a list of texts, the token ids of a text, or a list of token id lists.
    """

    kind = "texts.json"
    name: str  # name of the field, for error messages
    max_texts: int
    max_chars: int  # maximum length of each text
    width: int = 0  # texts in each element of TEI's lists of texts and pairs; 0: `data` is no such list
    part: int = 0  # index of the text in each pair
    as_tensor: bool = False  # for a model that takes a tensor of BYTES, and no token ids

    def count(self) -> int:
        """Return the number of texts without decoding them. Raises TooLarge for too many texts."""
        start = _START.match(self.data)
        if start is None or start[1] not in (b'"[' if not self.width else b"["):
            return 1  # a text, a pair, or the token ids of a text
        try:
            count = len(_elements.decode(self.data))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return 1  # rejected by `decode`
        self._check_number(count)
        return count

    def decode(self) -> Any:
        """Decode to a list of texts or of token id lists; with `as_tensor`, to an array of `bytes` objects.

        Raises InvalidInput and TooLarge, which are client errors, with the name of the field.
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
            value = _decoder.decode(self.data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as exc:
            raise InvalidInput(f"'{self.name}' can't be read: {exc}") from None
        if self.width:
            return self._checked([self._element(pair) for pair in _sequences(value, self.name)])
        if isinstance(value, str):
            return self._checked([value])
        if not isinstance(value, list) or not value:
            problem = "is an empty list" if value == [] else "is no text and no list of texts"
            raise InvalidInput(f"'{self.name}' {problem}: send a text, or a list with one at least")
        return self._checked([value] if type(value[0]) is int else value)

    def _element(self, pair: list[str]) -> str:
        if len(pair) != self.width:
            problem = (
                "a pair; the model takes single texts" if self.width == 1 else "a text without its second"
            )
            raise InvalidInput(f"'{self.name}' has {problem}")
        return pair[self.part]

    def _check_number(self, count: int) -> None:
        if count > self.max_texts:
            raise TooLarge(f"'{self.name}' has {count} texts; {self.max_texts} are allowed in a request")

    def _checked(self, texts: list[Any]) -> list[Any]:
        self._check_number(len(texts))
        for number, text in enumerate(texts):
            where = f"'{self.name}'" if len(texts) == 1 else f"text {number} of '{self.name}'"
            if isinstance(text, str):
                if not text.strip():
                    raise InvalidInput(f"{where} is empty")
                if len(text) > self.max_chars:
                    raise TooLarge(
                        f"{where} has {len(text)} characters; limits.text_chars is {self.max_chars}"
                    )
            elif type(text) is not list or not text or any(type(token) is not int for token in text):
                raise InvalidInput(f"{where} is no text, and no list of token ids")
        if len({type(text) for text in texts}) > 1:
            raise InvalidInput(f"'{self.name}' has texts beside lists of token ids: send one or the other")
        return texts


def _sequences(value: Any, name: str) -> list[list[str]]:
    """Return the inputs of a TEI request as lists of one or two texts. Raises InvalidInput for other inputs.

    TEI clients send "a", ["a"], ["a", "b"] or [["a"], ["b", "c"]].
    """
    if isinstance(value, str):
        return [[value]]
    if isinstance(value, list) and value:
        sequences = value if all(type(sequence) is list for sequence in value) else [value]
        if all(
            1 <= len(sequence) <= 2 and all(type(text) is str for text in sequence) for sequence in sequences
        ):
            return sequences
    raise InvalidInput(f"'{name}' is no text, no pair of texts, and no list of such lists")


def vectors_in(output: Mapping[str, Any]) -> tuple[npt.NDArray[np.float32], int]:
    """Return the vectors in the output of an embeddings model, one row per text, and the number of tokens.

    The number of tokens is the total of all texts; 0 if the model does not count tokens. Raises
    UnprintableAnswer, a server error, for an output without vectors.
    """
    vectors = output.get(EMBEDDING)
    if not isinstance(vectors, np.ndarray) or vectors.ndim != 2 or vectors.dtype.kind != "f":
        raise UnprintableAnswer(f"the service gives no {EMBEDDING!r} with a row for each text")
    tokens = output.get(TOKENS)
    return vectors.astype(np.float32, copy=False), 0 if tokens is None else int(np.sum(tokens))
