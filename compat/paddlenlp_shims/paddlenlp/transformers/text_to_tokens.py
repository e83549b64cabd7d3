"""The base of all tokenizers: converts texts to tokens and ids and back, with special tokens around them.

Source: paddlenlp 2.8.1, transformers/tokenizer_utils.py (Apache-2.0).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..data import Vocab
from .batch_encoding import as_lists
from .offset_mapping import Span, normalized_character, spans_of_tokens
from .special_tokens import AddedToken, SpecialTokensMixin

Ids = list[int]
ENDLESS = int(1e30)
"""The length of a model that has no longest text."""


class TextToTokens(SpecialTokensMixin):
    """Base class of the tokenizers: conversion between texts, tokens and ids, without padding and truncation.

    A subclass names its files and arguments, and overrides `_load` and `_tokenize`.
    """

    resource_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.txt"}
    """The files by the argument that names them, as `save_pretrained` writes them."""
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file",)
    """The constructor's arguments that name files, in their order; `arguments` come after them."""
    arguments: ClassVar[dict[str, Any]] = {}
    """The constructor's other arguments in their order, with their defaults."""
    text_options: ClassVar[tuple[str, ...]] = ()
    """Arguments of a call that `tokenize` uses as well."""
    around: ClassVar[tuple[str, str]] = ("cls", "sep")
    """Roles of the special tokens before and after a text."""

    model_input_names: list[str] = ["input_ids", "token_type_ids"]
    padding_side = "right"
    truncation_side = "right"
    name_or_path = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = [*self.file_arguments, *self.arguments]
        if len(args) > len(names):
            raise TypeError(
                f"{type(self).__name__} takes {len(names)} positional arguments: {', '.join(names)}"
            )
        settings = {**self.arguments, **dict(zip(names, args, strict=False)), **kwargs}
        self.init_kwargs: dict[str, Any] = dict(settings)
        longest = settings.get("model_max_length", settings.get("max_len"))
        self.model_max_length: int = ENDLESS if longest is None else longest
        for side in ("padding_side", "truncation_side"):
            if settings.get(side, "right") not in ("right", "left"):
                raise ValueError(f"{side} has to be 'right' or 'left', not {settings[side]!r}")
            setattr(self, side, settings.get(side, getattr(self, side)))
        self.model_input_names = settings.get("model_input_names", self.model_input_names)
        self.name_or_path = settings.get("name_or_path", "")
        self.verbose: bool = settings.get("verbose", True)
        self._set_special_tokens(settings)
        self.added_tokens_encoder: dict[str, int] = {}
        self.added_tokens_decoder: dict[int, str] = {}
        self.unique_no_split_tokens: list[str] = []
        self._unsplit: re.Pattern[str] | None = None
        self._load(settings)

    def _load(self, settings: dict[str, Any]) -> None:
        """Read the tokenizer's files, which the constructor arguments name.

        Raises ValueError for a missing file.
        """
        raise NotImplementedError

    def _tokenize(self, text: str) -> list[str]:
        """Split a text that has no special or added tokens."""
        raise NotImplementedError

    def save_resources(self, save_directory: str) -> None:
        """Copy the tokenizer's files, such as the vocabulary, to a folder."""
        for argument, name in self.resource_files_names.items():
            source = self.init_kwargs.get(argument)
            target = Path(save_directory, name)
            if source and Path(source).resolve() != target.resolve():
                target.write_bytes(Path(source).read_bytes())

    # The vocabulary:

    _vocab: Vocab

    @property
    def vocab(self) -> Any:
        """The vocabulary, without added tokens."""
        return self._vocab

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the vocabulary, without added tokens."""
        return len(self._vocab)

    @property
    def is_fast(self) -> bool:
        """Whether this is a fast tokenizer of the C++ packages; always False."""
        return False

    def __len__(self) -> int:
        return self.vocab_size + len(self.added_tokens_encoder)

    def __repr__(self) -> str:
        return (
            f"PretrainedTokenizer(name_or_path='{self.name_or_path}', vocab_size={self.vocab_size}, "
            f"model_max_len={self.model_max_length}, padding_side='{self.padding_side}', "
            f"truncation_side='{self.truncation_side}', special_tokens={self.special_tokens_map_extended})"
        )

    def get_vocab(self) -> dict[str, int]:
        """Return the vocabulary, including added tokens, as a dict from token to id."""
        return {**self._vocab.token_to_idx, **self.added_tokens_encoder}

    def get_added_vocab(self) -> dict[str, int]:
        """Return only the added tokens, as a dict from token to id."""
        return self.added_tokens_encoder

    @staticmethod
    def load_vocabulary(filepath: str, **special: str | None) -> Vocab:
        """Read a vocabulary file with one token per line. special: see `Vocab`."""
        return Vocab.load_vocabulary(filepath, **special)

    def _convert_token_to_id(self, token: str) -> int:
        number: int = self._vocab[token]
        return number

    def _convert_id_to_token(self, index: int) -> str:
        token: str = self._vocab.to_tokens(index)
        return token

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Return the id of a token, or the ids of a list of tokens.

        Unknown tokens get the id of unk_token.
        """
        if tokens is None:
            return None
        if isinstance(tokens, str):
            return self._id_with_added(tokens)
        return [self._id_with_added(token) for token in tokens]

    def _id_with_added(self, token: Any) -> Any:
        if token is None:
            return None
        added = self.added_tokens_encoder.get(token)
        return self._convert_token_to_id(token) if added is None else added

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Return the token of an id, or the tokens of a list of ids."""
        if isinstance(ids, int):
            return self._token_with_added(ids)
        skipped = set(self.all_special_ids) if skip_special_tokens else set()
        return [self._token_with_added(number) for number in map(int, ids) if number not in skipped]

    def _token_with_added(self, index: int) -> str:
        added = self.added_tokens_decoder.get(index)
        return self._convert_id_to_token(index) if added is None else added

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Join tokens to a text."""
        return " ".join(tokens)

    def _add_tokens(self, new_tokens: list[str], special_tokens: bool) -> int:
        lower = not special_tokens and getattr(self, "do_lower_case", False)
        tokens = [token.lower() for token in new_tokens] if lower else new_tokens
        unknown = self.convert_tokens_to_ids(self.unk_token)
        absent = [token for token in tokens if token != self.unk_token]
        absent = [token for token in dict.fromkeys(absent) if self.convert_tokens_to_ids(token) == unknown]
        for number, token in enumerate(absent, len(self)):
            self.added_tokens_encoder[token] = number
            self.added_tokens_decoder[number] = token
        unsplit = {*self.unique_no_split_tokens, *(new_tokens if special_tokens else absent)}
        self.unique_no_split_tokens = sorted(token for token in unsplit if token)
        longest_first = sorted(self.unique_no_split_tokens, key=len, reverse=True)
        self._unsplit = (
            re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None
        )
        return len(absent)

    # From text to tokens:

    def prepare_for_tokenization(
        self, text: str, is_split_into_words: bool | str = False, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        """Return the text to tokenize, and the remaining arguments.

        Subclasses override this method, for example to add a space before the text.
        """
        return text, kwargs

    def tokenize(self, text: str, **kwargs: Any) -> list[str]:
        """Split a text into tokens; special and added tokens in the text are not split.

        Raises TypeError for a value that is not a text.
        """
        if not isinstance(text, str):
            raise TypeError(f"a tokenizer takes text, not {type(text).__name__}")
        text, kwargs = self.prepare_for_tokenization(text, **kwargs)
        if getattr(self, "do_lower_case", False):
            text = self._lower(text)
        options = {name: kwargs[name] for name in self.text_options if name in kwargs}
        if self._unsplit is None:
            return self._tokenize(text, **options) if text else []
        parts = [part for part in self._unsplit.split(text) if part]
        unsplit = set(self.unique_no_split_tokens)
        self._strip_beside_unsplit(parts, unsplit)
        tokens: list[str] = []
        for part in parts:
            if part:
                tokens += [part] if part in unsplit else self._tokenize(part, **options)
        return tokens

    def _lower(self, text: str) -> str:
        """Convert a text to lower case, except special tokens. A final Σ becomes σ."""
        unchanged = [*self.unique_no_split_tokens, *self.all_special_tokens]
        parts = re.split("(" + "|".join(map(re.escape, unchanged)) + ")", text) if unchanged else [text]
        for place in range(0, len(parts), 2):
            parts[place] = (
                "".join(map(str.lower, parts[place])) if "Σ" in parts[place] else parts[place].lower()
            )
        return "".join(parts)

    def _strip_beside_unsplit(self, parts: list[str], unsplit: set[str]) -> None:
        """Remove spaces next to special and added tokens, in place, if a token's lstrip or rstrip is set."""
        extended = {str(t): t for t in self.all_special_tokens_extended if isinstance(t, AddedToken)}
        for place, part in enumerate(parts):
            if part not in unsplit:
                continue
            added = extended.get(part)
            if place + 1 < len(parts) and (added is None or added.rstrip):
                parts[place + 1] = parts[place + 1].lstrip()
            if place > 0 and (added is None or added.lstrip):
                parts[place - 1] = parts[place - 1].rstrip()

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        """Return start and end of each token in the text, in characters; None if the text is None."""
        if text is None:
            return None
        lower = getattr(self, "do_lower_case", False)
        tokens = [self.convert_tokens_to_string(token).strip() for token in self.tokenize(text)]
        special = set(self.all_special_tokens)
        tokens = [token.lower() if lower and token in special else token for token in tokens]
        normalized = "".join(map(normalized_character, text))
        return spans_of_tokens(normalized.lower() if lower else normalized, list(range(len(text))), tokens)

    # What surrounds the tokens; [CLS] A [SEP] B [SEP] in most models:

    def build_inputs_with_special_tokens(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        """Return the token ids of one or two texts, with special tokens added."""
        first, last = (getattr(self, f"{role}_token_id") for role in self.around)
        return self._surrounded(token_ids_0, token_ids_1, first, last)

    def build_offset_mapping_with_special_tokens(
        self, offset_mapping_0: list[Span], offset_mapping_1: list[Span] | None = None
    ) -> list[Span]:
        """Return the spans of the tokens of one or two texts, with (0, 0) for special tokens."""
        return self._surrounded(offset_mapping_0, offset_mapping_1, (0, 0), (0, 0))

    def get_special_tokens_mask(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None, already_has_special_tokens: bool = False
    ) -> Ids:
        """Return a mask for the tokens of one or two texts: 1 for special tokens, 0 for other tokens."""
        if already_has_special_tokens:
            if token_ids_1 is not None:
                raise ValueError(
                    "You should not supply a second sequence if the provided sequence of ids is already "
                    "formatted with special tokens for the model."
                )
            special = set(self._ids_in_mask())
            return [int(number in special) for number in token_ids_0]
        pair_mask = None if token_ids_1 is None else [0] * len(token_ids_1)
        return self._surrounded([0] * len(token_ids_0), pair_mask, 1, 1)

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        """Return each token's type id, special tokens included: 0 for the first text, 1 for the second."""
        first = self._surrounded([0] * len(token_ids_0), None, 0, 0)
        if token_ids_1 is None:
            return first
        both = self._surrounded([0] * len(token_ids_0), [0] * len(token_ids_1), 0, 0)
        return first + [1] * (len(both) - len(first))

    def num_special_tokens_to_add(self, pair: bool = False) -> int:
        """Return how many special tokens are added to one text, or, with `pair`, to two texts."""
        return len(self.build_inputs_with_special_tokens([], [] if pair else None))

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [cls, *first, sep] if second is None else [cls, *first, sep, *second, sep]

    def _ids_in_mask(self) -> Ids:
        return [self.sep_token_id, self.cls_token_id]

    # Back to text:

    def decode(
        self,
        token_ids: Any,
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool = True,
        spaces_between_special_tokens: bool = True,
        **kwargs: Any,
    ) -> str:
        """Return the text of token ids. Normalization, such as to lower case, is not undone.

        skip_special_tokens: leave out special tokens. clean_up_tokenization_spaces: see
        `clean_up_tokenization`. spaces_between_special_tokens: put spaces around added tokens.
        """
        texts: list[str] = []
        run: list[str] = []
        for token in self.convert_ids_to_tokens(as_lists(token_ids), skip_special_tokens):
            if token in self.added_tokens_encoder:
                texts += [self.convert_tokens_to_string(run)] if run else []
                texts.append(token)
                run = []
            else:
                run.append(token)
        texts += [self.convert_tokens_to_string(run)] if run else []
        text = (" " if spaces_between_special_tokens else "").join(texts)
        return self.clean_up_tokenization(text) if clean_up_tokenization_spaces else text

    def batch_decode(self, sequences: Any, *args: Any, **kwargs: Any) -> list[str]:
        """Return the text of each list of token ids."""
        return [self.decode(sequence, *args, **kwargs) for sequence in sequences]

    @staticmethod
    def clean_up_tokenization(out_string: str) -> str:
        """Remove the spaces before punctuation and in short forms, such as "do n't", of English text."""
        for spaced in (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're"):
            out_string = out_string.replace(spaced, spaced.strip())
        return out_string


class PlainMask:
    """Mixin for tokenizers that do not override the special-token mask: the mask is all zeros.

    It covers the tokens of the texts only, without special tokens.
    """

    def get_special_tokens_mask(
        self, token_ids_0: Ids, token_ids_1: Ids | None = None, already_has_special_tokens: bool = False
    ) -> Ids:
        if already_has_special_tokens:
            mask: Ids = super().get_special_tokens_mask(token_ids_0, token_ids_1, True)  # type: ignore[misc]
            return mask
        return [0] * (len(token_ids_0) + len(token_ids_1 or ()))

    def _ids_in_mask(self) -> Ids:
        ids: Ids = self.all_special_ids  # type: ignore[attr-defined]
        return ids
