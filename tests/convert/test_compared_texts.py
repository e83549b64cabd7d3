"""Served vectors and ranks are those that transformers makes of the same weights, to 1e-5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from tests.support.text_services import SPECIAL, WORDS, TextProcess

TEXTS = ["国足客场两球取胜", "a b c", "央行宣布下调存款准备金率", "这是体育，这是财经。", "g 国 h", "车" * 40]
PAIRS = [(TEXTS[0], other) for other in TEXTS[1:]] + [(TEXTS[3], TEXTS[1])]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


def step(name: str, **arguments: Any) -> Any:
    """A function of torch_models.py in the conversion environment."""
    return run_isolated(f"torch_models:{name}", arguments, converter=name, needs=("torch", "transformers"))


def converted(head: str, folder: Path) -> tuple[str, Path]:
    """A source with random weights, and the serving model of it."""
    source, served = folder / "source", folder / "served"
    step("save_compared", folder=str(source), head=head, words=[*SPECIAL, *dict.fromkeys(WORDS)])
    assert main(["all", str(source), str(served)]) == 0
    return str(source), served


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    source, served = converted("Model", tmp_path)
    pooling = served / "serving_server" / "1_Pooling" / "config.json"
    for name, told in (("mean", "mean_tokens"), ("cls", "cls_token")):
        pooling.parent.mkdir(exist_ok=True)
        pooling.write_text(f'{{"pooling_mode_{told}": true}}', "utf-8")
        expected = step("text_vectors", source=source, texts=TEXTS, pooling=name)
        with TextProcess(served) as service:
            together = [row["embedding"] for row in service.rows(*TEXTS)]
            alone = [service.rows(text)[0]["embedding"] for text in TEXTS]
        np.testing.assert_allclose(together, expected, rtol=0, atol=1e-5)
        np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-5)


def test_ranks_are_those_of_transformers(tmp_path: Path) -> None:
    source, served = converted("ForSequenceClassification", tmp_path)
    expected = step("pair_scores", source=source, pairs=PAIRS)
    with TextProcess(served, "--task", "reranking") as service:
        rows = service.rows(*({"text": first, "text_pair": second} for first, second in PAIRS))
    np.testing.assert_allclose([row["score"] for row in rows], expected, rtol=0, atol=1e-5)
