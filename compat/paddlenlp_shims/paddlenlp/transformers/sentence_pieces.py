"""Tokenizers with SentencePiece models: ERNIE-M, ALBERT, XLNet, T5. They need the package `sentencepiece`.

Source: paddlenlp 2.8.1, transformers/ernie_m, albert, xlnet and t5 (Apache-2.0).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from ..data import Vocab
from .offset_mapping import Span
from .optional_packages import import_package
from .special_tokens import AddedToken
from .text_to_tokens import Ids
from .tokenizer_utils import PretrainedTokenizer, SequenceToSequence
from .wordpiece import BertTokenizer, is_whitespace

UNDERLINE = "▁"  # what SentencePiece writes for a space


def sentence_pieces(path: str | None) -> Any:
    """Load a SentencePiece model file, and return its SentencePieceProcessor.

    Raises ImportError without the package sentencepiece. Raises ValueError if the file is missing or is not a
    SentencePiece model.
    """
    purpose = "splits texts by a SentencePiece model"
    sentencepiece = import_package("sentencepiece", purpose, 'pip install "./compat[nlp]"')
    if not (path and Path(path).is_file()):
        raise ValueError(f"Can't find a SentencePiece model at path '{path}'")
    try:
        return sentencepiece.SentencePieceProcessor(model_file=path)
    except (OSError, RuntimeError) as exc:
        raise ValueError(f"{path} is no SentencePiece model: {exc}") from exc


class ErnieMTokenizer(PretrainedTokenizer):
    """The tokenizer of ERNIE-M models: SentencePiece tokens, split at Chinese characters and punctuation.

    Tokens are also split between digits and other characters. vocab_file: the tokens with their ids.
    sentencepiece_model_file: the SentencePiece model.
    """

    resource_files_names: ClassVar[dict[str, str]] = {
        "sentencepiece_model_file": "sentencepiece.bpe.model",
        "vocab_file": "vocab.txt",
    }
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file", "sentencepiece_model_file")
    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": False,
        "encoding": "utf8",
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    model_input_names: list[str] = ["input_ids"]
    _FULL_WIDTH: ClassVar[dict[str, str]] = {
        chr(code): chr(code if chr(code) == "～" else code - 65248) for code in range(65281, 65375)
    }

    def _load(self, settings: dict[str, Any]) -> None:
        vocab_file = settings.get("vocab_file")
        if not (vocab_file and Path(vocab_file).is_file()):
            raise ValueError(f"Can't find a vocabulary file at path '{vocab_file}'.")
        self.do_lower_case: bool = settings["do_lower_case"]
        self._vocab = Vocab.load_vocabulary(vocab_file, unk_token=str(settings["unk_token"]))
        self.sp_model = sentence_pieces(settings.get("sentencepiece_model_file"))

    @property
    def vocab_size(self) -> int:
        return int(self.sp_model.vocab_size())

    def _tokenize(self, text: str) -> list[str]:
        return [part for piece in self.sp_model.EncodeAsPieces(text) for part in cut_piece(piece)]

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(UNDERLINE, " ").strip()

    def convert_ids_to_string(self, ids: Ids) -> str:
        return self.convert_tokens_to_string(self.convert_ids_to_tokens(ids))

    def clean_text(self, text: str) -> str:
        """Replace full-width characters of a text by ASCII."""
        return "".join(self._FULL_WIDTH.get(char, char) for char in text)

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        """Return start and end of each token in the text, in characters; None if the text is None.

        Raises ValueError for a token that is not found in the text without spaces.
        """
        if text is None:
            return None
        normalized, origin = "", []
        for place, char in enumerate(text):
            form = self._FULL_WIDTH.get(char) or unicodedata.normalize("NFKC", char)
            if not (len(form) == 1 and is_whitespace(form)):
                normalized += form
                origin += [place] * len(form)
        spans, offset = [], 0
        normalized = normalized.lower() if self.do_lower_case else normalized
        for token in self.tokenize(text):
            token = token.removeprefix(UNDERLINE)
            if not token:
                continue
            start = normalized.index(token, offset)
            offset = start + len(token)
            spans.append((origin[start], origin[offset - 1] + 1))
        return spans

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [cls, *first, sep] if second is None else [cls, *first, sep, sep, *second, sep]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        if token_ids_1 is None:
            return [0] * (len(token_ids_0) + 2)
        return [0] * (len(token_ids_0) + 1) + [1] * (len(token_ids_1) + 3)


def cut_piece(piece: str) -> list[str]:
    """Split a SentencePiece token at Chinese characters and punctuation, and at both ends of numbers.

    Chinese characters and punctuation marks become tokens of their own.
    """
    parts: list[str] = []
    begin = 0

    def add_part(end: int) -> None:
        if end > begin and piece[begin:end] != UNDERLINE:
            parts.append(piece[begin:end])

    if piece == UNDERLINE:
        return parts
    for place, char in enumerate(piece):
        if char == UNDERLINE:
            continue
        if "\u4e00" <= char <= "\u9fff" or char in ",;:.?!~，；：。？！《》【】":
            add_part(place)
            parts.append(char)
            begin = place + 1
        elif place > 0 and char.isdigit() != piece[place - 1].isdigit():
            add_part(place)
            begin = place
    if len(piece) > begin:
        parts.append(piece[begin:])
    return parts


class ErnieMFastTokenizer(ErnieMTokenizer):
    """The tokenizer of ERNIE-M models as in the C++ packages of 2022.

    By default, calls also return positions and the attention mask.
    """

    arguments: ClassVar[dict[str, Any]] = {**ErnieMTokenizer.arguments, "do_lower_case": True}
    model_input_names: list[str] = ["input_ids", "position_ids", "attention_mask"]


class AlbertEnglishTokenizer(PretrainedTokenizer):
    """The tokenizer of English ALBERT models: SentencePiece on a normalized text.

    Options of the normalization: remove_space (double spaces), keep_accents, do_lower_case.
    """

    resource_files_names: ClassVar[dict[str, str]] = {"sentencepiece_model_file": "spiece.model"}
    file_arguments: ClassVar[tuple[str, ...]] = ("sentencepiece_model_file",)
    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": True,
        "remove_space": True,
        "keep_accents": False,
        "bos_token": "[CLS]",
        "eos_token": "[SEP]",
        "unk_token": "<unk>",
        "sep_token": "[SEP]",
        "pad_token": "<pad>",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "sp_model_kwargs": None,
    }

    def _load(self, settings: dict[str, Any]) -> None:
        self.do_lower_case: bool = settings["do_lower_case"]
        self.remove_space: bool = settings["remove_space"]
        self.keep_accents: bool = settings["keep_accents"]
        self.sp_model = sentence_pieces(settings.get(self.file_arguments[0]))

    @property
    def vocab_size(self) -> int:
        return len(self.sp_model)

    def get_vocab(self) -> dict[str, int]:
        return {self._convert_id_to_token(n): n for n in range(self.vocab_size)} | self.added_tokens_encoder

    @property
    def vocab(self) -> Any:
        return self.get_vocab()

    def preprocess_text(self, inputs: str) -> str:
        """Normalize spaces, quotes, accents and case of a text, as selected by the tokenizer's options."""
        text = " ".join(inputs.split()) if self.remove_space else inputs
        text = text.replace("``", '"').replace("''", '"')
        if not self.keep_accents:
            text = "".join(c for c in unicodedata.normalize("NFKD", text) if not unicodedata.combining(c))
        return text.lower() if self.do_lower_case else text

    def _tokenize(self, text: str) -> list[str]:
        tokens: list[str] = []
        for piece in self.sp_model.encode(self.preprocess_text(text), out_type=str):
            if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit():
                tokens += [*self._without_comma(piece), ","]
            else:
                tokens.append(piece)
        return tokens

    def _without_comma(self, piece: str) -> list[str]:
        """Split a number token from the comma that SentencePiece has joined to it, and return the tokens."""
        pieces: list[str] = self.sp_model.EncodeAsPieces(piece[:-1].replace(UNDERLINE, ""))
        if piece[0] != UNDERLINE and pieces[0][0] == UNDERLINE:
            return pieces[1:] if len(pieces[0]) == 1 else [pieces[0][1:], *pieces[1:]]
        return pieces

    def _convert_token_to_id(self, token: str) -> int:
        return int(self.sp_model.PieceToId(token))

    def _convert_id_to_token(self, index: int) -> str:
        return str(self.sp_model.IdToPiece(index))

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(UNDERLINE, " ").strip()


class XLNetTokenizer(AlbertEnglishTokenizer):
    """The tokenizer of XLNet models: A <sep> B <sep> <cls>, padded on the left."""

    resource_files_names: ClassVar[dict[str, str]] = {"vocab_file": "spiece.model"}
    file_arguments: ClassVar[tuple[str, ...]] = ("vocab_file",)
    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": False,
        "remove_space": True,
        "keep_accents": False,
        "bos_token": "<s>",
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "sep_token": "<sep>",
        "pad_token": "<pad>",
        "cls_token": "<cls>",
        "mask_token": "<mask>",
        "additional_special_tokens": ["<eop>", "<eod>"],
        "sp_model_kwargs": None,
    }
    padding_side = "left"
    _pad_token_type_id = 3

    def _set_special_tokens(self, settings: Any) -> None:
        super()._set_special_tokens({**settings, "mask_token": mask_with_spaces(settings["mask_token"])})

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [*first, sep, cls] if second is None else [*first, sep, *second, sep, cls]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        second = [] if token_ids_1 is None else [1] * (len(token_ids_1) + 1)
        return [0] * (len(token_ids_0) + 1) + second + [2]


class T5Tokenizer(SequenceToSequence, AlbertEnglishTokenizer):
    """The tokenizer of T5 models: A </s> B </s>, with extra tokens <extra_id_0>, <extra_id_1>, ...

    extra_ids: number of extra tokens, whose ids follow the model's. Calls return a mask and no token types by
    default.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": False,
        "remove_space": True,
        "keep_accents": True,
        "eos_token": "</s>",
        "unk_token": "<unk>",
        "pad_token": "<pad>",
        "extra_ids": 100,
        "additional_special_tokens": [],
        "sp_model_kwargs": None,
    }
    around: ClassVar[tuple[str, str]] = ("eos", "eos")

    def _set_special_tokens(self, settings: Any) -> None:
        extra_ids, tokens = settings["extra_ids"], settings["additional_special_tokens"]
        if extra_ids > 0 and tokens and len({str(t) for t in tokens if "extra_id" in str(t)}) != extra_ids:
            raise ValueError(
                f"additional_special_tokens ({tokens}) must include the {extra_ids} tokens of extra_ids"
            )
        tokens = tokens or [f"<extra_id_{number}>" for number in range(extra_ids)]
        super()._set_special_tokens({**settings, "additional_special_tokens": tokens})

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        self.extra_ids: int = settings["extra_ids"]

    @property
    def vocab_size(self) -> int:
        return len(self.sp_model) + self.extra_ids

    def _convert_token_to_id(self, token: str) -> int:
        if token.startswith("<extra_id_"):
            return self.vocab_size - int(token.removeprefix("<extra_id_").partition(">")[0]) - 1
        return super()._convert_token_to_id(token)

    def _convert_id_to_token(self, index: int) -> str:
        if index < len(self.sp_model):
            return super()._convert_id_to_token(index)
        return f"<extra_id_{self.vocab_size - 1 - index}>"

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        text = ""
        run: list[str] = []
        for token in tokens:
            if token in self.all_special_tokens:
                text += f"{self.sp_model.decode_pieces(run)}{token} "
                run = []
            else:
                run.append(token)
        return (text + str(self.sp_model.decode_pieces(run))).strip()

    def build_inputs_with_special_tokens(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        """Return the token ids of one text or two, each with </s> at its end unless it is there already."""
        texts = [token_ids_0] if token_ids_1 is None else [token_ids_0, token_ids_1]
        ends = [[] if ids[-1:] == [self.eos_token_id] else [self.eos_token_id] for ids in texts]
        return [number for ids, end in zip(texts, ends, strict=True) for number in (*ids, *end)]

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [*first, sep] if second is None else [*first, sep, *second, sep]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [0] * len(self._surrounded(token_ids_0, token_ids_1, 0, 0))


def mask_with_spaces(token: Any) -> Any:
    """Return a mask token that includes the space before it, if it was given as text."""
    return AddedToken(token, lstrip=True) if isinstance(token, str) else token


class AlbertChineseTokenizer(BertTokenizer):
    """The tokenizer of Chinese ALBERT models, which is the WordPiece tokenizer of BERT."""


class AlbertTokenizer:
    """Loads the tokenizer of an ALBERT model: WordPiece (Chinese models) or SentencePiece (English)."""

    def __new__(
        cls, vocab_file: str | None = None, sentencepiece_model_file: str | None = None, **kwargs: Any
    ) -> Any:
        if vocab_file is not None:
            return AlbertChineseTokenizer(vocab_file, **kwargs)
        return AlbertEnglishTokenizer(sentencepiece_model_file, **kwargs)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str, *args: Any, **kwargs: Any) -> Any:
        """Load the tokenizer whose files exist: WordPiece with a vocabulary, else SentencePiece."""
        name = pretrained_model_name_or_path
        try:
            return AlbertChineseTokenizer.from_pretrained(name, *args, **kwargs)
        except FileNotFoundError:
            return AlbertEnglishTokenizer.from_pretrained(name, *args, **kwargs)
