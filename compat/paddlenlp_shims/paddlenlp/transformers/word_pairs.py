"""BPE tokenizers of CLIP and XLM, whose last token of a word ends with </w>.

Source: paddlenlp 2.8.1, transformers/clip/tokenizer.py and xlm/tokenizer.py (Apache-2.0).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, ClassVar

from ..utils.log import logger
from .byte_pairs import JsonVocabulary, parse_merges
from .offset_mapping import Span
from .optional_packages import import_package
from .text_to_tokens import Ids
from .wordpiece import cleaning_table, without_accents

END_OF_WORD = "</w>"
_UNKNOWN = "\0"


class WordPairs:
    """Splits words by BPE: joins characters in the order of the merges' ranks.

    Its vocabulary consists of the tokens in the merges. XLM's own vocabulary lacks tokens that are always
    joined further.
    """

    def __init__(self, merges: list[tuple[str, str]]) -> None:
        from tokenizers import models

        pieces = dict.fromkeys((_UNKNOWN, *(piece for pair in merges for piece in (*pair, "".join(pair)))))
        self._model = models.BPE(
            vocab={piece: number for number, piece in enumerate(pieces)},
            merges=merges,
            unk_token=_UNKNOWN,
            end_of_word_suffix=END_OF_WORD,
        )

    def split(self, word: str) -> list[str]:
        """Split a word into tokens. A character that is in no merge becomes a token of its own."""
        tokens = self._model.tokenize(word)
        data = word.encode("utf-8")
        pieces = [
            data[slice(*token.offsets)].decode("utf-8") if token.value == _UNKNOWN else token.value
            for token in tokens
        ]
        if tokens and tokens[-1].value == _UNKNOWN:
            pieces[-1] += END_OF_WORD
        return pieces


class CLIPTokenizer(JsonVocabulary):
    """The tokenizer of CLIP models: <|startoftext|> A <|endoftext|>, byte-level BPE of lower-case text.

    The package `ftfy` repairs texts if it is installed, as in PaddleNLP.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "errors": "replace",
        "max_len": 77,
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
    }
    added_roles: ClassVar[tuple[str, ...]] = ("bos_token", "eos_token", "unk_token", "pad_token")
    around: ClassVar[tuple[str, str]] = ("bos", "eos")
    model_input_names: list[str] = ["input_ids"]
    _WHOLE: ClassVar[frozenset[str]] = frozenset(("<|startoftext|>", "<|endoftext|>"))
    _PATTERN: ClassVar[str] = (
        r"(?i)<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    )
    _LONGEST_MERGES: ClassVar[int] = 49152 - 256 - 2 + 1

    def _load_merges(self, content: str) -> None:
        from tokenizers import Regex, pre_tokenizers

        self._pairs = WordPairs(parse_merges(content.strip().split("\n")[1 : self._LONGEST_MERGES]))
        words = pre_tokenizers.Split(Regex(self._PATTERN), behavior="removed", invert=True)
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        self._words = pre_tokenizers.Sequence([words, to_bytes])

    def _tokenize(self, text: str) -> list[str]:
        words = (word for word, _ in self._words.pre_tokenize_str(_repair(text)))
        pieces = ([word] if word in self._WHOLE else self._pairs.split(word) for word in words)
        return [piece for pieces_of_word in pieces for piece in pieces_of_word]

    def _convert_id_to_token(self, index: int) -> Any:
        return self.decoder.get(index)

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        from tokenizers import decoders

        text: str = decoders.ByteLevel().decode(list(tokens))
        return text.replace(END_OF_WORD, " ").strip()

    def _surrounded(self, first: list[Any], second: list[Any] | None, cls: Any, sep: Any) -> list[Any]:
        return [cls, *first, sep] if second is None else [cls, *first, sep, sep, *second, sep]

    def create_token_type_ids_from_sequences(self, token_ids_0: Ids, token_ids_1: Ids | None = None) -> Ids:
        return [0] * len(self._surrounded(token_ids_0, token_ids_1, 0, 0))

    def _ids_in_mask(self) -> Ids:
        return self.all_special_ids


def _repair(text: str) -> str:
    """Return a text in lower case with single spaces, repaired by `ftfy` if it is installed."""
    try:
        import ftfy
    except ImportError:
        words = unicodedata.normalize("NFC", text.translate(cleaning_table(True))).split()
        return " ".join(map(str.lower, words))
    return " ".join(ftfy.fix_text(text).split()).lower()


class XLMTokenizer(JsonVocabulary):
    """The tokenizer of XLM models: <s> A </s> B </s>, BPE of the words that `sacremoses` finds.

    lang (of a call): the language of the text, "en" by default. Chinese needs the package `jieba`, Thai
    `pythainlp`, Japanese `Mykytea`. bypass_tokenizer (of a call): words are already separated by spaces.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "unk_token": "<unk>",
        "bos_token": "<s>",
        "sep_token": "</s>",
        "pad_token": "<pad>",
        "cls_token": "</s>",
        "mask_token": "<special1>",
        "additional_special_tokens": [f"<special{number}>" for number in range(10)],
        "lang2id": None,
        "id2lang": None,
        "do_lowercase_and_remove_accent": True,
    }
    text_options: ClassVar[tuple[str, ...]] = ("lang", "bypass_tokenizer")
    around: ClassVar[tuple[str, str]] = ("bos", "sep")

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        self.do_lowercase_and_remove_accent: bool = settings["do_lowercase_and_remove_accent"]
        self.lang2id: dict[str, int] | None = settings["lang2id"]
        self.id2lang: dict[int, str] | None = settings["id2lang"]

    def _load_merges(self, content: str) -> None:
        self._pairs = WordPairs(parse_merges(content.split("\n")[:-1]))

    @property
    def do_lower_case(self) -> bool:
        return self.do_lowercase_and_remove_accent

    def _tokenize(self, text: str, lang: str = "en", bypass_tokenizer: bool = False) -> list[str]:
        if lang and self.lang2id and lang not in self.lang2id:
            logger.error(f"the model has no language {lang!r}; it has {', '.join(self.lang2id)}")
        words = text.split() if bypass_tokenizer else _split_words(text, lang)
        if self.do_lowercase_and_remove_accent and not bypass_tokenizer:
            words = without_accents(" ".join(words).lower()).lower().split(" ")
        return [piece for word in words if word for piece in self._pairs.split(word)]

    def _convert_id_to_token(self, index: int) -> str:
        token: str = self.decoder.get(index, str(self.unk_token))
        return token

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens).replace(END_OF_WORD, " ").strip()

    def build_offset_mapping_with_special_tokens(
        self, offset_mapping_0: list[Span], offset_mapping_1: list[Span] | None = None
    ) -> list[Span]:
        """Return the spans of the tokens without special tokens, as PaddleNLP does."""
        return offset_mapping_0 + (offset_mapping_1 or [])

    def _ids_in_mask(self) -> Ids:
        return self.all_special_ids


# The words of XLM:

_MOSES_PUNCTUATION = str.maketrans(
    "，、”“∶：？《》）！（；」「～’━〈〉【】％０１２３４５６７８９", ',,""::?"")!(;""~\'-<>[]%0123456789'
) | {ord("…"): "..."}
_ROMANIAN = str.maketrans("ŞşŢţȘșȚțĂăÂâÎî", "SsTtSsTtAaAaIi")


def _split_words(text: str, lang: str) -> list[str]:
    """Return the words of a text. Raise ImportError with the package that the language needs."""
    if lang == "zh":
        text = " ".join(import_package("jieba", "splits Chinese texts into words").cut(text))
        return _normalize_punctuation(text, lang).split()
    text = _normalize_punctuation(text, lang)
    if lang == "th":
        thai = import_package("pythainlp.tokenize", "splits Thai texts into words")
        return list(thai.word_tokenize(text))
    if lang == "ja":
        return list(_japanese_tokenizer().getWS(text))
    if lang == "ro":
        text = text.translate(_ROMANIAN)
    tokenize: Callable[..., list[str]] = _moses("MosesTokenizer", lang).tokenize
    return tokenize(text, return_str=False, escape=False)


def _normalize_punctuation(text: str, lang: str) -> str:
    """Replace punctuation by ASCII, and drop unprintable characters, as Moses does."""
    text = re.sub(r"[。．]\s*", ". ", text).translate(_MOSES_PUNCTUATION)
    text = _moses("MosesPunctNormalizer", lang).normalize(text)
    return "".join(char for char in text if not unicodedata.category(char).startswith("C"))


@cache
def _moses(kind: str, lang: str) -> Any:
    return getattr(import_package("sacremoses", "splits texts into words for XLM"), kind)(lang=lang)


@cache
def _japanese_tokenizer() -> Any:
    from pathlib import Path

    kytea = import_package("Mykytea", "splits Japanese texts into words")
    return kytea.Mykytea(f"-model {Path.home()}/local/share/kytea/model.bin")
