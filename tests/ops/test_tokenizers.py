"""Tokenizers by the files beside a model: ids are those of the originals, for headlines and hard texts."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from pipeline.errors import ConfigError
from pipeline.models.description import TextInput
from pipeline.ops.tokenizer import TextTokenizer, load_tokenizer, shortened, tokenizer_file
from tests.support import sentence_piece_models
from tests.support.hard_texts import HARD_TEXTS, PILED
from tests.support.service_process import ROOT

VOCABULARY = ROOT / "models" / "demo" / "vocab.txt"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By the tokenizer's kind a folder with its file."""
    made = {kind: tmp_path_factory.mktemp(kind) for kind in ("xlm-r", "albert", "bert")}
    sentence_piece_models.xlm_r(made["xlm-r"])
    sentence_piece_models.albert(made["albert"])
    (made["bert"] / "vocab.txt").write_bytes(VOCABULARY.read_bytes())
    return made


def loaded(folder: Path) -> TextTokenizer:
    given = TextInput()
    return TextTokenizer(load_tokenizer(given, tokenizer_file(given, [folder])))


def by_sentencepiece(folder: Path) -> Callable[[str], list[int]]:
    """XLM-R's ids by SentencePiece itself: fairseq has the numbers one higher, and 3 for what is unknown."""
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.bpe.model"))
    return lambda text: [number + 1 if number else 3 for number in pieces.encode(text)]


def test_xlm_r_has_the_ids_of_sentencepiece(folders: dict[str, Path]) -> None:
    original = by_sentencepiece(folders["xlm-r"])
    texts = [*sentence_piece_models.headlines(), *(text for text in HARD_TEXTS if text != PILED)]
    for text, tokens in zip(texts, loaded(folders["xlm-r"]).tokens(texts), strict=True):
        assert tokens.ids == original(text), text


def test_albert_has_the_ids_of_sentencepiece_of_a_prepared_text(folders: dict[str, Path]) -> None:
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folders["albert"] / "spiece.model"))

    def original(text: str) -> list[int]:
        text = text.replace("``", '"').replace("''", '"')
        text = unicodedata.normalize("NFKD", text)
        kept = "".join(char for char in text if not unicodedata.combining(char))
        return list(pieces.encode(kept.lower()))

    texts = sentence_piece_models.headlines()
    for text, tokens in zip(texts, loaded(folders["albert"]).tokens(texts), strict=True):
        assert tokens.ids == original(text), text


@pytest.mark.parametrize("kind", ["xlm-r", "albert", "bert"])
def test_a_tokenizer_json_gives_the_same_ids(kind: str, folders: dict[str, Path], tmp_path: Path) -> None:
    own = loaded(folders[kind])
    own._tokenizer.save(str(tmp_path / "tokenizer.json"))
    again = loaded(tmp_path)
    for text in HARD_TEXTS:
        assert again.tokens([text]) == own.tokens([text])


@pytest.mark.parametrize("kind", ["xlm-r", "albert", "bert"])
def test_rows_have_the_special_tokens_that_the_tokenizer_sets_itself(
    kind: str, folders: dict[str, Path]
) -> None:
    own = loaded(folders[kind])
    first, second = own.tokens(["国足客场 hello", "两球"])
    pair = own._tokenizer.encode("国足客场 hello", "两球")
    single = own._tokenizer.encode("国足客场 hello")
    assert own.row(first.ids)[:2] == (single.ids, single.type_ids)
    assert own.row(first.ids, second.ids)[:2] == (pair.ids, pair.type_ids)
    assert own.special(paired=False) == len(single.ids) - len(first.ids)


@pytest.mark.parametrize("room", range(16))
def test_a_pair_is_shortened_as_by_the_tokenizer(folders: dict[str, Path], room: int) -> None:
    own = loaded(folders["bert"])
    for one, other in (("国足客场两球取胜", "央行"), ("央行", "国足客场两球取胜"), ("国足客", "两球取")):
        first, second = own.tokens([one, other])
        own._tokenizer.enable_truncation(room + 3)
        expected = own._tokenizer.encode(one, other).ids
        own._tokenizer.no_truncation()
        assert own.row(*shortened(first.ids, second.ids, room)).ids == expected


def test_settings_beside_the_vocabulary_hold(folders: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nABC\nabc\ncafé\ncafe\n", "utf-8")
    assert loaded(tmp_path).tokens(["ABC Café"])[0].ids == [6, 8]
    settings = {"do_lower_case": False, "tokenizer_class": "BertTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    assert loaded(tmp_path).tokens(["ABC café"])[0].ids == [5, 7]


class TestUnknown:
    @pytest.mark.parametrize("name", ["BertJapaneseTokenizer", "RoFormerTokenizer", "XLNetTokenizer"])
    def test_a_tokenizer_of_another_kind_is_refused_with_what_to_do(self, tmp_path: Path, name: str) -> None:
        (tmp_path / "vocab.txt").write_text("[PAD]\n", "utf-8")
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": name}), "utf-8")
        with pytest.raises(ConfigError, match=rf"belongs to {name}.*save it as tokenizer.json"):
            loaded(tmp_path)

    def test_two_files_of_ernie_m_are_not_taken_for_bert_s(self, tmp_path: Path) -> None:
        for name in ("vocab.txt", "sentencepiece.bpe.model"):
            (tmp_path / name).write_text("[PAD]\n", "utf-8")
        with pytest.raises(ConfigError, match="belongs to ErnieMTokenizer"):
            loaded(tmp_path)

    @pytest.mark.parametrize("name", ["sentencepiece.bpe.model", "spiece.model", "tokenizer.json"])
    @pytest.mark.parametrize("content", [b"", b"no tokenizer", b"\x0a\x05ab"], ids=["empty", "text", "cut"])
    def test_a_file_that_is_none_is_refused_by_its_name(
        self, tmp_path: Path, name: str, content: bytes
    ) -> None:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigError, match=name):
            loaded(tmp_path)

    def test_a_folder_without_any_names_the_files_that_are_known(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"tokenizer.json or vocab.txt or sentencepiece.bpe.model"):
            loaded(tmp_path)
