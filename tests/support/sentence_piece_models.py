"""Small SentencePiece models, trained on the demo's headlines: one as XLM-R has it, one as ALBERT."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import sentencepiece

from pipeline.text_lines import read_lines
from tests.support.service_process import ROOT

_HEADLINES = ROOT / "convert" / "demo" / "headlines.tsv"
_ENGLISH = (
    "the quick brown fox jumps over the lazy dog",
    "numbers like 1,000,000 and 2024, prices of 3,50 and more",
    "naive cafe, hello world, it's a test",
)


def headlines() -> list[str]:
    return [line.split("\t")[1] for line in read_lines(_HEADLINES)]


def xlm_r(folder: Path) -> Path:
    """`sentencepiece.bpe.model` with its first three pieces in fairseq's order."""
    return _trained(folder / "sentencepiece.bpe.model", bos_id=1, eos_id=2, unk_id=0)


def albert(folder: Path) -> Path:
    """`spiece.model` with the pieces that ALBERT has in front."""
    symbols = {"control_symbols": "[CLS],[SEP],[MASK]"}
    return _trained(folder / "spiece.model", pad_id=0, unk_id=1, bos_id=-1, eos_id=-1, **symbols)


def _trained(path: Path, **options: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*headlines()[:600], *_ENGLISH * 5]),
        model_writer=model,
        vocab_size=2400,
        character_coverage=0.995,
        hard_vocab_limit=False,
        minloglevel=2,
        num_threads=1,
        **options,
    )
    path.write_bytes(model.getvalue())
    return path
