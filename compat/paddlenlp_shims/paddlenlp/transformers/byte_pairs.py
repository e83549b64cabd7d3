"""The tokenizer of RoBERTa's English models: byte pairs, by the `tokenizers` package.

Source: paddlenlp 2.8.1, transformers/roberta/tokenizer.py and gpt/tokenizer.py (Apache-2.0).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from .offset_mapping import Span
from .special_tokens import AddedToken
from .text_to_tokens import Ids, PlainMask
from .tokenizer_utils import PretrainedTokenizer


class RobertaBPETokenizer(PretrainedTokenizer):
    """<s> A </s> </s> B </s>, of byte pairs.

    vocab_file: numbers of tokens, JSON. merges_file: which pairs become one, the first first.
    add_prefix_space: whether a text begins as if a space stood before it.
    """

    resource_files_names: ClassVar[dict[str, str]] = {"vocab_file": "vocab.json", "merges_file": "merges.txt"}
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file", "merges_file")
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

    def _set_special_tokens(self, settings: Any) -> None:
        added = {
            role: AddedToken(value, lstrip=role == "mask_token")  # the mask takes the space before it along
            for role, value in settings.items()
            if role in self.SPECIAL_TOKENS_ATTRIBUTES and isinstance(value, str)
        }
        super()._set_special_tokens({**settings, **added})

    def _load(self, settings: dict[str, Any]) -> None:
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocab_file, merges_file = (_existing(settings.get(argument)) for argument in self.file_arguments)
        self.encoder: dict[str, int] = json.loads(vocab_file.read_text("utf-8"))
        self.decoder = {number: token for token, number in self.encoder.items()}
        self.add_prefix_space: bool = settings.get("add_prefix_space", False)
        self.errors: str = settings["errors"]
        with merges_file.open(encoding="utf-8") as file:
            lines = file.read().split("\n")[1:-1]
        pairs = [tuple(line.split()) for line in lines]
        merges = [pair for pair in pairs if len(pair) == 2 and "".join(pair) in self.encoder]
        self._byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer = Tokenizer(models.BPE(vocab=self.encoder, merges=merges))
        self._tokenizer.pre_tokenizer = self._byte_level

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
        """Start and end of each token in bytes, as PaddleNLP counts, without the space before a word."""
        if text is None:
            return None
        spans, offset = [], 0
        for token in self.tokenize(text):
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
    """BART's: as RoBERTa's, without a space before a text."""

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
        """Return the text of token numbers."""
        return self.convert_tokens_to_string([self.decoder[number] for number in ids])


class GPTTokenizer(PlainMask, BartTokenizer):
    """GPT-2's: no special token stands around a text, unless `add_bos_token`."""

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


def _existing(path: str | None) -> Path:
    if not (path and Path(path).is_file()):
        raise ValueError(f"Can't find a vocabulary file at path '{path}'")
    return Path(path)
