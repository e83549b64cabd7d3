"""`paddlewheel convert all` where no converter is at hand: its routes and fall-backs, what it refuses."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import models, onnx_models, sentiment
from tests.support.embedding_models import WORDS

CLASSIFIER = onnx_models.onnx_file("classifier")
SPEC = ("--input-spec", sentiment.SPEC)

MODULE = (
    sentiment.SENTIMENT
    + """


def number():
    return 3
"""
)


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module `own_whole`; no converter is at hand."""
    (tmp_path / "own_whole.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_whole", raising=False)
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    return tmp_path


def convert(*arguments: object) -> int:
    return main(["all", *map(str, arguments)])


def steps() -> list[str]:
    """The steps of the proofs that stand beside the model."""
    reports = json.loads(Path("out/serving_server/parity.json").read_text("utf-8"))
    assert all(report["passed"] for report in reports)
    return [report["step"] for report in reports]


def said(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    return " ".join(f"{captured.err} {captured.out}".split())


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a command that can't be done and writes nothing."""
    before = sorted(path for path in Path().iterdir() if path.name != "__pycache__")
    capsys.readouterr()
    assert convert(*arguments) == 2
    assert sorted(path for path in Path().iterdir() if path.name != "__pycache__") == before
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_a_layer_of_the_users_own_is_exported_and_its_padding_found_and_proven(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert convert("own_whole:Sentiment", "out", *SPEC, "--labels", "bad,so,good") == 0
    told = said(capsys)
    assert (
        "own_whole:Sentiment is a paddle.nn.Layer. Route: dynamic to static, then serving model for" in told
    )
    assert steps() == ["dynamic to static", "static to serving", "padding"]
    model = load_serving_model("out")
    assert model.labels == ("bad", "so", "good")
    assert model.padding is not None and set(model.padding.feeds) == {"input_ids", "attention_mask"}
    assert convert("own_whole:Sentiment", "nowhere", *SPEC, "--dry-run") == 0
    assert "would go by dynamic to static, then serving model for Paddle Inference; else" in said(capsys)
    assert not Path("nowhere").exists()


def test_a_paddle_program_is_served_as_it_is(model_folder: Path) -> None:
    for file in (models.classifier(model_folder) / "serving_server").glob("inference.*"):
        Path("program").mkdir(exist_ok=True)
        shutil.copy(file, "program")
    assert convert("program", "out", "--fetch-alias", "scores") == 0
    assert steps() == ["static to serving", "padding"]
    assert [fetch.alias for fetch in load_serving_model("out").fetches] == ["scores"]


def test_an_onnx_model_that_can_not_become_a_paddle_program_is_served_as_onnx_and_that_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")  # at which no line of these may break
    assert convert(CLASSIFIER, "out") == 0
    lines = capsys.readouterr().err.splitlines()
    assert (
        f"{CLASSIFIER} is an ONNX model. Route: ONNX to Paddle, then serving model for Paddle Inference (a "
        "Paddle program of it may have the same outputs)."
    ) in lines
    assert len([line for line in lines if f"{sys.executable} lacks x2paddle" in line]) == 1
    assert "Trying serving model for ONNX Runtime (ONNX Runtime runs it as it is)." in lines
    model = load_serving_model("out")
    assert model.format == "onnx" and model.padding is not None
    ids = np.random.default_rng(1).integers(0, 64, (2, 7))
    feeds = {"input_ids": ids, "token_type_ids": ids % 2, "attention_mask": ids * 0 + 1}
    logits = create_predictor(model, models.local_conf()).run(feeds)["logits"]
    own = create_predictor(load_serving_model(onnx_models.FIXTURES / "external"), models.local_conf())
    np.testing.assert_allclose(logits, own.run(feeds)["logits"], atol=1e-5)


def write_export(folder: Path, *modules: str) -> Path:
    """An ONNX export of a sentence encoder, whose settings stand in the folder around `onnx/`."""
    (folder / "onnx").mkdir(parents=True)
    shutil.copy(onnx_models.onnx_file("states"), folder / "onnx" / "model.onnx")
    (folder / "vocab.txt").write_text("\n".join(WORDS), "utf-8")
    kinds = ("Transformer", "Pooling", *modules)
    paths = ["", "1_Pooling", *(f"{number}_{kind}" for number, kind in enumerate(modules, 2))]
    listed = [{"type": f"models.{kind}", "path": path} for kind, path in zip(kinds, paths, strict=True)]
    (folder / "modules.json").write_text(json.dumps(listed), "utf-8")
    (folder / "1_Pooling").mkdir()
    poolings = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, "include_prompt": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(poolings), "utf-8")
    prompts = {"prompts": {"query": "w9 w8 "}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts), "utf-8")
    return folder / "onnx" / "model.onnx"


def test_an_onnx_export_keeps_the_settings_of_its_sentence_encoder(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert convert(write_export(Path("encoder"), "Normalize"), "out", "--engine", "onnxruntime") == 0
    told = said(capsys)
    assert "The vectors of texts are not compared with the source's" in told and "lacks torch" in told
    assert "paddlewheel text out" in told
    model = load_serving_model("out")
    assert model.additions["task"] == "feature-extraction"
    assert model.additions["sentence"] == {
        "pooling": ["cls", "mean"],
        "include_prompt": False,
        "prompts": {"query": "w9 w8 "},
        "default_prompt": "query",
    }
    assert (model.directory / "vocab.txt").is_file()
    assert convert("encoder/onnx/model.onnx", "out", "--engine", "onnxruntime") == 0
    assert "up to date" in said(capsys)
    Path("encoder/1_Pooling/config.json").write_text('{"pooling_mode": "max"}', "utf-8")
    assert convert("encoder/onnx/model.onnx", "out", "--engine", "onnxruntime") == 0
    assert load_serving_model("out").additions["sentence"]["pooling"] == "max"


def test_settings_of_a_sentence_encoder_that_can_not_be_kept_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = write_export(Path("encoder"), "LayerNorm")
    assert "has the module LayerNorm, which no service runs" in refused(capsys, source, "out")
    source = write_export(Path("projected"), "Dense")
    dense = Path("projected/2_Dense")
    assert f"{dense}/config.json is not there" in refused(capsys, source, "out")
    dense.mkdir()
    (dense / "config.json").write_text('{"out_features": 3}', "utf-8")
    (dense / "pytorch_model.bin").write_bytes(b"weights that only PyTorch reads")
    assert "lacks torch, transformers" in refused(capsys, source, "out", "--engine", "onnxruntime")


def test_an_engine_that_is_named_leaves_no_other_route(capsys: pytest.CaptureFixture[str]) -> None:
    assert "lacks x2paddle" in refused(capsys, CLASSIFIER, "out", "--engine", "paddle")
    assert convert(CLASSIFIER, "out", "--engine", "onnxruntime") == 0
    assert "Trying" not in said(capsys)


def test_a_model_that_ignores_its_mask_is_served_without_padding_unless_that_was_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = onnx_models.onnx_file("ignores_mask")
    assert convert(wrong, "out", "--engine", "onnxruntime") == 0
    assert "Padding changes the answer (output 'logits' is off by" in said(capsys)
    assert load_serving_model("out").padding is None
    assert steps() == ["static to serving"]
    padding = ("--padding", "input_ids=0,token_type_ids=0,attention_mask=0")
    assert convert(wrong, "other", "--engine", "onnxruntime", *padding) == 1
    assert not Path("other").exists()


def test_labels_task_and_tokenizer_of_a_configuration_beside_an_onnx_model_go_along() -> None:
    Path("hub").mkdir()
    shutil.copy(CLASSIFIER, "hub/model.onnx")
    labels = {"0": "Entailment", "1": "neutral", "2": "contradiction"}
    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], "id2label": labels}
    Path("hub/config.json").write_text(json.dumps(config), "utf-8")
    Path("hub/tokenizer.json").write_text("{}", "utf-8")
    assert convert("hub", "out", "--engine", "onnxruntime") == 0
    model = load_serving_model("out")
    assert model.labels == tuple(labels.values())
    assert (model.additions["task"], model.additions["entailment"]) == ("sequence-classification", 0)
    assert (model.directory / "tokenizer.json").read_text("utf-8") == "{}"


def test_what_is_up_to_date_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(CLASSIFIER, "model.onnx")
    command = ("model.onnx", "out", "--engine", "onnxruntime")
    assert convert(*command) == 0
    made = Path("out").stat().st_ino
    assert convert(*command) == 0
    assert "out is up to date." in said(capsys) and Path("out").stat().st_ino == made
    shutil.copy(onnx_models.onnx_file("perturbed"), "model.onnx")
    assert convert(*command) == 0
    assert Path("out").stat().st_ino != made
    assert convert(*command, "--labels", "a,b,c") == 0
    assert load_serving_model("out").labels == ("a", "b", "c")


def test_the_result_can_be_checked_against_its_source_where_that_is_a_file() -> None:
    assert convert(CLASSIFIER, "out", "--engine", "onnxruntime") == 0
    assert main(["check", "out"]) == 0
    assert "check" in steps()


def test_what_is_no_model_is_told(capsys: pytest.CaptureFixture[str], model_folder: Path) -> None:
    told = refused(capsys, "no/such", "out")
    assert told.startswith("no/such is not there; name a folder, a .onnx or .pt file,")
    Path("empty").mkdir()
    told = refused(capsys, "empty", "out")
    assert told.startswith("empty holds no model: expected") and "or config.json with model_state" in told
    served = models.classifier(model_folder)
    assert refused(capsys, served, "out") == (
        f"{served} is a serving model already; serve it, or run `paddlewheel convert check {served}`."
    )
    told = refused(capsys, "own_whole:number", "out")
    assert told == "own_whole:number returned a int, neither a paddle.nn.Layer nor a torch.nn.Module."
    Path("w.pdparams").touch()
    assert "w.pdparams holds weights alone; name the folder" in refused(capsys, "w.pdparams", "out")
    told = refused(capsys, CLASSIFIER, "out", "--params", "w.pdparams")
    assert told == f"--params is for a paddle.nn.Layer; {CLASSIFIER} is an ONNX model."


def test_a_pytorch_factory_without_pytorch_is_told_with_the_remedy(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("own_net.py").write_text("import torch\n\n\ndef net():\n    return torch.nn.Linear(2, 2)\n", "utf-8")
    told = refused(capsys, "own_net:net", "out", "--input-spec", "x:float32[-1,2]")
    assert told.startswith(f"{sys.executable} lacks torch, which") and "make convert-env" in told
