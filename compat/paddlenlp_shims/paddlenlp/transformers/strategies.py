"""The options of a tokenizer's call: padding, truncation and outputs."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple


class Choice(Enum):
    """Base class of enumerations of option values.

    For an unknown value, it raises ValueError with the allowed values.
    """

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise ValueError(
            f"{value} is not a valid {cls.__name__}, please select one of {[c.value for c in cls]}"
        )


class PaddingStrategy(Choice):
    """Values of a call's option `padding`, besides True (longest) and False (do_not_pad)."""

    LONGEST = "longest"
    MAX_LENGTH = "max_length"
    DO_NOT_PAD = "do_not_pad"


class TruncationStrategy(Choice):
    """Values of a call's option `truncation`, besides True (longest_first) and False (do_not_truncate)."""

    ONLY_FIRST = "only_first"
    ONLY_SECOND = "only_second"
    LONGEST_FIRST = "longest_first"
    DO_NOT_TRUNCATE = "do_not_truncate"


class CallOptions(NamedTuple):
    """The resolved options of a tokenizer's call: padding, truncation, and which outputs to return."""

    padding: PaddingStrategy
    truncation: TruncationStrategy
    max_length: int | None
    stride: int
    is_split_into_words: bool | str
    pad_to_multiple_of: int | None
    add_special_tokens: bool
    return_position_ids: bool
    return_token_type_ids: bool
    return_attention_mask: bool
    return_length: bool
    return_overflowing_tokens: bool
    return_special_tokens_mask: bool
    return_offsets_mapping: bool
    text_options: Mapping[str, Any]


def lengths_longest_first(first: int, second: int, removed: int) -> tuple[int, int]:
    """Return the lengths of two texts after removing tokens one by one from the longer text.

    If both are equally long, the token is removed from the second text.
    """
    for _ in range(removed):
        if first > second:
            first -= 1
        else:
            second = max(second - 1, 0)
    return first, second


def truncate_ids(ids: list[Any], length: int, from_left: bool) -> list[Any]:
    """Return the first `length` tokens, or the last `length` tokens if `from_left`."""
    return ids[len(ids) - length :] if from_left else ids[:length]
