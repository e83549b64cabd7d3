"""`--sample` where a model is run in the conversion environment, and on the routes that go through it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from convert.cli import main
from tests.support import onnx_models

TORCH = """
import torch


class Logarithm(torch.nn.Module):
    def forward(self, x):
        return torch.log(x)


class Speech(torch.nn.Module):
    def forward(self, input, state, sr):
        if int(sr) != 16000:
            raise ValueError("a sample rate of 16000 is needed")
        frame = torch.nn.functional.pad(input[:, None], (32, 32), mode="reflect")
        return frame.mean(2) + state.sum(0), state + frame.mean(2)


class Bright(torch.nn.Module):
    def forward(self, image):
        return torch.log(image - 0.9)
"""
CONFIG = {
    "architectures": ["BertForSequenceClassification"],
    "model_type": "bert",
    "vocab_size": 6,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
}
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n"


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def reports(folder: str) -> Any:
    return json.loads(Path(folder, "parity.json").read_text("utf-8"))


def test_a_pytorch_model_is_exported_on_its_sample(capsys: pytest.CaptureFixture[str]) -> None:
    Path("torch_sample.py").write_text(TORCH, "utf-8")
    Path("x.csv").write_text("1,2,3\n4,5,6\n", "utf-8")
    command = ["torch", "torch_sample:Logarithm", "out", "--to", "onnx", "--input-spec", "x:float32[-1,3]"]
    assert main(command) == 1
    assert "--sample" in capsys.readouterr().err
    assert main([*command, "--sample", "x.csv"]) == 0
    assert reports("out")[0]["batches"] == [[2, 3], [1, 3]]


def test_an_image_is_decoded_in_the_conversion_environment_too() -> None:
    Path("torch_sample.py").write_text(TORCH, "utf-8")
    Image.new("RGB", (9, 7), "white").save("white.png")
    spec = "image:float32[-1,3,4,5]"
    command = ["torch", "torch_sample:Bright", "out", "--to", "onnx", "--input-spec", spec]
    assert main([*command, "--sample", "white.png"]) == 0
    assert reports("out")[0]["batches"][0] == [1, 3, 4, 5]


def test_a_pytorch_model_that_runs_its_sample_alone_is_exported(capsys: pytest.CaptureFixture[str]) -> None:
    Path("torch_sample.py").write_text(TORCH, "utf-8")
    frame = np.sin(np.arange(64, dtype=np.float32) / 3)[None]
    np.savez("speech.npz", input=frame, state=np.zeros((2, 1, 4), np.float32), sr=np.array(16000))
    spec = "input:float32[-1,-1];state:float32[2,-1,4];sr:int64[]"
    command = ["torch", "torch_sample:Speech", "out", "--to", "torchscript", "--input-spec", spec]
    assert main(command) == 2
    assert "a sample rate of 16000 is needed" in capsys.readouterr().err
    assert main([*command, "--sample", "speech.npz"]) == 0
    assert reports("out")[0]["batches"] == [[1, 64]]


def test_texts_go_through_the_tokenizer_of_a_paddlenlp_model_and_its_positions_are_found() -> None:
    Path("source").mkdir()
    Path("source/config.json").write_text(json.dumps(CONFIG), "utf-8")
    Path("source/vocab.txt").write_text(VOCABULARY, "utf-8")
    Path("texts.txt").write_text("good\nbad good good\n", "utf-8")
    command = ["all", "source", "served", "--random-weights", "--sample", "texts.txt", "--engine", "paddle"]
    assert main(command) == 0
    exported, served, padding = reports("served/serving_server")
    assert exported["batches"] == served["batches"] == [[1, 3], [1, 5], [2, 3], [5, 3]]
    assert {shape[1] for shape in padding["batches"]} == {3, 5}
    told = Path("served/serving_server/serving.yml").read_text("utf-8")
    assert told.count("length: 40") == 3
    bodies = Path("served/serving_server/sample.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(body)["value"] for body in bodies] == [["good"], ["bad good good"]]


def test_a_model_with_a_state_and_a_sample_rate_goes_the_whole_way() -> None:
    frame = np.sin(np.arange(64, dtype=np.float32) / 3)[None]
    np.savez("speech.npz", input=frame, state=np.zeros((2, 1, 4), np.float32), sr=np.array(16000))
    source = str(onnx_models.onnx_file("speech"))
    assert main(["all", source, "served", "--sample", "speech.npz"]) == 0
    assert all(report["passed"] for report in reports("served/serving_server"))
    assert main(["check", "served", "--sample", "speech.npz"]) == 0
