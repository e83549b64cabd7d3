"""compat's tokenizers beside PaddleNLP's own: tokens, ids, types, lengths, offsets, in every call."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench.paddlenlp_names import HARD_TEXTS, Case, differences
from convert.demo.headlines import read_headlines
from convert.steps.conversion_environment import conversion_python

ROOT = Path(__file__).resolve().parents[2]
ENGLISH = (
    "The quick brown fox's 1,234 jumps",
    "don't you'll  we've",
    "Paddle 2022, naïve café",
    "a b a b cab",
)
ODD_LINES = [
    "\u2028",
    "\u0085",
    "\u00a0",
    "\u3000",
    "\u0301",
    "℃",
    "##℃",
    "￥",
    "##￥",
    "5",
    "##0",
    "é",
    "e",
    "σ",
    "ς",
]


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Each eightieth headline of the demo, and a page of hard characters."""
    return [headline.text for headline in read_headlines()][::80] + list(HARD_TEXTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's vocabulary with odd lines, and special tokens."""
    folder = tmp_path_factory.mktemp("vocabulary")
    tokens = (ROOT / "models/demo/vocab.txt").read_text("utf-8").split("\n")[:-1]
    tokens += [token for token in ("[MASK]", *ODD_LINES) if token not in tokens]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens), "utf-8")
    return folder


def assert_the_same(cases: list[Case], texts: list[str], at_least: int) -> None:
    count, found = differences(cases, texts, conversion_python(["paddlenlp"]))
    assert found == []
    assert count > at_least


def test_tokenizers_of_words_answer_as_paddlenlps(folder: Path, texts: list[str]) -> None:
    kinds = ("BertTokenizer", "ErnieTokenizer", "RobertaChineseTokenizer", "NeZhaTokenizer", "SkepTokenizer")
    cases = [Case(kind, str(folder), {"do_lower_case": lower}) for kind in kinds for lower in (True, False)]
    others = (
        "ElectraTokenizer",
        "PPMiniLMTokenizer",
        "TinyBertTokenizer",
        "ErnieGramTokenizer",
        "RoFormerTokenizer",
    )
    cases += [Case(kind, str(folder), {}) for kind in others]
    options: list[dict[str, Any]] = [
        {"do_lower_case": False, "strip_accents": True},
        {"tokenize_chinese_chars": False, "never_split": ["Café", "##的"]},
        {"model_max_length": 20, "padding_side": "left", "additional_special_tokens": ["http"]},
    ]
    cases += [Case("BertTokenizer", str(folder), option) for option in options]
    assert_the_same(cases, texts, 10_000)


def test_auto_tokenizer_answers_as_paddlenlps_for_a_saved_folder(folder: Path, texts: list[str]) -> None:
    saved = folder / "saved"
    saved.mkdir()
    (saved / "vocab.txt").write_bytes((folder / "vocab.txt").read_bytes())
    config = {"do_lower_case": True, "tokenizer_class": "ErnieTokenizer", "model_max_length": 30}
    (saved / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    (saved / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}', "utf-8")
    size = len((folder / "vocab.txt").read_text("utf-8").split("\n")) - 1
    (saved / "added_tokens.json").write_text(json.dumps({"两球": size, "取胜": size + 1}), "utf-8")
    assert_the_same([Case("AutoTokenizer", str(saved), {"use_fast": True})], texts, 500)


def test_tokenizers_of_byte_pairs_answer_as_paddlenlps(tmp_path: Path, texts: list[str]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([*ENGLISH, *texts], trainer)
    tokenizer.model.save(str(tmp_path))
    cases = [Case("RobertaBPETokenizer", str(tmp_path), {}), Case("RobertaTokenizer", str(tmp_path), {})]
    assert_the_same(cases, [*ENGLISH, *texts], 1_000)


def test_tokenizers_of_sentence_pieces_answer_as_paddlenlps(tmp_path: Path, texts: list[str]) -> None:
    import sentencepiece

    corpus = tmp_path / "corpus"
    lines = [headline.text for headline in read_headlines()][:600]
    corpus.write_text("\n".join([*lines, *ENGLISH]), "utf-8")
    for name, kind in (("spiece", "unigram"), ("sentencepiece.bpe", "bpe")):
        sentencepiece.SentencePieceTrainer.train(
            input=str(corpus), model_prefix=str(tmp_path / name), vocab_size=3_000, model_type=kind,
            pad_id=3, user_defined_symbols=["[CLS]", "[SEP]", "[MASK]", "<sep>", "<cls>"],
            character_coverage=1.0, hard_vocab_limit=False, minloglevel=2,
        )  # fmt: skip
    pieces = [
        line.split("\t")[0] for line in (tmp_path / "sentencepiece.bpe.vocab").read_text("utf-8").split("\n")
    ]
    tokens = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", *(piece for piece in pieces if piece)]
    (tmp_path / "vocab.txt").write_text("".join(f"{token}\n" for token in dict.fromkeys(tokens)), "utf-8")
    cases = [
        Case("ErnieMTokenizer", str(tmp_path), {}),
        Case("ErnieMTokenizer", str(tmp_path), {"do_lower_case": True}),
        Case("XLNetTokenizer", str(tmp_path), {}),
        Case("XLNetTokenizer", str(tmp_path), {"do_lower_case": True, "keep_accents": True}),
        *(Case(f"{kind}Tokenizer", str(tmp_path), {}) for kind in ("T5", "MBart", "MBart50", "ErnieLayout")),
    ]
    assert_the_same(cases, [*ENGLISH, *texts], 2_000)
