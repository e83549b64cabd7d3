"""`Vocab`: a vocabulary that maps tokens to ids and back."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


class Vocab:
    """Maps tokens to ids and back; unknown tokens have the id of `unk_token`.

    counter: frequency of each token; special tokens get the first ids, then the most frequent tokens.
    token_to_idx: a dict with given ids, instead of `counter`. Arguments that end in `_token` name special
    tokens, which are then attributes. Raises ValueError for other arguments, AssertionError for a special
    token without an id.
    """

    unk_token: str | None
    pad_token: str | None
    bos_token: str | None
    eos_token: str | None

    def __init__(
        self,
        counter: Mapping[str, int] | None = None,
        max_size: int | None = None,
        min_freq: int = 1,
        token_to_idx: Mapping[str, int] | None = None,
        unk_token: str | None = None,
        pad_token: str | None = None,
        bos_token: str | None = None,
        eos_token: str | None = None,
        **kwargs: str | None,
    ) -> None:
        usual = {
            "unk_token": unk_token,
            "pad_token": pad_token,
            "bos_token": bos_token,
            "eos_token": eos_token,
        }
        self._named = {**kwargs, **usual}
        for name in self._named:
            if not name.endswith("_token") or name.startswith("_"):
                raise ValueError(f"{name} is invalid: special tokens of a Vocab are named ..._token")
        special = list(dict.fromkeys(token for _, token in sorted(self._named.items()) if token is not None))
        if counter is None:
            if not token_to_idx:
                raise AssertionError("a Vocab needs a counter of tokens, or token_to_idx with their numbers")
            numbers = dict(token_to_idx)
        else:
            numbers = _numbered(counter, special, max_size, min_freq)
        for token in special:
            if token not in numbers:
                raise AssertionError(f"{token} is a special token, but the vocabulary does not have it")
        self._token_to_idx: dict[str, int] = numbers
        if unk_token:
            self._token_to_idx = _WithUnknown(numbers, numbers[unk_token])
        self._idx_to_token = {number: token for token, number in numbers.items()}
        for name, value in self._named.items():
            setattr(self, name, value)

    @property
    def token_to_idx(self) -> dict[str, int]:
        """Vocabulary as a dict from token to token id."""
        return self._token_to_idx

    @property
    def idx_to_token(self) -> dict[int, str]:
        """Vocabulary as a dict from token id to token."""
        return self._idx_to_token

    def to_indices(self, tokens: str | Sequence[str]) -> Any:
        """Return the id of a token, or the ids of several.

        Raises KeyError for an unknown token if there is no `unk_token`.
        """
        return self[tokens]

    def to_tokens(self, indices: int | Sequence[int] | np.ndarray[Any, Any]) -> Any:
        """Return the token of an id, or the tokens of several ids. Raise ValueError for an unknown id."""
        if not isinstance(indices, (list, tuple, np.ndarray)):
            return self._lookup_token(indices)
        return [self._lookup_token(index) for index in indices]

    def _lookup_token(self, index: Any) -> str:
        try:
            return self._idx_to_token[int(index)]
        except KeyError:
            raise ValueError(f"token index {index} is not in the vocabulary of {len(self)} tokens") from None

    def __getitem__(self, tokens: str | Sequence[str]) -> Any:
        if isinstance(tokens, (list, tuple)):
            return [self._lookup_index(token) for token in tokens]
        return self._lookup_index(tokens)

    def _lookup_index(self, token: Any) -> int:
        return self._token_to_idx[token]

    def __len__(self) -> int:
        return len(self._idx_to_token)

    def __contains__(self, token: object) -> bool:
        return token in self._token_to_idx

    def __call__(self, tokens: str | Sequence[str]) -> Any:
        return self[tokens]

    def to_json(self, path: str | None = None) -> str:
        """Return the vocabulary as JSON text for `from_json`.

        If `path` is given, also write the text to that file.
        """
        content = {
            "idx_to_token": self._idx_to_token,
            "token_to_idx": self._token_to_idx,
            "unk_token": self.unk_token,
            "identifiers_to_tokens": self._named,
        }
        text = json.dumps(content)
        if path:
            Path(path).write_text(text, "utf-8")
        return text

    @classmethod
    def from_json(cls, json_str: str) -> Vocab:
        """Create a vocabulary from the JSON text of `to_json`, or from the path of a file with it."""
        is_text = json_str.lstrip().startswith("{")
        content = json.loads(json_str if is_text else Path(json_str).read_text("utf-8"))
        named = {**content.get("identifiers_to_tokens", {}), "unk_token": content.get("unk_token")}
        return cls(token_to_idx=content.get("token_to_idx"), **named)

    @classmethod
    def from_dict(cls, token_to_idx: Mapping[str, int], **special: str | None) -> Vocab:
        """Create a vocabulary from a dict of token to token id. special: see the class."""
        return cls(token_to_idx=token_to_idx, **special)  # type: ignore[arg-type]

    @classmethod
    def build_vocab(cls, iterator: Iterable[Iterable[str]], **arguments: Any) -> Vocab:
        """Create a vocabulary from tokenized texts. The most frequent tokens get the first ids."""
        counter: Counter[str] = Counter()
        for tokens in iterator:
            counter.update(tokens)
        return cls(counter, **arguments)

    @classmethod
    def load_vocabulary(cls, filepath: str, **special: str | None) -> Vocab:
        r"""Create a vocabulary from a file with one token per line. The first line has id 0.

        Only "\n", "\r" and "\r\n" end a line. A repeated token has the id of its last line.
        """
        with Path(filepath).open(encoding="utf-8") as file:
            numbers = {line.rstrip("\n"): number for number, line in enumerate(file)}
        return cls(token_to_idx=numbers, **special)  # type: ignore[arg-type]

    def save_vocabulary(self, filepath: str) -> None:
        """Write the tokens to a file, one per line, in the order of their ids."""
        with Path(filepath).open("w", encoding="utf-8") as file:
            file.writelines(f"{self._idx_to_token[number]}\n" for number in sorted(self._idx_to_token))

    def get_unk_token_id(self) -> int | None:
        """Return the id of the token for unknown words; None if it is not set."""
        return self._number_of_special(self.unk_token)

    def get_pad_token_id(self) -> int | None:
        """Return the id of the padding token; None if it is not set."""
        return self._number_of_special(self.pad_token)

    def get_bos_token_id(self) -> int | None:
        """Return the id of the token that begins a sentence; None if it is not set."""
        return self._number_of_special(self.bos_token)

    def get_eos_token_id(self) -> int | None:
        """Return the id of the token that ends a sentence; None if it is not set."""
        return self._number_of_special(self.eos_token)

    def _number_of_special(self, token: str | None) -> int | None:
        return None if token is None else self._token_to_idx[token]


class _WithUnknown(dict[str, int]):
    """A dict of token ids that returns the id of the unknown token for missing tokens."""

    def __init__(self, numbers: Mapping[str, int], unknown: int) -> None:
        super().__init__(numbers)
        self._unknown = unknown

    def __missing__(self, token: str) -> int:
        return self._unknown

    def __reduce__(self) -> Any:
        return type(self), (dict(self), self._unknown)


def _numbered(
    counter: Mapping[str, int], special: Sequence[str], max_size: int | None, min_freq: int
) -> dict[str, int]:
    """Assign ids: first to the special tokens, then to at most `max_size` other tokens by frequency.

    Tokens that occur fewer than `min_freq` times are left out.
    """
    ordered = sorted(counter.items(), key=lambda entry: (-entry[1], entry[0]))
    frequent = [token for token, count in ordered if count >= min_freq and token not in special]
    return {token: number for number, token in enumerate([*special, *frequent[:max_size]])}
