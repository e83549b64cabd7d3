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


@pytest.fixture(scope="module")
def sentence_encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    source = str(tmp_path_factory.mktemp("sentences") / "encoder")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))
        patch.delenv(CONVERT_PYTHON, raising=False)
        step("save_sentence_encoder", folder=source, words=[*SPECIAL, *dict.fromkeys(WORDS)])
    return source


@pytest.mark.parametrize("way", ["weights", "ONNX export"])
def test_modules_of_a_sentence_encoder_are_part_of_its_vectors(
    way: str, sentence_encoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, served = sentence_encoder, tmp_path / "served"
    if way == "ONNX export":
        assert main(["torch", source, str(tmp_path / "onnx"), "--to", "onnx"]) == 0
        source = str(tmp_path / "export" / "onnx" / "model.onnx")
        shutil.copytree(sentence_encoder, tmp_path / "export", ignore=shutil.ignore_patterns("model.*"))
        shutil.copytree(
            Path(sentence_encoder, "2_Dense"), tmp_path / "export" / "2_Dense", dirs_exist_ok=True
        )
        Path(source).parent.mkdir()
        shutil.copy(tmp_path / "onnx" / "model.onnx", source)
    assert main(["all", source, str(served), "--engine", "onnxruntime", "--lengths", "5,9"]) == 0
    reports = json.loads((served / "serving_server" / "parity.json").read_text("utf-8"))
    assert next(report["passed"] for report in reports if report["step"] == "sentence vectors")
    with TextProcess(served) as service:
        for name, prompt in (("", ""), ("query", "国足 a "), ("passage", "b")):
            expected = step("sentence_vectors", source=sentence_encoder, prompt=prompt, texts=TEXTS)
            rows = service.rows(*TEXTS, prompt_name=name, truncate=True)
            np.testing.assert_allclose([row["embedding"] for row in rows], expected, rtol=0, atol=1e-5)
