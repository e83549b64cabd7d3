"""`paddlewheel convert precision`: the demo in fp16 and int8, held against fp32 and served."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from convert.cli import main
from convert.demo.headlines import read_headlines, split_headlines
from convert.programs.inference_program import read_program, serving_folder
from convert.programs.runners import serving_runner
from convert.proof.sample_files import text_rows
from convert.proof.target import create_model_target
from convert.steps.conversion_environment import CONVERT_PYTHON
from pipeline.models.serving_model import load_serving_model
from tests.support import onnx_models
from tests.support.service_process import ServiceProcess

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "models" / "demo"
SERVED = DEMO / "serving_server"

CONVOLUTION = """
from paddle import nn


def create():
    return nn.Sequential(
        nn.Conv2D(3, 32, 3), nn.BatchNorm2D(32), nn.ReLU(), nn.Conv2D(32, 4, 14), nn.Flatten()
    )
"""


@pytest.fixture(autouse=True)
def environment_of_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Headlines that the demo was trained on, and ones held out, in files of a line each."""
    folder = tmp_path_factory.mktemp("texts")
    split = split_headlines(read_headlines())
    for name, headlines in (("train", split.train[:128]), ("held_out", split.held_out[:96])):
        (folder / name).write_text("".join(f"{headline.text}\n" for headline in headlines), "utf-8")
    return {name: folder / name for name in ("train", "held_out")}


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, texts: dict[str, Path]) -> Path:
    out = tmp_path_factory.mktemp("calibrated") / "int8"
    code = precision(
        DEMO, out, "int8-calibrated", "--calibration", texts["train"], "--inputs", texts["held_out"]
    )
    assert code == 0
    return out


def precision(source: object, out: object, to: str, *options: object) -> int:
    return main(["precision", str(source), str(out), "--to", to, *map(str, options)])


def reports(out: Path) -> dict[str, dict[str, Any]]:
    stored = json.loads((out / "serving_server/parity.json").read_text("utf-8"))
    return {report["step"]: report for report in stored}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def weights(folder: Path) -> int:
    """Bytes of the files that a model consists of."""
    return sum(path.stat().st_size for path in read_program(serving_folder(folder) or folder).files)


def test_the_calibrated_demo_is_served_and_names_the_classes_of_fp32(
    calibrated: Path, texts: dict[str, Path]
) -> None:
    model = load_serving_model(SERVED)
    fp32 = serving_runner(SERVED)
    rows = text_rows(texts["held_out"], create_model_target(model, read_program(model.directory)))
    expected = [model.labels[int(fp32(row)[0].argmax())] for row in rows]
    config = yaml.safe_load((ROOT / "config.yml").read_text("utf-8"))
    config["op"]["bert"] |= {"concurrency": 1, "local_service_conf": {"model_config": str(calibrated)}}
    arguments = ["--config", "{config}"]
    with ServiceProcess(
        ROOT / "web_service.py", config, name="bert", arguments=arguments, folder=ROOT
    ) as service:
        headlines = texts["held_out"].read_text("utf-8").splitlines()
        answer = service.predict({str(number): text for number, text in enumerate(headlines)})
    listed = re.match(r"array\((\[.*?\])", answer["label"], re.DOTALL)
    assert listed is not None
    labels = ast.literal_eval(listed[1])
    agreeing = sum(map(str.__eq__, labels, expected))
    assert len(labels) == len(expected) == 96
    assert agreeing >= 94


def test_the_calibrated_demo_keeps_its_description_and_is_a_quarter_of_the_size(calibrated: Path) -> None:
    fp32, int8 = load_serving_model(SERVED), load_serving_model(calibrated)
    assert int8.format == "onnx"
    assert (int8.feeds, int8.labels, int8.padding) == (fp32.feeds, fp32.labels, fp32.padding)
    assert int8.additions["local_service_conf"] == {"ir_optim": True}
    assert (calibrated / "serving_server/vocab.txt").read_bytes() == (SERVED / "vocab.txt").read_bytes()
    assert weights(calibrated) < 0.3 * weights(SERVED)
    stored = reports(calibrated)
    assert list(stored) == ["Paddle to ONNX", "fp32 to int8-calibrated", "padding"]
    assert stored["fp32 to int8-calibrated"]["outputs"][0]["top1_agreement"] >= 0.97
    assert stored["fp32 to int8-calibrated"]["max_abs_diff"] > 0
    assert stored["padding"]["max_abs_diff"] < 1e-4  # scales that are fixed don't depend on the batch


def test_a_check_holds_a_model_to_the_bounds_it_was_made_with(calibrated: Path) -> None:
    assert main(["check", str(calibrated)]) == 0
    assert main(["check", str(calibrated), "--tolerance", "1e-3"]) == 1
    assert load_serving_model(calibrated).failures
    assert main(["check", str(calibrated)]) == 0
    assert not load_serving_model(calibrated).failures


@pytest.mark.parametrize(("to", "share"), [("fp16", 0.51), ("int8-dynamic", 0.3)])
def test_the_demo_in_another_precision_is_smaller_and_agrees(
    tmp_path: Path, texts: dict[str, Path], to: str, share: float, capsys: pytest.CaptureFixture[str]
) -> None:
    assert precision(DEMO, tmp_path / "out", to, "--inputs", texts["held_out"]) == 0
    assert weights(tmp_path / "out") < share * weights(SERVED)
    told = capsys.readouterr().out
    assert "ms a run" in told and "top-1" in told and f"holds the {to} model, for onnxruntime" in told
    (output,) = reports(tmp_path / "out")[f"fp32 to {to}"]["outputs"]
    assert output["max_abs_diff"] > 0 and output["top1_agreement"] >= 0.97
    before = content(tmp_path / "out")
    assert precision(DEMO, tmp_path / "out", to, "--inputs", texts["held_out"]) == 0
    assert "up to date" in capsys.readouterr().out
    assert precision(DEMO, tmp_path / "other", to, "--dry-run") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert content(tmp_path / "out") == before


@pytest.mark.parametrize("name", ["fixed", "stateful"])
def test_a_model_whose_feeds_do_not_all_begin_with_the_batch_keeps_their_shapes(
    tmp_path: Path, name: str
) -> None:
    source = onnx_models.serving(tmp_path, name, padded=False)
    assert precision(source, tmp_path / "out", "fp16") == 0
    assert load_serving_model(tmp_path / "out").feeds == load_serving_model(source).feeds


def test_over_the_tolerance_nothing_is_overwritten(
    tmp_path: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    source = onnx_models.serving(tmp_path)
    assert precision(source, tmp_path / "out", "int8-dynamic") == 0
    before = content(tmp_path)
    assert precision(source, tmp_path / "out", "int8-dynamic", "--tolerance", "1e-6") == 1
    told = capsys.readouterr()
    assert "over the tolerance of 1e-06 of its largest value" in told.err
    assert "nothing was written" in told.err
    assert content(tmp_path) == before


def test_a_calibration_that_is_not_representative_is_told_by_its_top_1(
    tmp_path: Path, texts: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    one = np.zeros((1, 1), np.int64)
    np.savez(tmp_path / "zeros.npz", input_ids=one, token_type_ids=one, attention_mask=one + 1)
    given = ("--calibration", tmp_path / "zeros.npz", "--inputs", texts["held_out"], "--tolerance", 100)
    assert precision(DEMO, tmp_path / "out", "int8-calibrated", *given) == 1
    assert "the same top-1 in" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_random_inputs_calibrate_an_inference_model_without_description(tmp_path: Path) -> None:
    source = onnx_models.bare(tmp_path, "classifier")
    assert precision(source, tmp_path / "out", "int8-calibrated", "--generated-calibration") == 0
    assert [fetch.alias for fetch in load_serving_model(tmp_path / "out").fetches] == [
        fetch.alias for fetch in load_serving_model(source).fetches
    ]


def test_rows_of_a_model_that_pads_nothing_are_run_alone_and_together(tmp_path: Path) -> None:
    source = onnx_models.bare(tmp_path, "classifier")
    assert precision(source, tmp_path / "out", "int8-dynamic") == 0
    assert reports(tmp_path / "out").keys() == {"fp32 to int8-dynamic", "batch"}


def test_a_pdmodel_keeps_the_names_that_its_callers_use(tmp_path: Path) -> None:
    source = ROOT / "tests/fixtures/pdmodel/ernie"
    assert precision(source, tmp_path / "out", "int8-dynamic") == 0
    (fetch,) = read_program(source).fetches
    assert [one.alias for one in load_serving_model(tmp_path / "out").fetches] == [fetch.name]
    assert main(["check", str(tmp_path / "out")]) == 0


def test_a_convolution_is_calibrated_and_has_no_dynamic_int8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_convolution.py").write_text(CONVOLUTION, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    spec = ("--input-spec", "image:float32[-1,3,16,16]")
    assert main(["paddle", "own_convolution:create", *spec, "exported"]) == 0
    assert precision("exported", "int8", "int8-calibrated", "--generated-calibration") == 0
    assert weights(tmp_path / "int8") < 0.5 * weights(tmp_path / "exported")
    assert precision("exported", "dynamic", "int8-dynamic") == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "with weights that could be int8; name int8-calibrated, which takes Conv" in error
    assert not (tmp_path / "dynamic").exists()
