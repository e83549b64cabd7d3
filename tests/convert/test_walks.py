"""docs/walks.md: each walk with a conversion, command by command, on a small model."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.steps.conversion_environment import CONVERT_PYTHON, FOLDER
from convert.steps.isolation import run_isolated
from tests.support.command_line import paddlewheel
from tests.support.followed_documents import Reader, blocks_of
from tests.support.service_process import ROOT
from tests.support.text_services import SPECIAL

PAGE = ROOT / "docs" / "walks.md"
TRAINING = next(block.text for block in blocks_of(ROOT / "docs" / "tables.md") if block.title == "train.py")
SENTENCE = "A man is eating food."
REVIEW = "我们喜欢这部电影"
SIZES = {
    "vocab_size": len(SPECIAL) + len(REVIEW),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """pip fetches nothing: the packages of each environment are installed already."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PADDLEWHEEL_AUTO_SECONDS", "0")  # not what the walks are about
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


def commands_of(heading: str) -> list[str]:
    """The commands of a walk, as the page prints them."""
    section = PAGE.read_text("utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    (block,) = re.findall(r"^```bash\n(.*?)^```$", section, re.M | re.S)
    return str(block).splitlines()


def follow(folder: Path, heading: str) -> tuple[Reader, dict[str, Any]]:
    """Run the commands of a walk in a folder; the reader, and the answer to the request."""
    reader = Reader(folder)
    reader.run_commands(commands_of(heading))
    ((answer, _),) = reader.answers
    assert answer.status == 200, answer
    return reader, answer.json


def link_environment(folder: Path) -> None:
    """Put the conversion environment where the first command of a walk completes it."""
    (folder / "convert-env").symlink_to(FOLDER)


def test_from_a_hugging_face_folder_to_embeddings(tmp_path: Path) -> None:
    source = tmp_path / "minilm"
    words = [*SPECIAL, *SENTENCE.lower().replace(".", " .").split()]
    save_sentence_encoder(source, words)
    expected = step("torch_models:text_vectors", source=str(source), texts=[SENTENCE], pooling="mean")
    link_environment(tmp_path)
    reader, answer = follow(tmp_path, "A Hugging Face folder to /v1/embeddings")
    (row,) = answer["data"]
    assert (row["object"], row["index"]) == ("embedding", 0)
    np.testing.assert_allclose(row["embedding"], expected[0], rtol=0, atol=1e-5)
    proof = "".join(reader.printed.values())
    assert all(name in proof for name in ("PyTorch to Paddle", "sentence vectors", "Paddle to ONNX"))


def test_from_a_joblib_of_another_scikit_learn_to_a_label(tmp_path: Path) -> None:
    python = make_older_environment(tmp_path / "scikit-learn-1.5.2")
    training = TRAINING.replace("model.joblib", "people.joblib")
    subprocess.run([python, "-c", training], cwd=tmp_path, check=True)
    _, answer = follow(tmp_path, "A joblib of another scikit-learn to a label")
    assert answer == {"predictions": [{"label": "yes", "score": pytest.approx(0.98026, abs=1e-3)}]}


def test_a_conversion_without_the_variable_names_the_first_two_commands(tmp_path: Path) -> None:
    python = make_older_environment(tmp_path / "scikit-learn-1.5.2")
    training = TRAINING.replace("model.joblib", "people.joblib")
    subprocess.run([python, "-c", training], cwd=tmp_path, check=True)
    environment, conversion, *_ = commands_of("A joblib of another scikit-learn to a label")
    done = paddlewheel(*conversion.split()[2:], cwd=tmp_path)
    told = " ".join((done.stdout + done.stderr).split())
    assert "was saved by scikit-learn 1.5.2" in told
    assert environment in told and conversion in told


def test_from_a_paddlenlp_folder_to_a_classifier(tmp_path: Path) -> None:
    source = tmp_path / "reviews"
    tokens = [*SPECIAL, *REVIEW]
    ids = [tokens.index(token) for token in ("[CLS]", *REVIEW, "[SEP]")]
    np.savez(tmp_path / "feeds.npz", input_ids=[ids], token_type_ids=[[0] * len(ids)])
    step(
        "environment_steps:paddlenlp_checkpoint",
        family="Ernie", head="Sequence", sizes={**SIZES, "num_labels": 2},
        folder=str(source), feeds=str(tmp_path / "feeds.npz"),
    )  # fmt: skip
    config = json.loads((source / "config.json").read_text("utf-8"))
    labels = {"0": "negative", "1": "positive"}
    (source / "config.json").write_text(json.dumps({**config, "id2label": labels}), "utf-8")
    (source / "vocab.txt").write_text("\n".join(tokens), "utf-8")
    powers = np.exp(np.load(source / "logits.npy")[0])
    link_environment(tmp_path)
    _, answer = follow(tmp_path, "A PaddleNLP folder to a classifier")
    (row,) = answer["predictions"]
    assert row["label"] == labels[str(powers.argmax())] and row["labels"] == [row["label"]]
    assert row["score"] == row["scores"][0] == pytest.approx(powers.max() / powers.sum(), abs=1e-4)


def step(function: str, **arguments: Any) -> Any:
    """Call a function of the tests in the conversion environment."""
    needs = ("torch", "transformers") if function.startswith("torch_models:") else ("paddlenlp",)
    return run_isolated(function, arguments, converter=function, needs=needs)


def save_sentence_encoder(folder: Path, words: list[str]) -> None:
    """Save a BERT with random weights, its tokenizer, and the files of Sentence Transformers."""
    step("torch_models:save_compared", folder=str(folder), head="Model", words=words)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules), "utf-8")
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}', "utf-8")


def make_older_environment(folder: Path) -> Path:
    """Make the environment with the older scikit-learn from packages that are here; its interpreter."""
    subprocess.run([FOLDER / "bin" / "python", "-m", "venv", "--without-pip", folder], check=True)
    (own,) = folder.glob("lib/python3.*/site-packages")
    (others,) = FOLDER.glob("lib/python3.*/site-packages")
    (own / "packages.pth").write_text(f"{FOLDER / 'old_sklearn'}\n{others}\n", "utf-8")
    return folder / "bin" / "python"
