"""`convert all --int8`: an int8 form beside a model, and when a service runs it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from convert.precision import int8_variant
from convert.precision.onnx_steps import NEEDS
from convert.steps.conversion_environment import missing_packages
from pipeline.engines import create_predictor
from pipeline.errors import ConfigError
from pipeline.models.digests import hash_files
from pipeline.models.serving_model import merge_model_settings
from pipeline.models.variants import RECORD, find_variants, load_for_engine
from pipeline.tuning.real_rows import MIN_ROWS
from tests.support import onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

needs_converter = pytest.mark.skipif(
    bool(missing_packages(NEEDS)), reason="ONNX's packages are beside ONNX Runtime on Python 3.11 alone"
)
CLASSIFIER = onnx_models.onnx_file("classifier")
PADDING = "input_ids=0,token_type_ids=0,attention_mask=0"
ROWS = MIN_ROWS + 4


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier with an int8 form; only read by the tests."""
    folder = tmp_path_factory.mktemp("int8")
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 12, ROWS)
    mask = (np.arange(12) < lengths[:, None]).astype(np.int64)
    ids = rng.integers(1, 64, (ROWS, 12)) * mask
    np.savez(folder / "rows.npz", input_ids=ids, token_type_ids=np.zeros_like(ids), attention_mask=mask)
    sample = ["--padding", PADDING, "--sample", str(folder / "rows.npz")]
    command = ["all", str(CLASSIFIER), str(folder / "model"), "--engine", "onnxruntime", "--int8", *sample]
    assert main(command) == 0
    return folder / "model"


def form_in(model: Path) -> Path:
    return model / "serving_server" / "variants" / "int8"


def real_rows(model: Path) -> dict[str, np.ndarray]:
    with np.load(model / "serving_server" / "sample.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@needs_converter
def test_the_form_has_its_own_report_and_stands_beside_the_model(converted: Path) -> None:
    (variant,) = find_variants(converted)
    assert (variant.name, variant.precision, variant.passed) == ("int8", "int8", True)
    assert variant.engines == ("onnxruntime", "openvino")
    reports = json.loads((form_in(converted) / "parity.json").read_text("utf-8"))
    assert [report["step"] for report in reports] == ["fp32 to int8", "padding in int8"]
    assert all(report["passed"] for report in reports)
    assert reports[0]["outputs"][0]["max_abs_diff"] > 0
    assert main(["check", str(converted)]) == 0


@needs_converter
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_it_is_run_where_int_8_is_asked_for_and_nowhere_else(converted: Path, engine: str) -> None:
    lower = load_for_engine(converted, engine, "int8")
    assert lower.program == form_in(converted) / "model.onnx"
    for precision in ("fp32", "bf16"):
        assert load_for_engine(converted, engine, precision).program.name == CLASSIFIER.name
    assert load_for_engine(converted, None, "int8").program.name == CLASSIFIER.name
    rows = real_rows(converted)
    conf = local_conf(precision="int8", strict_precision=True)
    given = create_predictor(lower, merge_model_settings(lower, conf)).run(rows)["logits"]
    expected = create_predictor(load_for_engine(converted, engine), local_conf()).run(rows)["logits"]
    np.testing.assert_allclose(given, expected, atol=0.2 * np.abs(expected).max())
    assert not np.allclose(given, expected, atol=1e-6)


@needs_converter
def test_one_that_is_damaged_is_never_run_and_that_is_told(converted: Path, tmp_path: Path) -> None:
    model = shutil.copytree(converted, tmp_path / "model")
    file = form_in(model) / "model.onnx"
    file.write_bytes(file.read_bytes()[:-10])
    told = r"engine: onnxruntime runs no int8 form of .* \(.*model.onnx is damaged"
    with pytest.raises(ConfigError, match=told):
        load_for_engine(model, "onnxruntime", "int8")
    assert load_for_engine(model, "onnxruntime").program.name == CLASSIFIER.name


@needs_converter
def test_a_service_tries_it_with_auto_and_tells_what_became_of_it(converted: Path, tmp_path: Path) -> None:
    model = shutil.copytree(converted, tmp_path / "model")
    conf = {"model_config": str(model), "engine": "onnxruntime", "precision": "auto", "thread_num": 1}
    config = {"op": {"model": {"local_service_conf": conf}}}
    rows = {name: array[:4] for name, array in real_rows(model).items()}
    with ServiceProcess(APPS / "model.py", config) as service:
        line = next(line for line in service.log.splitlines() if "chosen by its times" in line)
        chosen = line.partition("this machine: onnxruntime ")[2].partition(",")[0]
        assert chosen in ("fp32", "int8")  # by speed, where it agrees
        assert "onnxruntime int8: " in line
        assert ("in place of the model's own program" in service.log) is (chosen == "int8")
        asked = {name: json.dumps(array.tolist()) for name, array in rows.items()}
        answer = np.array(json.loads(service.predict(asked)["logits"]))
    expected = create_predictor(load_for_engine(model, "onnxruntime"), local_conf()).run(rows)["logits"]
    np.testing.assert_allclose(answer, expected, atol=0.2 * np.abs(expected).max())


@needs_converter
def test_what_does_not_answer_alike_is_never_chosen(converted: Path, tmp_path: Path) -> None:
    """Whatever its speed: another model is put in the place of the form, with a record of its own."""
    model = shutil.copytree(converted, tmp_path / "model")
    shutil.copy(onnx_models.onnx_file("ignores_mask"), form_in(model) / "model.onnx")
    record = json.loads((form_in(model) / RECORD).read_text("utf-8"))
    record["digests"] = hash_files([form_in(model) / "model.onnx"])
    (form_in(model) / RECORD).write_text(json.dumps(record), "utf-8")
    conf = {"model_config": str(model), "engine": "onnxruntime", "precision": "auto", "thread_num": 1}
    with ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}) as service:
        assert "chosen by its times on this machine: onnxruntime fp32" in service.log
        assert "onnxruntime int8: 'logits' has the same class as in fp32 in" in service.log


def test_without_real_rows_int_8_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["all", str(CLASSIFIER), str(tmp_path / "out"), "--int8"]) == 2
    assert "--int8 finds the ranges of a model in real inputs: name a file" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_where_there_is_none_to_be_had_the_model_is_converted_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise int8_variant.ConversionError("onnxruntime to int8-calibrated crashed; nothing was written")

    monkeypatch.setattr(int8_variant, "quantise", refuse)
    ids = np.ones((2, 3), np.int64)
    np.savez(tmp_path / "rows.npz", **dict.fromkeys(onnx_models.FEEDS, ids))
    options = ["--engine", "onnxruntime", "--int8", "--sample", str(tmp_path / "rows.npz")]
    assert main(["all", str(CLASSIFIER), str(tmp_path / "out"), *options]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "There is no int8 form beside the model: onnxruntime to int8-calibrated crashed." in told
    assert find_variants(tmp_path / "out") == ()
