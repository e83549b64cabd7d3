"""What `paddlewheel convert` says of files that it can't use, and of inputs that don't fit."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from convert.programs.inference_program import read_program
from convert.steps.conversion_environment import CONVERT_PYTHON
from tests.support import models, onnx_models

CLASSIFIER = onnx_models.onnx_file("classifier")
SPEC = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
IDS = np.ones((2, 3), np.int64)

MODULE = """
import paddle


class Sentiment(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.word = paddle.nn.Embedding(50, 16)

    def forward(self, input_ids, attention_mask):
        return (self.word(input_ids) * attention_mask.astype("float32").unsqueeze(-1)).sum(1)


class Linear(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.out = paddle.nn.Linear(4, 3)

    def forward(self, x):
        return self.out(x)
"""


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with the module `own_bad`."""
    (tmp_path / "own_bad.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_bad", raising=False)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one sentence of a command that can't be done and writes nothing."""
    before = sorted(path for path in Path().iterdir() if path.name != "__pycache__")
    capsys.readouterr()
    assert main(list(map(str, arguments))) == 2
    assert sorted(path for path in Path().iterdir() if path.name != "__pycache__") == before
    err = capsys.readouterr().err
    assert "Traceback" not in err
    return err.splitlines()[-1]


def test_inputs_that_forward_does_not_take_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    for spec in ("input_ids:int64[-1,-1]", f"{SPEC};more:int64[-1]"):
        told = refused(capsys, "paddle", "own_bad:Sentiment", "--input-spec", spec, "out")
        assert "but forward() takes input_ids, attention_mask; name one for each, in this order." in told


def test_whole_numbers_where_the_model_takes_others_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "paddle", "own_bad:Linear", "--input-spec", "x:int64[-1,4]", "out")
    assert "x: int64, y: float32" in told and "correct --input-spec or the layer" in told


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (IDS.astype(np.float32), "input_ids is float32[2, 3], but {model} takes int64[-1, -1]; store it so."),
        (IDS[..., None], "input_ids is int64[2, 3, 1], but {model} takes int64[-1, -1]; store it so."),
        (IDS * 1000, "{model} can't run input_ids [2, 3]"),
    ],
)
def test_stored_inputs_of_another_kind_are_told(
    ids: np.ndarray, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez("own.npz", input_ids=ids, token_type_ids=IDS * 0, attention_mask=IDS)
    assert told.format(model=CLASSIFIER) in refused(
        capsys, "check", CLASSIFIER, CLASSIFIER, "--inputs", "own.npz"
    )


def test_numbers_of_32_bits_do_for_64_and_the_other_way_round_where_they_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    np.savez("own.npz", **{name: IDS.astype(np.int32) for name in onnx_models.FEEDS})
    assert main(["check", str(CLASSIFIER), str(CLASSIFIER), "--inputs", "own.npz"]) == 0
    renamed = onnx_models.onnx_file("renamed")  # whose feeds are of int32
    names = ("x0", "x1", "x2")
    np.savez("own.npz", **dict(zip(names, (IDS, IDS * 0, IDS), strict=True)))
    assert main(["check", str(renamed), str(renamed), "--inputs", "own.npz"]) == 0
    np.savez("own.npz", **dict(zip(names, (IDS << 40, IDS * 0, IDS), strict=True)))
    told = refused(capsys, "check", renamed, renamed, "--inputs", "own.npz")
    assert "x0 is int64[2, 3], but" in told and "takes int32" in told


PDMODEL = Path(__file__).parents[1] / "fixtures/pdmodel/bert"


@pytest.fixture
def bad(work: Path) -> Path:
    """A folder with models that are none."""
    folder = work / "bad"
    folder.mkdir()
    whole = CLASSIFIER.read_bytes()
    assert whole.endswith(b"\x10\x11") and b"ReduceSum" in whole  # opset 17
    for name, content in {
        "cut": whole[: len(whole) // 2],
        "text": b"not a model",
        "later": whole[:-1] + bytes([99]),
        "unheard_of": whole.replace(b"ReduceSum", b"ReduceFoo"),
    }.items():
        (folder / f"{name}.onnx").write_bytes(content)
    shutil.copytree(PDMODEL, folder / "cut")
    program = folder / "cut/inference.pdmodel"
    program.write_bytes(program.read_bytes()[:-100])
    shutil.copytree(PDMODEL, folder / "cut_weights")
    weights = folder / "cut_weights/inference.pdiparams"
    weights.write_bytes(weights.read_bytes()[:-100])
    return folder


COMMANDS = {
    "serving": ("serving", "{model}", "out"),
    "onnx": ("onnx", "{model}", "out"),
    "to-onnx": ("to-onnx", "{model}", "out"),
    "precision": ("precision", "{model}", "out", "--to", "int8-dynamic"),
    "shapes": ("shapes", "{model}", "out"),
    "check": ("check", "{model}", "{model}"),
    "all": ("all", "{model}", "out"),
}
BAD = {
    "cut.onnx": "{model} is not an ONNX model (it ends within a field): copy or export the model again.",
    "text.onnx": "{model} is not an ONNX model (it is no protobuf of this kind): copy or export the",
    "cut": "{model}/inference.pdmodel is not a Paddle program (ValueError): copy or export the model again.",
    "cut_weights": "parameters: copy or export the model again.",
    "later.onnx": "{model} is of opset 99, but ONNX Runtime",
    "unheard_of.onnx": "{model} has the operator ReduceFoo, which ONNX Runtime",
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("model", BAD)
def test_a_model_that_is_none_is_told_by_every_command(
    command: str, model: str, bad: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    path = bad / model
    told = refused(capsys, *(part.format(model=path) for part in COMMANDS[command]))
    expected = BAD[model].format(model=path)
    if command == "to-onnx" and model in ("later.onnx", "unheard_of.onnx"):
        expected = f"{path} is an ONNX model"  # which they don't take, whatever its operators
    assert expected in told and told.endswith(".")


@pytest.mark.parametrize("command", ["check", "precision", "shapes"])
def test_inputs_of_other_numbers_or_names_are_told_by_every_command_that_takes_some(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    names = [feed.name for feed in read_program(PDMODEL).feeds]
    arguments = [part.format(model=PDMODEL) for part in COMMANDS[command]]
    np.savez("own.npz", **dict.fromkeys(names, IDS + 0.5))
    told = refused(capsys, *arguments, "--inputs", "own.npz")
    assert "own.npz" in told and names[0] in told and "int64" in told
    np.savez("own.npz", **dict.fromkeys([*names[1:], "words"], IDS))
    told = refused(capsys, *arguments, "--inputs", "own.npz")
    assert "own.npz" in told and names[0] in told


def test_a_model_over_2_gb_is_not_handed_to_a_converter_that_fails_at_it(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a few KB and a hole."""
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    folder = work / "bad"
    shutil.copytree(onnx_models.FIXTURES / "external", folder)
    os.truncate(folder / "classifier.data", 2_200_000_000)
    told = refused(capsys, "onnx", folder, "out", "--no-fallback")
    assert told == (
        f"{folder}/classifier.onnx can't become a Paddle model: it is of 2.2 GB, and x2paddle takes 2 GB at "
        "most."
    )


def test_a_serving_model_in_place_of_a_program_is_told(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = models.classifier(model_folder)
    assert refused(capsys, "serving", served, "out") == (
        f"{served} is a serving model already; serve it, or name {served}/serving_server to make another of "
        "its program."
    )
