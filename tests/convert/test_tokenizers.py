"""The ids that a service gives its model are those of transformers and PaddleNLP, texts and pairs alike."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from pipeline.models.description import TextInput
from pipeline.ops.tokenizer import TextTokenizer, load_tokenizer, tokenizer_file
from tests.support import sentence_piece_models
from tests.support.hard_texts import HARD_TEXTS, PILED
from tests.support.service_process import ROOT

SLOW = "XLMRobertaTokenizer"  # by SentencePiece itself
TEXTS = [*sentence_piece_models.headlines(), *HARD_TEXTS]


def get_recording_path(kind: str, folder: Path) -> Path:
    if kind == "ernie":
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "ErnieTokenizer"}', "utf-8")
    if kind in ("bert", "ernie"):
        (folder / "vocab.txt").write_bytes((ROOT / "models" / "demo" / "vocab.txt").read_bytes())
        return folder / "vocab.txt"
    return {"xlm-r": sentence_piece_models.xlm_r, "albert": sentence_piece_models.albert}[kind](folder)


@pytest.mark.parametrize(
    ("kind", "library", "name"),
    [
        ("bert", "transformers", "BertTokenizer"),
        ("bert", "transformers", "BertTokenizerFast"),
        ("ernie", "paddlenlp", "ErnieTokenizer"),
        ("xlm-r", "transformers", "XLMRobertaTokenizer"),
        ("xlm-r", "transformers", "XLMRobertaTokenizerFast"),
        ("albert", "transformers", "AlbertTokenizerFast"),
    ],
)
def test_ids_are_those_of_the_original(
    kind: str, library: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    file = get_recording_path(kind, tmp_path)
    original: Any = run_isolated(
        "environment_steps:tokenizer_ids",
        {"library": library, "name": name, "file": str(file), "texts": TEXTS},
        converter="transformers",
        needs=(library,),
    )
    own = TextTokenizer(load_tokenizer(TextInput(), tokenizer_file(TextInput(), [tmp_path])))
    ids = [one.ids for one in own.tokens(TEXTS)]
    for text, one, expected in zip(TEXTS, ids, original["alone"], strict=True):
        assert own.row(one).ids == expected or (text, name) == (PILED, SLOW), text
    pairs = zip(itertools.pairwise(TEXTS), itertools.pairwise(ids), original["paired"], strict=True)
    for texts, pair, expected in pairs:
        assert own.row(*pair).ids == expected or (PILED in texts and name == SLOW), texts
