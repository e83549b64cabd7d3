"""`--format pdmodel`: our own models as the programs that Paddle's TensorRT engine takes, to their shapes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.programs.runners import serving_runner
from convert.steps.conversion_environment import CONVERT_PYTHON, PDMODEL_PADDLE
from convert.steps.isolation import run_isolated
from pipeline.engines import create_predictor
from pipeline.engines.dynamic_shape import read_ranges
from pipeline.engines.paddle.paddle_config import configure
from pipeline.models.serving_model import load_serving_model
from tests.support import models
from tests.support.recording_config import RecordingConfig

HERE = Path(__file__).parent
SIZES = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 640,
    "type_vocab_size": 2,
    "num_labels": 3,
}
TOKEN_FEEDS = {
    "input_ids": np.array([[5, 9, 70, 3, 2], [8, 2, 0, 0, 0]]),
    "token_type_ids": np.array([[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]),
    "attention_mask": np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]),
}

MODULE = '''
import paddle


class Classifier(paddle.nn.Layer):
    """Its weights are other ones each time."""

    def __init__(self):
        super().__init__()
        self.words = paddle.nn.Embedding(40, 16)
        layer = paddle.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, activation="gelu")
        self.encoder = paddle.nn.TransformerEncoder(layer, 2)
        self.linear = paddle.nn.Linear(16, 3)

    def forward(self, input_ids, attention_mask):
        mask = paddle.unsqueeze((attention_mask == 0).astype("float32") * -1e4, axis=[1, 2])
        return self.linear(self.encoder(self.words(input_ids), mask)[:, 0])


def seeded():
    paddle.seed(7)
    return Classifier()


def newest_only():
    """Of a Paddle that writes .json programs."""
    assert paddle.__version__ == "3.3.1", "it is another Paddle"
    return Classifier()
'''
FEEDS = ("--input-spec", "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]")
PDMODEL = ("--format", "pdmodel")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module of the user's own."""
    (tmp_path / "own_layer.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_layer", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setenv("PPNLP_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    monkeypatch.delenv(PDMODEL_PADDLE, raising=False)
    return tmp_path


def ernie(head: str) -> str:
    """A PaddleNLP checkpoint; logits.npy has what it answers to TOKEN_FEEDS."""
    np.savez("feeds.npz", **TOKEN_FEEDS)
    run_isolated(
        "environment_steps:paddlenlp_checkpoint",
        {"family": "Ernie", "head": head, "sizes": SIZES, "folder": "mine", "feeds": "feeds.npz"},
        converter="PaddleNLP",
        needs=("paddlenlp",),
    )
    return "mine"


def answers(folder: str) -> Any:
    model = load_serving_model(folder)
    assert model.format == "pdmodel"
    return create_predictor(model, models.local_conf()).run(TOKEN_FEEDS)["logits"]


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence of a command that can't be done and writes nothing."""
    capsys.readouterr()
    assert main([*arguments]) == 2
    assert not Path("out").exists()
    return capsys.readouterr().err.splitlines()[-1]


def test_a_users_layer_keeps_its_weights_in_a_program_of_the_older_paddle() -> None:
    assert main(["paddle", "own_layer:Classifier", "out", *FEEDS, *PDMODEL]) == 0
    assert sorted(path.name for path in Path("out").iterdir()) == [
        "convert.json",
        "inference.pdiparams",
        "inference.pdmodel",
        "parity.json",
    ]
    (report,) = json.loads(Path("out/parity.json").read_text("utf-8"))
    assert (report["step"], report["passed"]) == ("dynamic to static", True)
    assert b"own_layer.py" not in Path("out/inference.pdmodel").read_bytes(), "no path of this machine"
    assert main(["serving", "out", "served"]) == 0
    model = load_serving_model("served")
    assert [feed.alias for feed in model.feeds] == ["input_ids", "attention_mask"]
    assert main(["shapes", "served", "shapes.pbtxt", "--lengths", "1,9", "--batches", "1,2"]) == 0
    assert {"unsqueeze2_0.tmp_0", "softmax_1.tmp_0"} < read_ranges(Path("shapes.pbtxt")).keys()


def test_another_format_is_made_anew_and_the_same_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paddle", "own_layer:seeded", "out", *FEEDS]) == 0
    assert Path("out/inference.json").is_file()
    assert main(["paddle", "own_layer:seeded", "out", *FEEDS, *PDMODEL]) == 0
    assert Path("out/inference.pdmodel").is_file()
    assert not Path("out/inference.json").exists()
    assert main(["paddle", "own_layer:seeded", "out", *FEEDS, *PDMODEL]) == 0
    assert "out is up to date." in capsys.readouterr().out


def test_a_token_classifier_keeps_its_answers() -> None:
    assert main(["all", ernie("Token"), "served", *PDMODEL, "--lengths", "5,9"]) == 0
    np.testing.assert_allclose(answers("served"), np.load("mine/logits.npy"), rtol=0, atol=1e-4)


def test_a_paddlenlp_model_gets_engines_for_three_length_classes() -> None:
    assert main(["all", ernie("Sequence"), "served", *PDMODEL]) == 0
    np.testing.assert_allclose(answers("served"), np.load("mine/logits.npy"), rtol=0, atol=1e-4)
    model = load_serving_model("served")
    assert [feed.alias for feed in model.feeds] == [*TOKEN_FEEDS]
    for shortest, longest in ((1, 128), (129, 256), (257, 512)):
        file = Path(f"shapes-{longest}.pbtxt").absolute()
        lengths = ("--lengths", f"{shortest},{longest}", "--batches", "1,4")
        assert main(["shapes", "served", str(file), *lengths]) == 0
        inner = read_ranges(file)["unsqueeze2_0.tmp_0"]
        assert (inner.min, inner.opt, inner.max) == (
            (1, 1, 1, shortest),
            (4, 1, 1, longest),
            (4, 1, 1, longest),
        )
        keys = {"shapes": str(file), "precision": "fp16"}
        conf = models.local_conf(device_type=2, tensorrt=keys)
        config = RecordingConfig(model)
        configure(config, model, conf)
        assert config.tuned_tensorrt_dynamic_shape()
        assert config.tensorrt["max_batch_size"] == 4


def test_a_pytorch_model_keeps_its_answers() -> None:
    run_isolated(
        "torch_models:save",
        {"folder": "bert", "family": "Bert", "head": "ForSequenceClassification"},
        converter="save",
        needs=("torch", "transformers"),
    )
    expected = run_isolated(
        "torch_models:answers",
        {"source": "bert", "feeds": {name: array.tolist() for name, array in SMALL_IDS.items()}},
        converter="answers",
        needs=("torch", "transformers"),
    )
    assert main(["all", "bert", "served", *PDMODEL]) == 0
    model = load_serving_model("served")
    assert model.format == "pdmodel"
    (logits,) = serving_runner(Path("served"))({model_name(model, a): v for a, v in SMALL_IDS.items()})
    np.testing.assert_allclose(logits, expected[0], rtol=0, atol=1e-4)


SMALL_IDS = {**TOKEN_FEEDS, "input_ids": TOKEN_FEEDS["input_ids"] % 60}


def model_name(model: Any, alias: str) -> str:
    return next(feed.name for feed in model.feeds if feed.alias == alias)


def test_a_layer_that_the_older_paddle_can_not_build_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    message = told(capsys, "paddle", "own_layer:newest_only", "out", *FEEDS, *PDMODEL)
    assert message.startswith(
        "by Paddle 3.1.1, which writes .pdmodel programs: calling own_layer:newest_only"
    )
    assert "it is another Paddle" in message


def test_what_can_not_be_a_pdmodel_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    config = json.dumps({"model_type": "ernie", **SIZES})
    Path("small.json").write_text(config, "utf-8")
    onnx = str(HERE.parent / "fixtures" / "onnx" / "classifier.onnx")
    assert "--format pdmodel is for a paddle.nn.Layer or" in told(capsys, "all", onnx, "out", *PDMODEL)
    engine = ("--random-weights", "--engine", "onnxruntime")
    assert "is for --engine paddle" in told(capsys, "all", "small.json", "out", *PDMODEL, *engine)
    assert "--to onnx is asked for" in told(capsys, "torch", "bert", "out", "--to", "onnx", *PDMODEL)
