"""A user's own model through `paddlewheel convert paddle` and `paddlewheel convert serving`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support.models import local_conf
from tests.support.sentiment import SENTIMENT, SPEC

ROOT = Path(__file__).parents[2]
PADDING = "input_ids=0,attention_mask=0"

MODELS = (
    SENTIMENT
    + '''


class Tagger(Sentiment):
    """Three classes for every word."""

    def forward(self, input_ids, attention_mask):
        return self.out(self.word(input_ids)) * attention_mask.astype("float32").unsqueeze(-1)


class Perturbed(Sentiment):
    """Its static form answers otherwise."""

    def forward(self, input_ids, attention_mask):
        logits = super().forward(input_ids, attention_mask)
        return logits + 0.01 if paddle.in_dynamic_mode() else logits


class IgnoresMask(Sentiment):
    def forward(self, input_ids, attention_mask):
        return self.out(self.word(input_ids).mean(1)) + 0.0 * attention_mask.sum(1, keepdim=True)


class Recurrent(paddle.nn.Layer):
    """A class for every word, of all words before it."""

    def __init__(self):
        super().__init__()
        self.word = paddle.nn.Embedding(50, 16)
        self.memory = paddle.nn.LSTM(16, 8, direction="bidirect", num_layers=2)

    def forward(self, input_ids):
        return self.memory(self.word(input_ids))[0]


class Interrupted(Sentiment):
    """Ctrl-C during the comparison."""

    def forward(self, input_ids, attention_mask):
        if paddle.in_dynamic_mode():
            raise KeyboardInterrupt
        return super().forward(input_ids, attention_mask)
'''
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the user's models as the module `own_models`, and the current directory."""
    (tmp_path / "own_models.py").write_text(MODELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_models", raising=False)
    yield tmp_path
    sys.modules.pop("own_models", None)


def export(name: str, *more: str) -> int:
    return main(["paddle", f"own_models:{name}", "--input-spec", SPEC, "inference", *more])


def snapshot(directory: Path) -> dict[str, bytes]:
    return {str(p.relative_to(directory)): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


def test_a_users_layer_is_served_with_the_logits_of_its_dynamic_form(project: Path) -> None:
    import own_models
    import paddle

    layer = own_models.Sentiment()
    paddle.save(layer.state_dict(), "mine.pdparams")
    assert export("Sentiment", "--params", "mine.pdparams") == 0
    assert main(["serving", "inference", "served", "--fetch-alias", "logits", "--labels", "bad,so,good"]) == 0
    model = load_serving_model("served")
    assert [(v.alias, v.dtype, v.shape) for v in (*model.feeds, *model.fetches)] == [
        ("input_ids", "int64", (-1, -1)),
        ("attention_mask", "int64", (-1, -1)),
        ("logits", "float32", (-1, 3)),
    ]
    assert model.labels == ("bad", "so", "good")
    assert model.padding is None
    ids = np.random.default_rng(3).integers(0, 50, (4, 9))
    mask = np.arange(9)[None, :] < np.array([[9], [5], [1], [7]])
    feeds = {"input_ids": ids, "attention_mask": mask.astype(np.int64)}
    predictor = create_predictor(model, local_conf())
    expected = layer(*(paddle.to_tensor(array) for array in feeds.values())).numpy()
    np.testing.assert_allclose(predictor.run(feeds)["logits"], expected, rtol=0, atol=1e-5)


def test_a_recurrent_layer_is_served_with_the_states_of_its_dynamic_form(project: Path) -> None:
    import own_models
    import paddle

    layer = own_models.Recurrent()
    paddle.save(layer.state_dict(), "mine.pdparams")
    spec = ["--input-spec", "input_ids:int64[-1,-1]", "--params", "mine.pdparams"]
    assert main(["paddle", "own_models:Recurrent", "inference", *spec]) == 0
    assert main(["serving", "inference", "served", "--fetch-alias", "states"]) == 0
    ids = np.random.default_rng(3).integers(0, 50, (2, 6))
    predictor = create_predictor(load_serving_model("served"), local_conf())
    expected = layer(paddle.to_tensor(ids)).numpy()
    np.testing.assert_allclose(predictor.run({"input_ids": ids})["states"], expected, rtol=0, atol=1e-5)


def test_padding_is_declared_once_it_is_proven(project: Path) -> None:
    assert export("Tagger") == 0
    assert main(["serving", "inference", "served", "--fetch-alias", "tags", "--padding", PADDING]) == 0
    padding = load_serving_model("served").padding
    assert padding is not None
    assert {alias: (p.axis, p.value) for alias, p in padding.feeds.items()} == {
        "input_ids": (1, 0),
        "attention_mask": (1, 0),
    }
    assert dict(padding.fetches) == {"tags": 1}


def test_the_parity_report_is_stored_beside_the_model(project: Path) -> None:
    assert export("Sentiment") == 0
    assert main(["serving", "inference", "served", "--padding", PADDING]) == 0
    exported = json.loads(Path("inference/parity.json").read_text())
    served = json.loads(Path("served/serving_server/parity.json").read_text())
    assert [report["step"] for report in exported + served] == [
        "dynamic to static",
        "static to serving",
        "padding",
    ]
    assert all(report["passed"] and report["max_abs_diff"] <= 1e-5 for report in exported + served)
    assert len({tuple(shape) for shape in exported[0]["batches"]}) >= 4


def test_a_result_that_is_up_to_date_is_not_made_again(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("own_models.py").write_text(
        MODELS.replace("super().__init__()", "super().__init__(); paddle.seed(1)")
    )
    assert export("Sentiment") == 0
    assert main(["serving", "inference", "served"]) == 0
    before = Path("inference").stat().st_ino, Path("served").stat().st_ino
    capsys.readouterr()
    assert export("Sentiment") == 0
    assert main(["serving", "inference", "served"]) == 0
    assert (Path("inference").stat().st_ino, Path("served").stat().st_ino) == before
    assert capsys.readouterr().out.count("is up to date") == 2
    Path("served/serving_server/serving_server_conf.prototxt").unlink()
    assert main(["serving", "inference", "served"]) == 0
    assert load_serving_model("served").fetches


def test_a_perturbed_model_fails_parity_and_leaves_the_old_result(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("Perturbed") == 1
    assert not Path("inference").exists()
    assert export("Sentiment") == 0
    before = snapshot(project / "inference")
    capsys.readouterr()
    assert export("Perturbed") == 1
    assert "is off by 0.01, over the tolerance of 0.0001" in capsys.readouterr().err
    assert snapshot(project / "inference") == before


def test_padding_that_changes_answers_is_refused(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("IgnoresMask") == 0
    assert main(["serving", "inference", "served", "--padding", PADDING]) == 1
    assert "padding: output" in capsys.readouterr().err
    assert sorted(path.name for path in project.iterdir() if path.name != "__pycache__") == [
        "inference",
        "own_models.py",
    ]


@pytest.mark.parametrize("given", ["bad,good", "a,b,c,d", "labels.txt"])
def test_labels_that_are_not_as_many_as_the_classes_are_refused(
    project: Path, capsys: pytest.CaptureFixture[str], given: str
) -> None:
    assert export("Sentiment") == 0
    (project / "labels.txt").write_text("bad\ngood\n", "utf-8")
    assert main(["serving", "inference", "served", "--fetch-alias", "logits", "--labels", given]) == 2
    count = 4 if given == "a,b,c,d" else 2
    told = f"--labels has {count} names, and the model has 3 classes: name each class once."
    assert told in capsys.readouterr().err
    assert not (project / "served").exists()


def test_a_dry_run_writes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert export("Sentiment") == 0
    before = snapshot(project)
    assert export("Tagger", "--dry-run") == 0
    assert main(["serving", "inference", "served:two:", "--dry-run"]) == 0
    assert "to served:two:; nothing was written" in capsys.readouterr().out, "no word of it is an emoji"
    assert main(["demo", "--out", "demo", "--dry-run"]) == 0
    assert snapshot(project) == before


def test_an_interrupt_leaves_no_half_directory(project: Path) -> None:
    before = {path.name for path in project.iterdir()}
    assert export("Interrupted") == 130
    assert {path.name for path in project.iterdir()} - {"__pycache__"} == before


def test_a_program_of_paddle_2_becomes_a_serving_model(project: Path) -> None:
    code = (
        "import paddle; paddle.enable_static(); x = paddle.static.data('x', [-1, 4], 'float32');"
        "y = paddle.static.nn.fc(x, 3); exe = paddle.static.Executor(paddle.CPUPlace());"
        "exe.run(paddle.static.default_startup_program());"
        "paddle.static.save_inference_model('old/model', [x], [y], exe)"
    )
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"FLAGS_enable_pir_api": "0"}, check=True)
    assert Path("old/model.pdmodel").is_file()
    assert main(["serving", "old", "served", "--fetch-alias", "scores"]) == 0
    model = load_serving_model("served")
    assert [(v.name, v.alias, v.dtype, v.shape) for v in (*model.feeds, *model.fetches)] == [
        ("x", "x", "float32", (-1, 4)),
        ("fc_0.tmp_1", "scores", "float32", (-1, 3)),
    ]
