"""Other forms of a model beside its program: how they are made, listed, run and refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convert.cli import main
from convert.paddle_onnx import to_onnx
from convert.paddle_onnx.to_onnx import add_onnx_variant, can_make_onnx
from convert.result import ConversionOptions
from convert.steps.progress import SilentSteps
from pipeline.engines import create_predictor
from pipeline.engines.base import find_engine
from pipeline.errors import ConfigError, ConversionError
from pipeline.models.serving_model import load_serving_model
from pipeline.models.variants import RECORD, find_variants, load_for_engine, write_record
from tests.engines.test_onnx_predictor import texts
from tests.support import models, onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

ROWS = [[5, 6, 7], [8, 9]]
needs_converter = pytest.mark.skipif(not can_make_onnx(), reason="paddle2onnx is for Python 3.11")


@pytest.fixture(scope="module")
def twin(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The classifier, a Paddle program, with its ONNX form made by the converter; only read by the tests."""
    folder = tmp_path_factory.mktemp("twin") / "model"
    shutil.copytree(models.classifier(model_folder), folder)
    reports = add_onnx_variant(folder, folder, ConversionOptions())
    assert [report.step for report in reports] == ["Paddle to ONNX", "padding in ONNX"]
    return folder


@pytest.fixture
def model(model_folder: Path, tmp_path: Path) -> Path:
    """The classifier, with an ONNX file beside it that is recorded as its form."""
    folder = tmp_path / "model"
    shutil.copytree(models.classifier(model_folder), folder)
    source = load_serving_model(folder)
    place = variant_folder(folder)
    place.mkdir(parents=True)
    shutil.copy(onnx_models.onnx_file("classifier"), place / "model.onnx")
    (place / "parity.json").write_text('[{"step": "Paddle to ONNX", "passed": true}]', "utf-8")
    assert source.params is not None
    write_record(place, [place / "model.onnx"], [source.program, source.params])
    return folder


def test_the_keys_of_a_record_are_those_of_earlier_versions(model: Path) -> None:
    """Models that an earlier version converted are still served."""
    record = json.loads((variant_folder(model) / RECORD).read_text("utf-8"))
    assert record.keys() == {"digests", "made_of"}
    assert len(record["made_of"]) == 2


def variant_folder(model: Path) -> Path:
    return model / "serving_server" / "variants" / "onnx"


# The list of them


def test_a_variant_is_listed_with_the_engines_that_can_run_it(model: Path) -> None:
    (variant,) = find_variants(model)
    assert (variant.name, variant.directory) == ("onnx", variant_folder(model))
    assert (variant.engines, variant.passed, variant.reject_reason) == (("onnxruntime", "openvino"), True, "")
    assert (
        variant.digest
        == json.loads((variant.directory / RECORD).read_text())["digests"]["model.onnx"]["sha256"]
    )
    assert find_variants(model / "serving_server") == (variant,)


def test_a_model_without_others_has_none(model_folder: Path) -> None:
    assert find_variants(models.classifier(model_folder)) == ()


def damaged(model: Path) -> None:
    file = variant_folder(model) / "model.onnx"
    file.write_bytes(file.read_bytes()[:-10])


def failed(model: Path) -> None:
    report = {"step": "Paddle to ONNX", "passed": False, "failure": "Paddle to ONNX: off by 1"}
    (variant_folder(model) / "parity.json").write_text(json.dumps([report]), "utf-8")


def of_other_weights(model: Path) -> None:
    params = model / "serving_server" / "inference.pdiparams"
    params.write_bytes(params.read_bytes()[:-4] + b"abcd")


def emptied(model: Path) -> None:
    (variant_folder(model) / "model.onnx").unlink()


def other_file(model: Path) -> None:
    (variant_folder(model) / "model.onnx").rename(variant_folder(model) / "other.onnx")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (damaged, "model.onnx is damaged, or not the file that was proved"),
        (failed, "Paddle to ONNX: off by 1"),
        (of_other_weights, "it was made of another inference.pdiparams than the model has now"),
        (lambda model: (variant_folder(model) / "parity.json").unlink(), "it has no parity.json"),
        (lambda model: (variant_folder(model) / RECORD).unlink(), "variant.json can't be read"),
        (lambda model: (variant_folder(model) / RECORD).write_text("[]"), "variant.json can't be read"),
        (
            lambda model: (variant_folder(model) / RECORD).write_text('{"digests": 1, "made_of": {}}'),
            "variant.json holds no digests",
        ),
        (other_file, "model.onnx is damaged, or not the file that was proved"),
    ],
    ids=[
        "damaged",
        "failed",
        "other weights",
        "no reports",
        "no record",
        "no object",
        "no digests",
        "other file",
    ],
)
def test_one_that_is_not_what_was_proved_is_never_run(
    model: Path, change: Callable[[Path], object], told: str
) -> None:
    change(model)
    (variant,) = find_variants(model)
    assert not variant.passed
    assert told in variant.reject_reason
    with pytest.raises(ConfigError) as caught:
        load_for_engine(model, "onnxruntime")
    assert caught.value.message.startswith("engine: onnxruntime runs no form of ")
    assert told in caught.value.message
    assert load_for_engine(model, None).engine == "paddle"  # as before


def test_a_folder_without_a_program_is_no_form_of_any_engine(model: Path) -> None:
    emptied(model)
    (variant,) = find_variants(model)
    assert (variant.engines, variant.reject_reason) == ((), "it holds no program that an engine here runs")
    with pytest.raises(ConfigError, match=r"engine: openvino does not run .*inference\.json: remove the key"):
        load_for_engine(model, "openvino")


# Which program an engine is given


def test_the_variant_is_taken_by_the_engine_that_is_named_and_does_not_run_the_program(model: Path) -> None:
    own = load_serving_model(model)
    for engine in ("onnxruntime", "openvino"):
        taken = load_for_engine(model, engine)
        assert (taken.engine, taken.format, taken.variant) == (engine, "onnx", "onnx")
        assert (taken.program, taken.params) == (variant_folder(model) / "model.onnx", None)
        assert (taken.directory, taken.feeds, taken.padding, taken.labels) == (
            own.directory, own.feeds, own.padding, own.labels,
        )  # fmt: skip
        assert find_engine(model, engine).name == engine
    for engine in (None, "paddle"):
        taken = load_for_engine(model, engine)
        assert (taken.engine, taken.program, taken.variant) == ("paddle", own.program, "")
    assert find_engine(model).name == "paddle"


def test_of_a_model_that_it_runs_itself_an_engine_takes_the_models_own_program(tmp_path: Path) -> None:
    folder = onnx_models.serving(tmp_path)
    shutil.copytree(folder / "serving_server", folder / "serving_server" / "variants" / "onnx")
    for engine in ("onnxruntime", "openvino"):
        assert load_for_engine(folder, engine).program == folder / "serving_server" / "classifier.onnx"


# How it is made


@needs_converter
def test_the_form_that_is_made_answers_as_the_program_does(twin: Path) -> None:
    (variant,) = find_variants(twin)
    assert variant.passed
    feeds = texts(ROWS)
    expected = create_predictor(load_serving_model(twin), local_conf()).run(feeds)["logits"]
    for engine in variant.engines:
        predictor = create_predictor(load_for_engine(twin, engine), local_conf())
        np.testing.assert_allclose(predictor.run(feeds)["logits"], expected, atol=1e-5)


def find_program(model_folder: Path, folder: Path) -> Path:
    """The classifier's program alone."""
    target = folder / "program"
    target.mkdir()
    for file in (models.classifier(model_folder) / "serving_server").glob("inference.*"):
        shutil.copy(file, target)
    return target


@needs_converter
def test_all_writes_it_beside_a_paddle_program(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["all", str(find_program(model_folder, tmp_path)), "out"]) == 0
    (variant,) = find_variants("out")
    assert variant.passed
    files = json.loads(Path("out/convert.json").read_text())["files"]
    assert "serving_server/variants/onnx/model.onnx" in files
    assert main(["check", "out"]) == 0
    assert find_variants("out") == (variant,)


@needs_converter
def test_a_sample_of_texts_proves_it_by_the_tokenizer_of_the_source(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    program = find_program(model_folder, tmp_path)
    (program / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\ngood\nbad\n", "utf-8")
    Path("texts.txt").write_text("good\nbad good\nbad bad bad\n", "utf-8")
    assert main(["all", str(program), "out", "--sample", "texts.txt"]) == 0
    (variant,) = find_variants("out")
    assert variant.passed


def test_where_the_converter_is_missing_the_model_is_converted_and_what_it_lacks_is_said(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none(needs: object) -> str:
        raise ConversionError("there is no conversion environment")

    monkeypatch.setattr(to_onnx, "conversion_python", none)
    monkeypatch.setattr(to_onnx, "missing_packages", lambda needs: ["paddle2onnx"])
    program = find_program(model_folder, tmp_path)
    assert main(["all", str(program), str(tmp_path / "out")]) == 0
    assert find_variants(tmp_path / "out") == ()
    told = " ".join(capsys.readouterr().err.split())
    assert "ONNX Runtime and OpenVINO often run a model faster than Paddle" in told
    assert "(paddle2onnx is missing: make convert-env)" in told


class Said(SilentSteps):
    """Keeps what a conversion says."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


def test_a_form_that_the_converter_cant_write_is_left_out_and_that_is_said(
    model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ConversionError(f"{folder}/x: paddle2onnx has no ONNX form of it; serve the model with Paddle.")

    folder = tmp_path / "model"
    shutil.copytree(models.classifier(model_folder), folder)
    monkeypatch.setattr(to_onnx, "can_make_onnx", lambda: True)
    monkeypatch.setattr(to_onnx, "export_onnx", refuse)
    said = Said()
    assert add_onnx_variant(folder, Path("models/mine"), ConversionOptions(steps=said)) == ()
    assert said.lines == [
        "There is no ONNX form beside the model: models/mine/x: paddle2onnx has no ONNX form of it; serve "
        "the model with Paddle."
    ]
    assert not (folder / "serving_server" / "variants").exists()


@needs_converter
def test_a_form_that_answers_otherwise_is_left_out_and_that_is_said(
    twin: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(models.classifier(model_folder), folder)
    params = folder / "serving_server" / "inference.pdiparams"
    params.write_bytes(params.read_bytes()[:-4] + np.float32(9).tobytes())

    def write_that_of_other_weights(program: object, file: Path, *_: object) -> None:
        shutil.copy(variant_folder(twin) / "model.onnx", file)

    monkeypatch.setattr(to_onnx, "export_onnx", write_that_of_other_weights)
    said = Said()
    assert add_onnx_variant(folder, folder, ConversionOptions(steps=said)) == ()
    assert said.lines[0].startswith("There is no ONNX form beside the model: Paddle to ONNX: output 'logits'")
    assert not (folder / "serving_server" / "variants").exists()


# As a service


@needs_converter
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_service_answers_by_the_form_of_the_engine_it_names(twin: Path, engine: str) -> None:
    expected = create_predictor(load_serving_model(twin), local_conf()).run(texts(ROWS))["logits"]
    section = {"local_service_conf": {"model_config": str(twin), "engine": engine}, "concurrency": 2}
    config = {"dag": {"is_thread_op": True, "http_errors": "status"}, "op": {"model": section}}
    with ServiceProcess(APPS / "model.py", config) as service:
        inputs = {name: json.dumps(array.tolist()) for name, array in texts(ROWS).items()}
        np.testing.assert_allclose(json.loads(service.predict(inputs)["logits"]), expected, atol=1e-4)
        assert f"engine: {engine} runs {variant_folder(twin)}/model.onnx in place of" in service.log


def test_a_service_that_chooses_its_engine_tells_of_a_damaged_form_and_runs_the_program(model: Path) -> None:
    damaged(model)
    section = {"local_service_conf": {"model_config": str(model), "engine": "auto"}}
    with ServiceProcess(APPS / "model.py", {"op": {"model": section}}) as service:
        (told,) = re.findall(r"chosen by its times on this machine: (.*)", service.log)
        assert service.predict({name: json.dumps(array.tolist()) for name, array in texts(ROWS).items()})
    assert told.startswith("paddle fp32") and told.count("is damaged, or not the file that was proved") == 1


def test_a_service_whose_engine_has_a_damaged_form_alone_does_not_start(model: Path) -> None:
    damaged(model)
    section = {"local_service_conf": {"model_config": str(model), "engine": "onnxruntime"}}
    with ServiceProcess(APPS / "model.py", {"op": {"model": section}}, wait=False) as service:
        assert service.process.wait(60) != 0
        assert "model.onnx is damaged, or not the file that was proved" in service.log
        assert "Traceback" not in service.log
