"""`convert serving --rebatch`: models exported for a fixed number of rows take any, or it is said why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
from convert.steps.isolation import run_isolated
from pipeline.engines import create_predictor
from pipeline.models.serving_model import load_serving_model
from tests.support import models

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def exported(kind: str, rows: int) -> str:
    arguments = {"kind": kind, "rows": rows, "file": "model.onnx"}
    run_isolated(
        "environment_steps:torch_of_fixed_batch",
        arguments,
        converter="the exporter",
        needs=("onnx", "torch", "transformers"),
    )
    return "model.onnx"


@pytest.mark.parametrize(
    ("kind", "rows"), [("cnn", 1), ("cnn", 4), ("vit", 1), ("bert", 1), ("bert", 2), ("lstm", 1)]
)
def test_each_row_answers_as_it_did_in_a_batch_of_the_fixed_size(kind: str, rows: int) -> None:
    file = exported(kind, rows)
    assert main(["serving", file, "served", "--rebatch"]) == 0
    model = load_serving_model("served")
    assert model.feeds[0].shape[0] == model.fetches[0].shape[0] == -1
    original = onnxruntime.InferenceSession(file)
    shape = (5, *original.get_inputs()[0].shape[1:])
    random = np.random.default_rng(3)
    x = random.integers(1, 100, shape) if kind == "bert" else random.standard_normal(shape).astype(np.float32)
    together = create_predictor(model, models.local_conf()).run({"x": x})["y"]
    for at in range(5):
        (alone,) = original.run(["y"], {"x": np.repeat(x[at : at + 1], rows, axis=0)})
        np.testing.assert_allclose(together[at], alone[0], atol=1e-5)


def test_a_model_that_mixes_its_rows_is_refused_with_that_reason(capsys: pytest.CaptureFixture[str]) -> None:
    file = exported("mixing", 1)
    assert main(["serving", file, "served", "--rebatch"]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "can't be made to take any number of rows: its rows answer otherwise together" in told
    assert not Path("served").exists()


def test_a_paddle_program_becomes_an_onnx_model_first(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = models.centred(model_folder) / "serving_server"
    assert main(["serving", str(program), "served", "--rebatch"]) == 2
    assert "--engine onnxruntime --rebatch" in capsys.readouterr().err.replace("\n", " ")
