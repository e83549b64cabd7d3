"""`paddlewheel convert torch`: PyTorch models become Paddle, ONNX or TorchScript with the same outputs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from pipeline.engines import create_predictor
from pipeline.models.serving_model import FeedPadding, load_serving_model
from tests.support import models
from tests.support.conversion_steps import run_steps

HERE = Path(__file__).parent
BERT, ERNIE, ALBERT, GPT2 = "BertModel", "ErnieForSequenceClassification", "AlbertModel", "GPT2Model"
NLI = ("contradiction", "neutral", "entailment")

MODULES = '''
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        scores = self.linear(x)
        return {"scores": scores, "best": scores.argmax(-1)}


class Fourier(Net):
    """Has an operator that ONNX can't have."""

    def forward(self, x):
        return torch.fft.fft(self.linear(x)).real


def number():
    return 1
'''


def step(name: str, **arguments: Any) -> Any:
    """A function of torch_models.py in the conversion environment."""
    return run_isolated(f"torch_models:{name}", arguments, converter=name, needs=("torch", "transformers"))


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Hugging Face directories."""
    folder = tmp_path_factory.mktemp("sources")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        saved = {
            BERT: {"family": "Bert", "head": "Model"},
            ERNIE: {"family": "Ernie", "head": "ForSequenceClassification", "safe": False},
            ALBERT: {"family": "Albert", "head": "Model"},
            GPT2: {"family": "GPT2", "head": "Model"},
        }
        named = {name: {"folder": str(folder / name), **model} for name, model in saved.items()}
        run_steps(*(("torch_models:save", arguments) for arguments in named.values()))
    config = folder / ERNIE / "config.json"
    named = {"id2label": dict(enumerate(NLI)), "label2id": {name: i for i, name in enumerate(NLI)}}
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **named}), "utf-8")
    (folder / ERNIE / "vocab.txt").write_text("[PAD]\n[UNK]\n", "utf-8")
    return folder


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module `own_torch`."""
    (tmp_path / "own_torch.py").write_text(MODULES, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence on stderr of a command that can't be done and has written nothing."""
    before = sorted(path for path in Path().iterdir() if path.name != "__pycache__")
    capsys.readouterr()
    assert main(["torch", *arguments]) == 2
    assert sorted(path for path in Path().iterdir() if path.name != "__pycache__") == before
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def text_feeds() -> dict[str, Any]:
    """Two texts of ids, the second padded."""
    ids = np.random.default_rng(3).integers(1, 60, (2, 9))
    mask = np.ones_like(ids)
    ids[1, 6:] = mask[1, 6:] = 0
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": (ids > 30).astype(np.int64)}


def pytorch_answers(source: Path, feeds: dict[str, Any]) -> list[Any]:
    return [
        np.array(output, np.float32)
        for output in step("answers", source=str(source), feeds={n: a.tolist() for n, a in feeds.items()})
    ]


def test_bert_roberta_xlm_r_and_ernie_agree_on_all_three_ways(work: Path) -> None:
    found = step("differences", folder=str(work))
    assert len(found) == 12
    for name, differences in found.items():
        assert len(differences) == 3 and max(differences) < 2e-5, name


def test_a_hugging_face_directory_is_served_with_paddle_as_pytorch_answers(sources: Path) -> None:
    assert main(["torch", str(sources / ERNIE), "exported"]) == 0
    assert main(["serving", "exported", "served", "--with-notes"]) == 0
    feeds = text_feeds()
    served = create_predictor(load_serving_model(Path("served")), models.local_conf()).run(feeds)
    (expected,) = pytorch_answers(sources / ERNIE, feeds)
    np.testing.assert_allclose(served["logits"], expected, rtol=0, atol=1e-4)


def test_labels_task_tokenizer_and_proven_padding_go_along_and_the_entailment_of_an_nli_model_is_named(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["torch", str(sources / ERNIE), "exported", "--to", "onnx"]) == 0
    assert main(["serving", "exported", "served", "--with-notes"]) == 0
    assert "class 2 (entailment) is entailment" in " ".join(capsys.readouterr().out.split())
    model = load_serving_model(Path("served"))
    assert model.labels == NLI and (model.directory / "vocab.txt").is_file()
    told = {key: model.additions[key] for key in ("task", "architecture", "entailment")}
    assert told == {"task": "sequence-classification", "architecture": ERNIE, "entailment": 2}
    assert model.padding is not None
    assert model.padding.feeds == {feed.alias: FeedPadding(1, 0) for feed in model.feeds}
    reports = json.loads((model.directory / "parity.json").read_text("utf-8"))
    assert [(report["step"], report["entailment"]) for report in reports] == [
        ("static to serving", 2),
        ("padding", None),
    ]


def test_a_module_that_returns_no_model_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "own_torch:number", "exported", "--input-spec", "x:float32[-1,4]")
    assert told == "own_torch:number returned a int, not a torch.nn.Module."
    told = refused(capsys, "own_torch:nothing", "exported")
    assert told == "module 'own_torch' has no function or class 'nothing' to call."
    told = refused(capsys, "no_torch:Net", "exported")
    assert told.startswith("there is no module 'no_torch' (no_torch:Net); run from the folder")
    told = refused(capsys, "own_torch:Net", "exported")
    assert "a Net doesn't tell its inputs; give --input-spec" in told


def test_inputs_that_the_model_does_not_take_are_told(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = "input_ids:int64[-1,-1];words:int64[-1,-1]"
    told = refused(capsys, str(sources / BERT), "exported", "--input-spec", spec)
    assert "'words'" in told and "correct --input-spec" in told
    told = refused(capsys, "own_torch:Net", "exported", "--input-spec", "x:int64[-1,4]")
    assert "can't run 'x:int64[-1,4]'" in told and told.endswith("correct --input-spec.")
    assert "Long and Float" in told


def test_directories_that_are_not_whole_are_told(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert refused(capsys, "nowhere", "exported").startswith("nowhere is not a folder; name a Hugging Face")
    Path("empty").mkdir()
    assert refused(capsys, "empty", "exported").startswith("empty has no config.json; name the folder")
    shutil.copytree(sources / BERT, "bert")
    weights = Path("bert/model.safetensors")
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-40])
    told = refused(capsys, "bert", "exported")
    assert told == (
        f"{weights} has {len(whole) - 40} bytes where its header tells of {len(whole)}; fetch it again."
    )
    weights.write_text("version https://git-lfs.github.com/spec/v1\n", "utf-8")
    assert "is a Git LFS pointer, not weights; run `git lfs pull` there." in refused(
        capsys, "bert", "exported"
    )
    weights.unlink()
    assert refused(capsys, "bert", "exported").startswith(
        "bert has no weights (model.safetensors or pytorch_"
    )
    Path("bert/config.json").write_text('{"model_type": ', "utf-8")
    assert "bert/config.json can't be read as JSON" in refused(capsys, "bert", "exported")


def test_a_config_of_another_model_is_told(sources: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sources / BERT, "bert")
    config = Path("bert/config.json")
    fields = json.loads(config.read_text("utf-8"))
    config.write_text(json.dumps({**fields, "hidden_size": 64}), "utf-8")
    told = refused(capsys, "bert", "exported")
    assert "bert: its weights can't be loaded as BertModel" in told and "belong to its config.json?" in told
    sizes = r"shape torch\.Size\(\[.*32\]\) from checkpoint, .* current model is torch\.Size\(\[.*64\]\)"
    assert re.search(sizes, told)
    config.write_text(json.dumps({**fields, "model_type": "unheard-of"}), "utf-8")
    told = refused(capsys, "bert", "exported")
    assert "has no model_type 'unheard-of'; write a function that builds the model" in told


def test_the_report_and_the_outputs_names_are_beside_the_result(sources: Path) -> None:
    assert main(["torch", str(sources / BERT), "exported", "--to", "paddle"]) == 0
    reports = json.loads(Path("exported/parity.json").read_text("utf-8"))
    assert [report["step"] for report in reports] == ["PyTorch to Paddle", "dynamic to static"]
    assert all(report["passed"] and [5, 33] in report["batches"] for report in reports)
    stamp = json.loads(Path("exported/convert.json").read_text("utf-8"))
    assert (stamp["to"], stamp["outputs"]) == ("paddle", ["last_hidden_state", "pooler_output"])


def test_a_model_without_twin_becomes_onnx_and_that_is_said(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["torch", str(sources / ALBERT), "exported"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "Paddle: AlbertModel has no twin in PaddleNLP" in said and "Trying ONNX." in said
    assert main(["serving", "exported", "served"]) == 0
    feeds = text_feeds()
    served = create_predictor(load_serving_model(Path("served")), models.local_conf()).run(feeds)
    for one, other in zip(served.values(), pytorch_answers(sources / ALBERT, feeds), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


def test_a_decoder_whose_masks_torch_maps_over_rows_is_served_as_pytorch_answers(sources: Path) -> None:
    assert main(["all", str(sources / GPT2), "served"]) == 0
    ids = np.random.default_rng(3).integers(1, 60, (2, 11))
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    served = create_predictor(load_serving_model(Path("served")), models.local_conf()).run(feeds)
    (expected,) = pytorch_answers(sources / GPT2, feeds)
    np.testing.assert_allclose(served["last_hidden_state"], expected, rtol=0, atol=1e-4)


def test_a_model_without_twin_is_promised_none_and_each_route_has_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["all", "own_torch:Fourier", "served", "--input-spec", "x:float32[-1,4]"]) == 0
    printed = capsys.readouterr()
    assert "it is no ONNX model: PyTorch to ONNX failed" in printed.out
    lines = printed.err.splitlines()
    assert [line for line in lines if "Route:" in line or "Trying" in line] == [
        "own_torch:Fourier is a PyTorch model. Route: PyTorch to ONNX, then ONNX to Paddle, then serving "
        "model for Paddle Inference (its ONNX form may become a Paddle program).",
        "Trying PyTorch to TorchScript, then serving model for PyTorch (PyTorch runs what ONNX has no "
        "operator for).",
    ]
    model = load_serving_model(Path("served"))
    assert model.engine == "pytorch" and not model.failures


def test_the_table_of_a_torchscript_model_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    spec = ("--input-spec", "x:float32[-1,4]")
    assert main(["torch", "own_torch:Net", "exported", "--to", "torchscript", *spec]) == 0
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.rstrip().endswith("yes")]
    assert [row.split()[0] for row in rows] == ["scores", "best"]
    assert "PyTorch to TorchScript" in [line.strip() for line in out.splitlines()]
    assert "convert serving exported models/mine --with-notes" in out


def test_an_operator_without_onnx_form_is_named_and_torchscript_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["torch", "own_torch:Fourier", "exported", "--input-spec", "x:float32[-1,4]"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "'aten::fft_fft' to ONNX opset version 16 is not supported). Trying TorchScript." in said
    made = {"convert.json", "model.pt", "model_notes.json", "parity.json"}
    assert {path.name for path in Path("exported").iterdir()} == made


def test_one_route_alone_names_the_others_when_it_fails(capsys: pytest.CaptureFixture[str]) -> None:
    spec = ("--input-spec", "x:float32[-1,4]")
    told = refused(capsys, "own_torch:Fourier", "exported", "--to", "onnx", *spec)
    assert "aten::fft_fft" in told and told.endswith("; --to paddle or --to torchscript may go.")


def test_a_result_that_is_up_to_date_is_not_made_again(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["torch", "own_torch:Net", "exported", "--to", "onnx", "--input-spec", "x:float32[-1,4]"]
    assert main([*command, "--dry-run"]) == 0
    assert not Path("exported").exists()
    assert main(command) == 0
    made = Path("exported").stat().st_ino
    assert main(command) == 0
    assert "exported is up to date." in capsys.readouterr().out
    assert Path("exported").stat().st_ino == made
    Path("own_torch.py").write_text(MODULES.replace("manual_seed(0)", "manual_seed(1)"), "utf-8")
    assert main(command) == 0
    assert Path("exported").stat().st_ino != made


def test_outputs_over_the_tolerance_fail_and_leave_the_old_result(
    sources: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["torch", str(sources / BERT), "exported", "--to", "onnx"]
    assert main(command) == 0
    made = Path("exported").stat().st_ino
    assert main([*command, "--tolerance", "1e-12"]) == 1
    told = capsys.readouterr().err
    assert "over the tolerance of 1e-12 " in told and "; nothing was written." in told
    assert Path("exported").stat().st_ino == made


def test_an_environment_without_pytorch_is_told_with_the_remedy(
    sources: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    told = refused(capsys, str(sources / BERT), "exported")
    assert told.startswith(f"{sys.executable} lacks torch, transformers") and "TORCH_INDEX" in told
