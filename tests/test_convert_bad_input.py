"""What `python -m convert` says of files that it can't use, and of inputs that don't fit."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import onnx_models
from convert.cli import main

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
