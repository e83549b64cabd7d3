"""The demo's weights, which come with the project, are those that its training makes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from convert.cli import main
from pipeline.config.op_section import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.models.serving_model import SAMPLE_FILE, load_serving_model
from tests.support.service_process import ROOT

DEMO = ROOT / "models" / "demo"
TOLERANCE = 0.2  # of logits up to 5: with one thread and another library of kernels they move by 0.0002


def test_training_again_makes_the_weights_that_are_kept(tmp_path: Path) -> None:
    again = tmp_path / "again"
    assert main(["demo", "--train", str(tmp_path / "weights.npz"), "--out", str(again)]) == 0
    kept, trained = headline_logits(DEMO), headline_logits(again)
    assert kept.shape == (279, 15)
    assert np.abs(kept - trained).max() < TOLERANCE
    assert (kept.argmax(axis=1) == trained.argmax(axis=1)).mean() > 0.97


def test_weights_that_are_damaged_are_told_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    damaged = tmp_path / "weights.npz"
    damaged.write_bytes(b"PK\x03\x04 cut off")
    monkeypatch.setattr("convert.demo.convert_demo.WEIGHTS_FILE", damaged)
    assert main(["demo", "--out", str(tmp_path / "demo")]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "weights.npz can't be read" in told
    assert (
        "restore it from the repository, or train again with `paddlewheel convert demo --train FILE`" in told
    )


def headline_logits(folder: Path) -> npt.NDArray[np.float32]:
    """Of the held-out headlines, which lie beside the serving model."""
    model = load_serving_model(folder)
    with np.load(model.directory / SAMPLE_FILE) as sample:
        predictor = create_predictor(model, LocalServiceConf(model_dir=str(folder)))
        return np.asarray(predictor.run({name: sample[name] for name in sample.files})["logits"])
