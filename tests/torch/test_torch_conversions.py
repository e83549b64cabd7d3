"""Model files of PyTorch become ONNX models, or serving models for PyTorch, with the same answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from pipeline.engines import create_predictor
from pipeline.models.serving_model import ServingModel, load_serving_model
from pipeline.models.variants import ways_to_run
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess
from tests.torch import torch_files

ROWS = {"x": {0: torch.export.Dim("rows", min=1, max=64)}}
ROW_SPEC = ("--input-spec", "x:float32[-1,4]")
NET = """
import torch
from tests.torch import torch_files

Words, Fourier = torch_files.Words, torch_files.Fourier
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder; conversions run in this environment, which has PyTorch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    return tmp_path


def converted(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Convert to the folder `served`; return the lines for the user."""
    capsys.readouterr()
    assert main([*arguments]) == 0
    printed = capsys.readouterr()
    return " ".join((printed.err + printed.out).split())


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The sentence on stderr of a command that can't be done and has written nothing."""
    capsys.readouterr()
    assert main([*arguments]) == 2
    assert not Path("served").exists()
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def answer(model: ServingModel, *arrays: np.ndarray) -> np.ndarray:
    feeds = {feed.alias: array for feed, array in zip(model.feeds, arrays, strict=True)}
    (output,) = create_predictor(model, local_conf()).run(feeds).values()
    return np.asarray(output)


def route(folder: str) -> list[str]:
    steps: list[str] = json.loads(Path(folder, "convert.json").read_text("utf-8"))["route"]
    return steps


def test_torchscript_becomes_onnx_with_its_names_and_the_tokenizer_beside_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("source").mkdir()
    ids = torch.tensor([[3, 7, 9], [4, 0, 0]])
    mask = (ids > 0).long()
    torch_files.traced(torch_files.Words(), (ids, mask), Path("source/model.pt"))
    Path("source/vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n", "utf-8")
    config = {"architectures": ["X"], "id2label": {"0": "a", "1": "b", "2": "c"}}
    Path("source/config.json").write_text(json.dumps(config), "utf-8")
    spec = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
    converted(capsys, "all", "source/model.pt", "served", "--input-spec", spec)
    assert route("served") == ["PyTorch to ONNX", "serving model"]
    model = load_serving_model("served")
    assert (model.engine, model.labels) == ("onnxruntime", ("a", "b", "c"))
    assert [feed.alias for feed in model.feeds] == ["input_ids", "attention_mask"]
    assert [(v.alias, v.shape) for v in model.fetches] == [("logits", (-1, 3))]
    assert model.padding is not None and (model.directory / "vocab.txt").is_file()
    with torch.no_grad():
        expected = torch_files.Words()(ids, mask)["logits"].numpy()
    np.testing.assert_allclose(answer(model, ids.numpy(), mask.numpy()), expected, atol=1e-5)
    forms = {way.engine: way.model for way in ways_to_run("served") if not way.refusal}  # `auto` times these
    pytorch = forms["pytorch"]
    assert pytorch is not None and forms.keys() >= {"onnxruntime", "pytorch"}
    np.testing.assert_allclose(answer(pytorch, ids.numpy(), mask.numpy()), expected, atol=1e-5)


def test_a_program_of_torch_export_becomes_onnx(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch_files.Flat()
    torch_files.exported(module, (torch.ones(2, 4),), Path("model.pt2"), dynamic_shapes=ROWS)
    converted(capsys, "all", "model.pt2", "served")
    model = load_serving_model("served")
    assert model.engine == "onnxruntime"
    rows = np.random.default_rng(3).random((5, 4), np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(answer(model, rows), expected, atol=1e-5)


@pytest.mark.parametrize("suffix", ["pt", "pt2"])
def test_a_file_with_an_operator_that_onnx_lacks_is_served_by_pytorch_and_the_reason_is_said(
    suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file, example = Path(f"model.{suffix}"), (torch.ones(2, 8),)
    if suffix == "pt":
        torch_files.traced(torch_files.Fourier(), example, file)
    else:
        torch_files.exported(torch_files.Fourier(), example, file, dynamic_shapes=ROWS)
    spec = ["--input-spec", "x:float32[-1,8]"] if suffix == "pt" else []
    said = converted(capsys, "all", file.name, "served", *spec)
    assert "served holds the serving model of" in said and "for PyTorch; it is no ONNX model" in said
    assert said.count("'aten::fft_fft' to ONNX opset version 16 is not supported") == 2
    model = load_serving_model("served")
    reports = json.loads((model.directory / "parity.json").read_text("utf-8"))
    assert model.engine == "pytorch" and reports and all(report["passed"] for report in reports)
    rows = np.random.default_rng(3).random((5, 8), np.float32)
    np.testing.assert_allclose(answer(model, rows), np.fft.fft(rows).real, atol=1e-5)
    assert main(["check", "served"]) == 0


def test_torchscript_of_a_factory_is_served_over_http(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "own_net.py").write_text(NET, "utf-8")
    spec = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
    said = converted(
        capsys, "torch", "own_net:Words", "exported", "--to", "torchscript", "--input-spec", spec
    )
    assert "convert serving exported models/mine --with-notes" in said
    said = converted(capsys, "serving", "exported", "served", "--with-notes")
    assert "new myservice --model served" in said
    assert main_of_paddlewheel("new", "myservice", "--model", "served") == 0
    conf = {"model_config": str(work / "served"), "thread_num": 1}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        given = service.predict({"input_ids": "[[3, 7, 9]]", "attention_mask": "[[1, 1, 1]]"})
    ids = torch.tensor([[3, 7, 9]])
    with torch.no_grad():
        expected = torch_files.Words()(ids, torch.ones_like(ids))["logits"].numpy()
    np.testing.assert_allclose(json.loads(given["logits"]), expected, atol=1e-5)


def main_of_paddlewheel(*arguments: str) -> int:
    from pipeline.__main__ import main as paddlewheel

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["paddlewheel", *arguments])
        try:
            return int(paddlewheel() or 0)
        except SystemExit as exc:
            return int(exc.code or 0)


def test_a_file_of_a_triton_repository_has_its_description_in_config_pbtxt(
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = Path("repository/zero_shot/1/model.pt")
    original = torch_files.traced_on_a_gpu(file)
    tensors = " ".join(
        f'input {{ name: "input__{n}" data_type: TYPE_INT32 dims: [ 1, 256 ] }}' for n in (0, 1)
    )
    output = 'output { name: "output__0" data_type: TYPE_FP32 dims: [ -1 ] }'
    (file.parents[1] / "config.pbtxt").write_text(f'backend: "pytorch" {tensors} {output}', "utf-8")
    said = converted(capsys, "all", str(file), "served", "--engine", "pytorch")
    assert "names a GPU" not in said
    ids, mask = torch_files.encoder_inputs()
    with torch.no_grad():
        expected = original.eval()(ids, mask).numpy()
    model = load_serving_model("served")
    np.testing.assert_allclose(answer(model, ids.numpy(), mask.numpy()), expected, atol=1e-5)


def test_files_that_are_no_torchscript_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch_files.Row().state_dict(), "weights.pt")
    told = refused(capsys, "all", "weights.pt", "served", *ROW_SPEC)
    assert told.startswith(
        "weights.pt holds weights or a module as a pickle of torch.save, which is never read"
    )
    assert told.endswith("or name module:factory, a function that builds the model.")
    Path("text.pth").write_text("weights", "utf-8")
    assert "text.pth can't be read" in refused(capsys, "all", "text.pth", "served", *ROW_SPEC)


def test_a_missing_operator_and_missing_inputs_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    torch_files.scripted(torch_files.Row(), Path("model.pt"))
    told = refused(capsys, "all", "model.pt", "served")
    assert "declares no dtypes and shapes; give --input-spec for the inputs of forward(x)" in told
    told = refused(capsys, "all", "model.pt", "served", "--input-spec", "x:float32[-1,5]")
    assert "can't run 'x:float32[-1,5]'" in told and told.endswith("or correct --input-spec.")
    told = refused(capsys, "torch", "model.pt", "served", "--to", "paddle", *ROW_SPEC)
    assert told.startswith("model.pt can become ONNX or TorchScript here; `paddlewheel convert all")
    torch_files.edited(Path("model.pt"), "torch.linear(", "ops.torchvision.nms(")
    told = refused(capsys, "all", "model.pt", "served", *ROW_SPEC)
    assert "model.pt needs the operator torchvision::nms" in told and "pip install torchvision" in told
