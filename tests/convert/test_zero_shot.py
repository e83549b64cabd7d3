"""An XLM-R with random weights, converted and served by `paddlewheel text`, answers as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from tests.support import sentence_piece_models
from tests.support.text_services import TextProcess

TEXTS = ["国足客场两球取胜，提前一轮出线", "央行宣布下调存款准备金率", "hello ＷＯＲＬＤ 👍"]
LABELS = ["体育", "财经新闻", "科技", "hello"]
TEMPLATE = "这句话是关于{}的。"


def test_zero_shot_scores_are_those_of_the_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    pieces = sentence_piece_models.xlm_r(tmp_path / "pieces")
    expected = run_isolated(
        "torch_models:zero_shot",
        {"folder": "xlmr", "pieces": str(pieces), "texts": TEXTS, "labels": LABELS, "template": TEMPLATE},
        converter="PyTorch",
        needs=("torch", "transformers"),
    )
    assert main(["all", "xlmr", "served"]) == 0
    monkeypatch.delenv("PYTHONPATH")
    with TextProcess(Path("served").absolute(), "--template", TEMPLATE) as service:
        for way, alone in (("together", False), ("alone", True)):
            rows = service.rows(*TEXTS, labels=LABELS, multi_label=alone)
            for row, scores in zip(rows, expected[way], strict=True):
                told = dict(zip(row["labels"], row["scores"], strict=True))
                assert told == pytest.approx(scores, abs=1e-5)
