"""WordPiece tokenizers of BERT's kind: split texts into words, and words into tokens of a vocabulary.

The words are PaddleNLP's own (symbols are words, too, unlike elsewhere), the tokens those of the `tokenizers`
package. Source: paddlenlp 2.8.1, transformers/bert/tokenizer.py and its siblings (Apache-2.0).
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
    """Return whether a code point is a Chinese character, which is a word of its own."""
    return any(start <= cp <= end for start, end in _CHINESE)


def is_control(char: str) -> bool:
    """Return whether a character is to be dropped: Unicode category C (control), but no tab or newline."""
    return char not in "\t\n\r" and unicodedata.category(char).startswith("C")


def is_whitespace(char: str) -> bool:
    """Return whether a character separates words."""
    return char in " \t\n\r" or unicodedata.category(char) == "Zs"


def is_punctuation(char: str) -> bool:
    """Return whether a character is punctuation, or an ASCII symbol."""
    cp = ord(char)
    in_ascii = 33 <= cp <= 47 or 58 <= cp <= 64 or 91 <= cp <= 96 or 123 <= cp <= 126
    return in_ascii or unicodedata.category(char).startswith("P")


def is_symbol(char: str) -> bool:
    """Return whether a character is a symbol, which is a word of its own."""
    return unicodedata.category(char).startswith("S") or char in _SYMBOLS_BESIDE


class _Translation(dict[int, str]):
    """A table for `str.translate` that computes an entry when it is first needed."""

    def __init__(self, translate: Callable[[str], str]) -> None:
        super().__init__()
        self._translate = translate

    def __missing__(self, code: int) -> str:
        self[code] = translated = self._translate(chr(code))
        return translated


@cache
def cleaning_table(chinese_apart: bool) -> Table:
    """Return a table for `str.translate` that drops control characters and unifies white space.

    chinese_apart: whether to put spaces around Chinese characters.
    """

    def clean(char: str) -> str:
        if char in "\0\ufffd" or is_control(char):
            return ""
        if is_whitespace(char):
            return " "
        return f" {char} " if chinese_apart and is_chinese_char(ord(char)) else char

    return _Translation(clean)


@cache
def _splitting(symbols_apart: bool) -> Table:
    """Return a table for `str.translate` that puts spaces around punctuation.

    symbols_apart: whether to put spaces around symbols as well.
    """

    def split(char: str) -> str:
        apart = is_punctuation(char) or (symbols_apart and is_symbol(char))
        return f" {char} " if apart else char

    return _Translation(split)


_WITHOUT_ACCENTS: Table = _Translation(lambda char: "" if unicodedata.category(char) == "Mn" else char)


def without_accents(text: str) -> str:
    """Return the text without the accents of its letters."""
    return unicodedata.normalize("NFD", text).translate(_WITHOUT_ACCENTS)


class BasicTokenizer:
    """Splits a text into words: at spaces, punctuation, symbols and Chinese characters.

    never_split: words that are not split or changed. strip_accents: None means the value of `do_lower_case`.
    symbols_apart: False for the C++ tokenizers of 2022, which treat ℃ and ￥ as letters.
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
        """Return the words of a text in order. never_split: further words that are not split or changed."""
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
        """Return a text with spaces around Chinese characters, without control characters."""
        return text.translate(cleaning_table(self.tokenize_chinese_chars))

    def _normalized(self, text: str) -> str:
        if self.do_lower_case:
            text = text.lower()
        return without_accents(text) if self.strips_accents else text


class WordpieceTokenizer:
    """Splits words into the longest tokens of a vocabulary; tokens after the first begin with `##`.

    A word that can't be split, or has more than `max_input_chars_per_word` characters, becomes `unk_token`.
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
        """Return the tokens of a text whose words are separated by spaces."""
        return self.pieces(text.split())

    def pieces(self, words: Sequence[str]) -> list[str]:
        """Return the tokens of a list of words."""
        tokens: list[str] = self._tokenizer.encode(
            words, is_pretokenized=True, add_special_tokens=False
        ).tokens
        return tokens


class ErnieTokenizer(PretrainedTokenizer):
    """The WordPiece tokenizer of ERNIE models. PaddleNLP's special tokens in a text are not split.

    do_lower_case: convert texts to lower case and remove accents.
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
        """Join tokens to a text, with one space between words."""
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
    """The WordPiece tokenizer of BERT models.

    do_basic_tokenize: if False, texts are only split at spaces. never_split: words that are not split or
    changed. tokenize_chinese_chars: whether each Chinese character is a word. strip_accents: None means the
    value of do_lower_case.
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
    """The WordPiece tokenizer of Chinese RoBERTa models."""

    def _ids_in_mask(self) -> list[int]:
        return [self.sep_token_id, self.cls_token_id]


class ElectraTokenizer(RobertaChineseTokenizer):
    """The WordPiece tokenizer of ELECTRA models."""


class ConvBertTokenizer(ElectraTokenizer):
    """The WordPiece tokenizer of ConvBERT models."""


class PPMiniLMTokenizer(RobertaChineseTokenizer):
    """The WordPiece tokenizer of PP-MiniLM models."""


class TinyBertTokenizer(BertTokenizer):
    """The WordPiece tokenizer of TinyBERT models."""


class MegatronBertTokenizer(BertTokenizer):
    """The WordPiece tokenizer of Megatron-BERT models."""


class ErnieGramTokenizer(ErnieTokenizer):
    """The WordPiece tokenizer of ERNIE-Gram models."""


class ErnieDocTokenizer(ErnieTokenizer):
    """The WordPiece tokenizer of ERNIE-Doc models."""


class UNIMOTokenizer(PlainMask, ErnieTokenizer):
    """The WordPiece tokenizer of UNIMO models.

    Each line of the vocabulary file has a token, a tab and the token's id.
    """

    def _load(self, settings: dict[str, Any]) -> None:
        self._load_words(settings)

    def _read_vocabulary(self, path: str, unk_token: str) -> Vocab:
        lines = Path(path).read_text("utf-8").removesuffix("\n").split("\n")
        numbers = {token: int(number) for token, number in (line.split("\t") for line in lines)}
        return Vocab.from_dict(numbers, unk_token=unk_token)

    def merge_subword(self, tokens: Sequence[str]) -> list[str]:
        """Join tokens to words."""
        words: list[str] = []
        for token in tokens:
            if token.startswith("##") and words:
                words[-1] += token[2:]
            else:
                words.append(token.removeprefix("##"))
        return words


class NeZhaTokenizer(ErnieTokenizer):
    """The WordPiece tokenizer of NEZHA models, which finds special tokens before lower-casing a text."""

    def _load(self, settings: dict[str, Any]) -> None:
        self._load_words(settings)


class JiebaBasicTokenizer(BasicTokenizer):
    """Splits a Chinese text into words with the package `jieba`.

    Words that are not in the vocabulary are split into single Chinese characters.
    """

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
    """The WordPiece tokenizer of RoFormer models. use_jieba: whether Chinese texts are split with `jieba`."""

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
    """The WordPiece tokenizer of SKEP models with an ERNIE vocabulary.

    Models with byte-level BPE (RoBERTa) raise ValueError.
    """

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
    """Mixin that makes tokenizers behave like the C++ packages of 2022: symbols count as letters.

    The attribute `vocab` is a dict.
    """

    symbols_apart: ClassVar[bool] = False

    @property
    def is_fast(self) -> bool:
        return True

    @property
    def vocab(self) -> dict[str, int]:
        numbers: dict[str, int] = self.get_vocab()  # type: ignore[attr-defined]
        return numbers


class BertFastTokenizer(AsInCpp, BertTokenizer):
    """The tokenizer of BERT models, as in the C++ packages."""


class ErnieFastTokenizer(AsInCpp, ErnieTokenizer):
    """The tokenizer of ERNIE models, as in the C++ packages."""


class TinyBertFastTokenizer(AsInCpp, TinyBertTokenizer):
    """The tokenizer of TinyBERT models, as in the C++ packages."""
