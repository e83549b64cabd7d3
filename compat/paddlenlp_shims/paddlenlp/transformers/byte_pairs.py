"""Byte-level BPE tokenizers on the `tokenizers` package: RoBERTa's English models, BART, GPT.

Source: paddlenlp 2.8.1, transformers/roberta/tokenizer.py and gpt/tokenizer.py (Apache-2.0).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from .offset_mapping import Span
from .special_tokens import SPECIAL_TOKENS_ATTRIBUTES, AddedToken
from .text_to_tokens import Ids, PlainMask
from .tokenizer_utils import PretrainedTokenizer


class JsonVocabulary(PretrainedTokenizer):
    """Base class of BPE tokenizers with a JSON vocabulary.

    `encoder` maps tokens to ids, `decoder` maps ids back. A second file lists the merges: pairs of tokens
    that are joined, in the order of their ranks.
    """

    resource_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.json", "merges_file": "merges.txt"}
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file", "merges_file")
    added_roles: ClassVar[tuple[str, ...]] = ()
    """Special tokens that keep the spaces beside them, except the spaces before the mask."""

    def _set_special_tokens(self, settings: Any) -> None:
        added = {
            role: AddedToken(value, lstrip=role == "mask_token")
            for role, value in settings.items()
            if role in self.added_roles and isinstance(value, str)
        }
        super()._set_special_tokens({**settings, **added})

    def _load(self, settings: dict[str, Any]) -> None:
        vocab_file, merges_file = (
            existing_file(settings.get(name)) for name in ("vocab_file", "merges_file")
        )
        self.encoder: dict[str, int] = json.loads(vocab_file.read_text("utf-8"))
        self.decoder = {number: token for token, number in self.encoder.items()}
        with merges_file.open(encoding="utf-8") as file:
            self._load_merges(file.read())

    def _load_merges(self, content: str) -> None:
        raise NotImplementedError

    @property
    def vocab(self) -> Any:
        return self.encoder

    @property
    def vocab_size(self) -> int:
        return len(self.encoder)

    def get_vocab(self) -> dict[str, int]:
        return self.encoder | self.added_tokens_encoder

    def _convert_token_to_id(self, token: str) -> int:
        number = self.encoder.get(token)
        return int(self.encoder[str(self.unk_token)] if number is None else number)

    def _convert_id_to_token(self, index: int) -> str:
        return str(self.decoder[index])


def parse_merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Return the token pairs from the lines of a merges file. Lines without two tokens are skipped."""
    return [(pieces[0], pieces[1]) for pieces in map(str.split, lines) if len(pieces) >= 2]


class RobertaBPETokenizer(JsonVocabulary):
    """The byte-level BPE tokenizer of English RoBERTa models: <s> A </s> </s> B </s>.

    vocab_file: JSON file that maps tokens to ids. merges_file: pairs of tokens that are joined, by rank.
    add_prefix_space: tokenize a text as if it began with a space.
    """

    added_roles: ClassVar[tuple[str, ...]] = tuple(SPECIAL_TOKENS_ATTRIBUTES)
    text_options: ClassVar[tuple[str, ...]] = ("add_prefix_space",)
    arguments: ClassVar[dict[str, Any]] = {
        "errors": "replace",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "sep_token": "</s>",
        "cls_token": "<s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "mask_token": "<mask>",
        "add_prefix_space": False,
    }

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        self.add_prefix_space: bool = settings.get("add_prefix_space", False)
        self.errors: str = settings.get("errors", "replace")

    def _load_merges(self, content: str) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        pairs = parse_merges(content.split("\n")[1:-1])
        merges = [pair for pair in pairs if "".join(pair) in self.encoder]
        self._byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer = Tokenizer(models.BPE(vocab=self.encoder, merges=merges))
        self._tokenizer.pre_tokenizer = self._byte_level

    def prepare_for_tokenization(
        self, text: str, is_split_into_words: bool | str = False, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        prefix = kwargs.pop("add_prefix_space", self.add_prefix_space)
        if (is_split_into_words or prefix) and text and not text[0].isspace():
            text = " " + text
        return text, kwargs

    def _tokenize(self, text: str) -> list[str]:
        tokens: list[str] = self._tokenizer.encode(text, add_special_tokens=False).tokens
        return tokens

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        from tokenizers import decoders

        text: str = decoders.ByteLevel().decode(list(tokens))
        return text

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        """Return start and end of each token in bytes, as PaddleNLP does, without the space before a word."""
        if text is None:
            return None
        return self._count_spans(self.tokenize(text))

    @staticmethod
    def _count_spans(tokens: Sequence[str]) -> list[Span]:
        spans, offset = [], 0
        for token in tokens:
            spans.append((offset + token.startswith("Ġ"), offset + len(token)))
            offset += len(token)
        return spans

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [cls, *first, sep] if second is None else [cls, *first, sep, sep, *second, sep]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [0] * len(self.build_inputs_with_special_tokens(token_ids_0, token_ids_1))

    def _ids_in_mask(self) -> Ids:
        return self.all_special_ids


class BartTokenizer(RobertaBPETokenizer):
    """The tokenizer of BART models, which is RoBERTa's tokenizer without a space before a text."""

    text_options: ClassVar[tuple[str, ...]] = ()

    arguments: ClassVar[dict[str, Any]] = {
        name: value for name, value in RobertaBPETokenizer.arguments.items() if name != "add_prefix_space"
    }

    def prepare_for_tokenization(
        self, text: str, is_split_into_words: bool | str = False, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        return text, kwargs

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        return PretrainedTokenizer.get_offset_mapping(self, text)

    def convert_ids_to_string(self, ids: Ids) -> str:
        """Return the text of token ids."""
        return self.convert_tokens_to_string([self.decoder[number] for number in ids])


class GPTTokenizer(PlainMask, BartTokenizer):
    """The tokenizer of GPT-2 models. No special tokens surround a text, unless `add_bos_token` is set."""

    text_options: ClassVar[tuple[str, ...]] = ("add_prefix_space",)

    arguments: ClassVar[dict[str, Any]] = {
        "errors": "replace",
        "max_len": None,
        "pad_token": "<|endoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "eol_token": "\u010a",
        "add_prefix_space": False,
        "add_bos_token": False,
    }

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        self.add_bos_token: bool = settings["add_bos_token"]
        self.eol_token: str | None = settings["eol_token"]

    @property
    def eol_token_id(self) -> int | None:
        return None if self.eol_token is None else self._convert_token_to_id(self.eol_token)

    def prepare_for_tokenization(
        self, text: str, is_split_into_words: bool | str = False, **kwargs: Any
    ) -> tuple[str, dict[str, Any]]:
        prefix = kwargs.pop("add_prefix_space", self.add_prefix_space)
        return (f" {text}" if is_split_into_words or prefix else text), kwargs

    def _set_special_tokens(self, settings: Any) -> None:
        super()._set_special_tokens({**settings, "bos_token": settings["pad_token"]})

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [*first, *(second or ())]

    def build_inputs_with_special_tokens(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        bos = [self.bos_token_id] if self.add_bos_token else []
        return bos + token_ids_0 + ([] if token_ids_1 is None else bos + token_ids_1)

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [0] * len(token_ids_0) + [1] * len(token_ids_1 or ())


def existing_file(path: str | None) -> Path:
    """Return the path of a tokenizer's file. Raise ValueError if it does not exist."""
    if not (path and Path(path).is_file()):
        raise ValueError(f"Can't find a vocabulary file at path '{path}'")
    return Path(path)
