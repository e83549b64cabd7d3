"""Served vectors and ranks are those that transformers makes of the same weights, to 1e-5."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from tests.support.conversion_steps import Call, run_steps
from tests.support.text_services import SPECIAL, WORDS, TextProcess

TEXTS = ["国足客场两球取胜", "a b c", "央行宣布下调存款准备金率", "这是体育，这是财经。", "g 国 h", "车" * 40]
PAIRS = [(TEXTS[0], other) for other in TEXTS[1:]] + [(TEXTS[3], TEXTS[1])]
VOCABULARY = [*SPECIAL, *dict.fromkeys(WORDS)]
POOLINGS = {"mean": "mean_tokens", "cls": "cls_token"}
LENGTHS = ("--lengths", "5,9")
PROMPTS = {"": "", "query": "国足 a ", "passage": "b"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


def saved(head: str, folder: Path) -> Call:
    """The call that saves a source with random weights."""
    return "torch_models:save_compared", {"folder": str(folder), "head": head, "words": VOCABULARY}


def test_vectors_are_those_of_transformers(tmp_path: Path) -> None:
    source, served = tmp_path / "source", tmp_path / "served"
    asked = {"source": str(source), "texts": TEXTS}
    vectors = [("torch_models:text_vectors", {**asked, "pooling": pooling}) for pooling in POOLINGS]
    _, *expected = run_steps(saved("Model", source), *vectors)
    assert main(["all", str(source), str(served)]) == 0
    pooling = served / "serving_server" / "1_Pooling" / "config.json"
    for told, rows in zip(POOLINGS.values(), expected, strict=True):
        pooling.parent.mkdir(exist_ok=True)
        pooling.write_text(f'{{"pooling_mode_{told}": true}}', "utf-8")
        with TextProcess(served) as service:
            together = [row["embedding"] for row in service.rows(*TEXTS)]
            alone = [service.rows(text)[0]["embedding"] for text in TEXTS]
        np.testing.assert_allclose(together, rows, rtol=0, atol=1e-5)
        np.testing.assert_allclose(alone, rows, rtol=0, atol=1e-5)


def test_ranks_are_those_of_transformers(tmp_path: Path) -> None:
    source, served = tmp_path / "source", tmp_path / "served"
    scores = ("torch_models:pair_scores", {"source": str(source), "pairs": PAIRS})
    _, expected = run_steps(saved("ForSequenceClassification", source), scores)
    assert main(["all", str(source), str(served)]) == 0
    with TextProcess(served, "--task", "reranking") as service:
        rows = service.rows(*({"text": first, "text_pair": second} for first, second in PAIRS))
    np.testing.assert_allclose([row["score"] for row in rows], expected, rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A sentence encoder with every kind of module, and its vectors of the texts by prompt."""
    folder = tmp_path_factory.mktemp("sentences") / "encoder"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.delenv(CONVERT_PYTHON, raising=False)
        asked = {"source": str(folder), "texts": TEXTS}
        _, *vectors = run_steps(
            ("torch_models:save_sentence_encoder", {"folder": str(folder), "words": VOCABULARY}),
            *(("torch_models:sentence_vectors", {**asked, "prompt": prompt}) for prompt in PROMPTS.values()),
        )
    return folder, dict(zip(PROMPTS, vectors, strict=True))


@pytest.mark.parametrize("way", ["weights", "ONNX export"])
def test_modules_of_a_sentence_encoder_are_part_of_its_vectors(
    way: str, encoder: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, vectors = encoder
    source, served = str(folder), tmp_path / "served"
    if way == "ONNX export":
        assert main(["torch", source, str(tmp_path / "onnx"), "--to", "onnx"]) == 0
        source = str(tmp_path / "export" / "onnx" / "model.onnx")
        shutil.copytree(folder, tmp_path / "export", ignore=shutil.ignore_patterns("model.*"))
        shutil.copytree(folder / "2_Dense", tmp_path / "export" / "2_Dense", dirs_exist_ok=True)
        Path(source).parent.mkdir()
        shutil.copy(tmp_path / "onnx" / "model.onnx", source)
    assert main(["all", source, str(served), "--engine", "onnxruntime", *LENGTHS]) == 0
    reports = json.loads((served / "serving_server" / "parity.json").read_text("utf-8"))
    assert next(report["passed"] for report in reports if report["step"] == "sentence vectors")
    with TextProcess(served) as service:
        for name, expected in vectors.items():
            rows = service.rows(*TEXTS, prompt_name=name, truncate=True)
            np.testing.assert_allclose([row["embedding"] for row in rows], expected, rtol=0, atol=1e-5)
