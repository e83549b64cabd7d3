"""Special tokens of a tokenizer, such as [CLS], [SEP] and [PAD], and tokens added to a vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

SPECIAL_TOKENS_ATTRIBUTES = [
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
    "additional_special_tokens",
]


@dataclass(frozen=True)
class AddedToken:
    """A token that is never split. lstrip, rstrip: whether it includes the spaces on its left or right side.

    single_word and normalized are stored, but have no effect.
    """

    content: str = ""
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = True

    def __str__(self) -> str:
        return self.content

    def __getstate__(self) -> dict[str, Any]:
        return asdict(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


Token = str | AddedToken


class _Spelling:
    """Descriptor for attributes such as `tokenizer.pad_token`: the token's text, or None if not set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    def __get__(self, tokenizer: Any, owner: type | None = None) -> str | None:
        value = getattr(tokenizer, self._name)
        return None if value is None else str(value)

    def __set__(self, tokenizer: Any, value: Token | None) -> None:
        setattr(tokenizer, self._name, value)


class _Number:
    """Descriptor for attributes such as `tokenizer.pad_token_id`: the token's id, or None if not set."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._token = name.removesuffix("_id")

    def __get__(self, tokenizer: Any, owner: type | None = None) -> Any:
        token = getattr(tokenizer, self._token)
        return None if token is None else tokenizer.convert_tokens_to_ids(token)

    def __set__(self, tokenizer: Any, value: int) -> None:
        setattr(tokenizer, self._token, tokenizer.convert_ids_to_tokens(value))


class SpecialTokensMixin:
    """Mixin for a tokenizer's special tokens by role, as text (`pad_token`) and id (`pad_token_id`)."""

    SPECIAL_TOKENS_ATTRIBUTES = SPECIAL_TOKENS_ATTRIBUTES

    bos_token, eos_token, unk_token, sep_token = _Spelling(), _Spelling(), _Spelling(), _Spelling()
    pad_token, cls_token, mask_token = _Spelling(), _Spelling(), _Spelling()
    bos_token_id, eos_token_id, unk_token_id, sep_token_id = _Number(), _Number(), _Number(), _Number()
    pad_token_id, cls_token_id, mask_token_id = _Number(), _Number(), _Number()
    _pad_token_type_id = 0

    def _set_special_tokens(self, settings: Mapping[str, Any]) -> None:
        """Set the special tokens among the constructor's arguments.

        Raises TypeError for a token that is neither a text nor an AddedToken.
        """
        for role in SPECIAL_TOKENS_ATTRIBUTES[:-1]:
            value = settings.get(role)
            if not (value is None or isinstance(value, (str, AddedToken))):
                raise TypeError(
                    f"special token {role} has to be text or an AddedToken, not {type(value).__name__}"
                )
            setattr(self, f"_{role}", value)
        additional = settings.get("additional_special_tokens") or []
        if not all(isinstance(token, (str, AddedToken)) for token in additional):
            raise TypeError("additional_special_tokens has to be a list of texts and AddedTokens")
        self._additional_special_tokens: list[Token] = list(additional)

    @property
    def pad_token_type_id(self) -> int:
        """The value with which token_type_ids are padded."""
        return self._pad_token_type_id

    @property
    def additional_special_tokens(self) -> list[str]:
        """Special tokens without a role, as text."""
        return [str(token) for token in self._additional_special_tokens]

    @additional_special_tokens.setter
    def additional_special_tokens(self, value: Iterable[Token]) -> None:
        self._additional_special_tokens = list(value)

    @property
    def additional_special_tokens_ids(self) -> list[int]:
        ids: list[int] = self.convert_tokens_to_ids(self.additional_special_tokens)
        return ids

    @property
    def special_tokens_map_extended(self) -> dict[str, Any]:
        """The special tokens that are set, by role; each a text or an AddedToken."""
        values = ((role, getattr(self, f"_{role}")) for role in SPECIAL_TOKENS_ATTRIBUTES)
        return {role: value for role, value in values if value}

    @property
    def special_tokens_map(self) -> dict[str, Any]:
        """The special tokens that are set, by role, as text."""
        extended = self.special_tokens_map_extended
        return {
            role: [str(token) for token in value] if isinstance(value, list) else str(value)
            for role, value in extended.items()
        }

    @property
    def all_special_tokens_extended(self) -> list[Token]:
        tokens: list[Token] = []
        for value in self.special_tokens_map_extended.values():
            tokens += value if isinstance(value, list) else [value]
        return list(dict.fromkeys(tokens))

    @property
    def all_special_tokens(self) -> list[str]:
        return [str(token) for token in self.all_special_tokens_extended]

    @property
    def all_special_ids(self) -> list[int]:
        ids: list[int] = self.convert_tokens_to_ids(self.all_special_tokens)
        return ids

    def sanitize_special_tokens(self) -> int:
        """Add missing special tokens to the vocabulary, and mark all as never split.

        Return how many were added.
        """
        return self.add_tokens(self.all_special_tokens_extended, special_tokens=True)

    def add_special_tokens(self, special_tokens_dict: Mapping[str, Any]) -> int:
        """Set special tokens by role; return how many were added to the vocabulary."""
        added = 0
        for role, value in special_tokens_dict.items():
            if role not in SPECIAL_TOKENS_ATTRIBUTES:
                raise AssertionError(
                    f"{role} is no role of special tokens: {', '.join(SPECIAL_TOKENS_ATTRIBUTES)}"
                )
            setattr(self, role, value)
            added += self.add_tokens(value, special_tokens=True)
        return added

    def add_tokens(self, new_tokens: Token | Sequence[Token], special_tokens: bool = False) -> int:
        """Add tokens that are never split. Return how many of them were missing in the vocabulary."""
        if not new_tokens:
            return 0
        tokens = list(new_tokens) if isinstance(new_tokens, (list, tuple)) else [new_tokens]
        return self._add_tokens([str(token) for token in tokens], special_tokens)

    def _add_tokens(self, new_tokens: list[str], special_tokens: bool) -> int:
        raise NotImplementedError

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        raise NotImplementedError

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        raise NotImplementedError
