"""Tokenizers of BERT's kind: words by spaces, punctuation and Chinese characters, and pieces of them by
vocabulary.

The words are PaddleNLP's own (symbols are words, too, unlike elsewhere), the pieces are those of the
`tokenizers` package. Source: paddlenlp 2.8.1, transformers/bert/tokenizer.py and its siblings (Apache-2.0).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from ..data import Vocab
from .offset_mapping import Span, spans_of_tokens
from .optional_packages import import_package
from .text_to_tokens import PlainMask
from .tokenizer_utils import PretrainedTokenizer

Table = dict[int, str]

_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip
_SYMBOLS_BESIDE = frozenset("\u00ad\u00b2\u00ba\u3007\u00b5\u00d8\u014b\u01b1")


def is_chinese_char(cp: int) -> bool:
    """Whether a code point is a Chinese character, which is a word of its own."""
    return any(start <= cp <= end for start, end in _CHINESE)


def is_control(char: str) -> bool:
    """Whether a character is dropped: control, format and unassigned ones but for tab and line ends."""
    return char not in "\t\n\r" and unicodedata.category(char).startswith("C")


def is_whitespace(char: str) -> bool:
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_punctuation(char: str) -> bool:
    """Whether a character is punctuation, or any other of ASCII that is no letter or digit."""
    cp = ord(char)
    in_ascii = 33 <= cp <= 47 or 58 <= cp <= 64 or 91 <= cp <= 96 or 123 <= cp <= 126
    return in_ascii or unicodedata.category(char).startswith("P")


def is_symbol(char: str) -> bool:
    return unicodedata.category(char).startswith("S") or char in _SYMBOLS_BESIDE


class _Translation(dict[int, str]):
    """A table for `str.translate` that fills itself, by code point."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self._translate = translate

    def __missing__(self, code: int) -> str:
        self[code] = translated = self._translate(chr(code))
        return translated


@cache
def cleaning_table(chinese_apart: bool) -> Table:
    """Drops control characters, makes spaces of all white space, and puts Chinese characters apart."""

    def clean(char: str) -> str:
        if char in "\0\ufffd" or is_control(char):
            return ""
        if is_whitespace(char):
            return " "
        return f" {char} " if chinese_apart and is_chinese_char(ord(char)) else char

    return _Translation(clean)


@cache
def _splitting(symbols_apart: bool) -> Table:
    """Puts punctuation, and symbols where they are words, apart."""

    def split(char: str) -> str:
        apart = is_punctuation(char) or (symbols_apart and is_symbol(char))
        return f" {char} " if apart else char

    return _Translation(split)


_WITHOUT_ACCENTS: Table = _Translation(lambda char: "" if unicodedata.category(char) == "Mn" else char)


def without_accents(text: str) -> str:
    """Return the text without the accents of its letters."""
    return unicodedata.normalize("NFD", text).translate(_WITHOUT_ACCENTS)


class BasicTokenizer:
    """The words of a text: at spaces, punctuation, symbols and Chinese characters.

    never_split: words that stay what they are. strip_accents: None does so where `do_lower_case`.
    symbols_apart: False for the C++ tokenizers of 2022, to which ℃ and ￥ are letters.
    """

    def __init__(
        self,
        do_lower_case: bool = True,
        never_split: Iterable[str] | None = None,
        tokenize_chinese_chars: bool = True,
        strip_accents: bool | None = None,
        symbols_apart: bool = True,
    ) -> None:
        self.do_lower_case = do_lower_case
        self.never_split = set(never_split or ())
        self.tokenize_chinese_chars = tokenize_chinese_chars
        self.strip_accents = strip_accents
        self._splitting = _splitting(symbols_apart)

    @property
    def strips_accents(self) -> bool:
        return self.do_lower_case if self.strip_accents is None else self.strip_accents

    def tokenize(self, text: str | bytes, never_split: Collection[str] | None = None) -> list[str]:
        """The words, in order; `never_split` adds to those that stay what they are."""
        if isinstance(text, bytes):
            text = text.decode("utf-8", "ignore")
        unsplit = self.never_split.union(never_split or ())
        text = self._clean(text)
        normalized = self._normalized(text)
        if not any(word in text or word in normalized for word in unsplit):
            return normalized.translate(self._splitting).split()
        words: list[str] = []
        for word in text.split():
            word = word if word in unsplit else self._normalized(word)
            words += [word] if word in unsplit else word.translate(self._splitting).split()
        return words

    def _clean(self, text: str) -> str:
        """The text with spaces around its Chinese words, without control characters."""
        return text.translate(cleaning_table(self.tokenize_chinese_chars))

    def _normalized(self, text: str) -> str:
        if self.do_lower_case:
            text = text.lower()
        return without_accents(text) if self.strips_accents else text


class WordpieceTokenizer:
    """Pieces of words: the longest at the beginning that the vocabulary has, then `##` and the longest again.

    A word that can't be made of pieces, or has more than `max_input_chars_per_word` characters, is
    `unk_token`.
    """

    def __init__(
        self, vocab: Vocab | dict[str, int], unk_token: str, max_input_chars_per_word: int = 100
    ) -> None:
        from tokenizers import Tokenizer, models

        numbers = vocab.token_to_idx if isinstance(vocab, Vocab) else vocab
        self.vocab = vocab
        self.unk_token = unk_token
        self.max_input_chars_per_word = max_input_chars_per_word
        model = models.WordPiece(
            vocab=dict(numbers), unk_token=unk_token, max_input_chars_per_word=max_input_chars_per_word
        )
        self._tokenizer = Tokenizer(model)

    def tokenize(self, text: str) -> list[str]:
        """The pieces of the words of a text, which spaces part."""
        return self.pieces(text.split())

    def pieces(self, words: Sequence[str]) -> list[str]:
        tokens: list[str] = self._tokenizer.encode(
            words, is_pretokenized=True, add_special_tokens=False
        ).tokens
        return tokens


class ErnieTokenizer(PretrainedTokenizer):
    """ERNIE's: words are split everywhere but at PaddleNLP's special tokens.

    do_lower_case: whether text is made lower case, and loses its accents.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": True,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }
    symbols_apart: ClassVar[bool] = True
    do_lower_case: bool

    def _load(self, settings: dict[str, Any]) -> None:
        self.do_lower_case = settings["do_lower_case"]
        self._load_words(settings)

    def _load_words(self, settings: dict[str, Any]) -> None:
        path = settings.get("vocab_file")
        if not (path and Path(path).is_file()):
            name = type(self).__name__
            raise ValueError(
                f"Can't find a vocabulary file at path '{path}'. To load the vocabulary of a model use "
                f"`tokenizer = {name}.from_pretrained(NAME_OR_FOLDER)`"
            )
        options = ("do_lower_case", "never_split", "tokenize_chinese_chars", "strip_accents")
        chosen = {option: settings[option] for option in options if option in self.arguments}
        self._vocab = self._read_vocabulary(path, str(settings["unk_token"]))
        self.basic_tokenizer = BasicTokenizer(**chosen, symbols_apart=self.symbols_apart)
        self.wordpiece_tokenizer = WordpieceTokenizer(self._vocab, str(settings["unk_token"]))

    def _read_vocabulary(self, path: str, unk_token: str) -> Vocab:
        return Vocab.load_vocabulary(path, unk_token=unk_token)

    def _tokenize(self, text: str) -> list[str]:
        return self.wordpiece_tokenizer.pieces(self.basic_tokenizer.tokenize(text))

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """The text of pieces, with one space between words."""
        return " ".join(tokens).replace(" ##", "").strip()

    def get_offset_mapping(self, text: str | None) -> list[Span] | None:
        if text is None:
            return None
        pieces = self.tokenize(text)
        special = set(self.all_special_tokens)
        lower = getattr(self, "do_lower_case", False)
        characters = [self._normalized_character(char, lower) for char in text]
        origin = [place for place, characters_of in enumerate(characters) for _ in characters_of]
        tokens = [piece[2:] if piece.startswith("##") else piece for piece in pieces]
        tokens = [token.lower() if lower and token in special else token for token in tokens]
        return spans_of_tokens(
            "".join(characters),
            origin,
            tokens,
            lambda place: place + 1 < len(pieces) and pieces[place + 1] in special,
        )

    def _normalized_character(self, char: str, lower: bool) -> str:
        if lower:
            char = char.lower()
        strip = self.basic_tokenizer.strip_accents
        if strip or (lower and strip is not False):
            char = without_accents(char)
        return "".join(c for c in char if not (c in "\0\ufffd" or is_control(c)))


class BertTokenizer(ErnieTokenizer):
    """BERT's.

    do_basic_tokenize: False splits at spaces alone. never_split: words that stay what they are.
    tokenize_chinese_chars: whether Chinese characters are words. strip_accents: None does so where
    do_lower_case.
    """

    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": True,
        "do_basic_tokenize": True,
        "never_split": None,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
        "tokenize_chinese_chars": True,
        "strip_accents": None,
    }

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        self.do_basic_tokenize: bool = settings["do_basic_tokenize"]

    def _tokenize(self, text: str) -> list[str]:
        if not self.do_basic_tokenize:
            return self.wordpiece_tokenizer.tokenize(text)
        words = self.basic_tokenizer.tokenize(text, never_split=self.all_special_tokens)
        unsplit = self.basic_tokenizer.never_split
        if not unsplit.intersection(words):
            return self.wordpiece_tokenizer.pieces(words)
        pieces = ([word] if word in unsplit else self.wordpiece_tokenizer.pieces([word]) for word in words)
        return [piece for pieces_of_word in pieces for piece in pieces_of_word]

    def _ids_in_mask(self) -> list[int]:
        return self.all_special_ids


class RobertaChineseTokenizer(BertTokenizer):
    """The tokenizer of Chinese RoBERTa models."""

    def _ids_in_mask(self) -> list[int]:
        return [self.sep_token_id, self.cls_token_id]


class ElectraTokenizer(RobertaChineseTokenizer):
    """ELECTRA's."""


class ConvBertTokenizer(ElectraTokenizer):
    """ConvBERT's."""


class PPMiniLMTokenizer(RobertaChineseTokenizer):
    """PP-MiniLM's."""


class TinyBertTokenizer(BertTokenizer):
    """TinyBERT's."""


class MegatronBertTokenizer(BertTokenizer):
    """Megatron-BERT's."""


class ErnieGramTokenizer(ErnieTokenizer):
    """ERNIE-Gram's."""


class ErnieDocTokenizer(ErnieTokenizer):
    """ERNIE-Doc's."""


class UNIMOTokenizer(PlainMask, ErnieTokenizer):
    """UNIMO's: each line of the vocabulary is a token, a tab and the number of the token."""

    def _load(self, settings: dict[str, Any]) -> None:
        self._load_words(settings)

    def _read_vocabulary(self, path: str, unk_token: str) -> Vocab:
        lines = Path(path).read_text("utf-8").removesuffix("\n").split("\n")
        numbers = {token: int(number) for token, number in (line.split("\t") for line in lines)}
        return Vocab.from_dict(numbers, unk_token=unk_token)

    def merge_subword(self, tokens: Sequence[str]) -> list[str]:
        """Join pieces to words."""
        words: list[str] = []
        for token in tokens:
            if token.startswith("##") and words:
                words[-1] += token[2:]
            else:
                words.append(token.removeprefix("##"))
        return words


class NeZhaTokenizer(ErnieTokenizer):
    """NEZHA's: special tokens in a text are found before it is made lower case."""

    def _load(self, settings: dict[str, Any]) -> None:
        self._load_words(settings)


class JiebaBasicTokenizer(BasicTokenizer):
    """Words as the package `jieba` finds them, as far as the vocabulary has them; else single characters."""

    def __init__(self, vocab: Vocab, do_lower_case: bool = True, **options: Any) -> None:
        super().__init__(do_lower_case, **options)
        self.vocab = vocab
        self._jieba = import_package("jieba", "splits Chinese texts into words")

    def _clean(self, text: str) -> str:
        text = text.translate(cleaning_table(False))
        if not self.tokenize_chinese_chars:
            return text
        words = self._jieba.cut(text, HMM=False)
        apart = cleaning_table(True)
        return "".join(f" {word} " if word in self.vocab else word.translate(apart) for word in words)


class RoFormerTokenizer(NeZhaTokenizer):
    """RoFormer's. use_jieba: whether the words of Chinese texts are those that `jieba` finds."""

    arguments: ClassVar[dict[str, Any]] = {
        "do_lower_case": True,
        "use_jieba": False,
        **{
            role: ErnieTokenizer.arguments[role]
            for role in ErnieTokenizer.arguments
            if role.endswith("_token")
        },
    }

    def _load(self, settings: dict[str, Any]) -> None:
        super()._load(settings)
        if settings["use_jieba"]:
            self.basic_tokenizer = JiebaBasicTokenizer(self._vocab, settings["do_lower_case"])


class SkepTokenizer(NeZhaTokenizer):
    """SKEP's of the models with an ERNIE vocabulary; those with byte pairs (RoBERTa) are not here."""

    arguments: ClassVar[dict[str, Any]] = {
        "bpe_vocab_file": None,
        "bpe_json_file": None,
        "do_lower_case": True,
        "use_bpe_encoder": False,
        "need_token_type_id": True,
        "add_two_sep_token_inter": False,
        "unk_token": "[UNK]",
        "sep_token": "[SEP]",
        "pad_token": "[PAD]",
        "cls_token": "[CLS]",
        "mask_token": "[MASK]",
    }

    def _load(self, settings: dict[str, Any]) -> None:
        if settings["use_bpe_encoder"] or settings["add_two_sep_token_inter"]:
            raise ValueError(
                "SkepTokenizer is here for the models with an ERNIE vocabulary; "
                "skep_roberta_large_en, with byte "
                "pairs, needs PaddleNLP itself"
            )
        super()._load(settings)


class AsInCpp:
    """A tokenizer as the C++ packages of 2022 had it: symbols are letters, and `vocab` is a dict."""

    symbols_apart: ClassVar[bool] = False

    @property
    def is_fast(self) -> bool:
        return True

    @property
    def vocab(self) -> dict[str, int]:
        numbers: dict[str, int] = self.get_vocab()  # type: ignore[attr-defined]
        return numbers


class BertFastTokenizer(AsInCpp, BertTokenizer):
    """BERT's, as in C++."""


class ErnieFastTokenizer(AsInCpp, ErnieTokenizer):
    """ERNIE's, as in C++."""


class TinyBertFastTokenizer(AsInCpp, TinyBertTokenizer):
    """TinyBERT's, as in C++."""
