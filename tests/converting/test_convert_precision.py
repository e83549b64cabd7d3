"""`paddlewheel convert precision` without converters: bf16 by Paddle, what is refused, how it is served."""

from __future__ import annotations

import importlib
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from convert.cli import main
from convert.programs.inference_program import read_program
from convert.proof.sample_files import text_rows
from convert.proof.target import create_model_target
from convert.steps.conversion_environment import CONVERT_PYTHON, missing_packages
from pipeline.launch.doctor.checks import cpu_flags
from pipeline.models.serving_model import load_serving_model
from tests.support import models, onnx_models
from tests.support.service_process import APPS, ServiceProcess

FEEDS = onnx_models.FEEDS


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.classifier(tmp_path_factory.mktemp("models"))


def precision(source: object, out: object, *options: object) -> int:
    try:
        return main(["precision", str(source), str(out), *map(str, options)])
    except SystemExit as end:  # of the parser
        assert isinstance(end.code, int)
        return end.code


def refused(capsys: pytest.CaptureFixture[str], source: object, out: Path, *options: object) -> str:
    """The sentence of a refusal, which leaves nothing behind."""
    assert precision(source, out, *options) == 2
    assert not out.exists()
    *_, error = capsys.readouterr().err.splitlines()
    assert error.endswith(".") and "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--to", "int4"], "invalid choice: 'int4'"),
        (["--to", "fp16", "--engine", "openvino"], "invalid choice: 'openvino'"),
        ([], "the following arguments are required: --to"),
        (["--to", "fp16", "--engine", "paddle"], "runs fp16 on a GPU alone"),
        (["--to", "int8-dynamic", "--engine", "paddle"], "has no int8 for inference models"),
        (["--to", "bf16", "--engine", "onnxruntime"], "has no bf16 on the CPU; name --engine paddle"),
        (["--to", "int8-calibrated"], "needs representative inputs"),
        (["--to", "fp16", "--generated-calibration"], "are of use to int8-calibrated alone"),
        (["--to", "bf16", "--tolerance", "-1"], "the tolerance -1.0 is not a number from 0 up"),
        (["--to", "bf16", "--top1", "98"], "the top-1 agreement 98.0 is not a share from 0 to 1"),
    ],
)
def test_what_can_t_be_had_is_told_in_a_sentence(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert told in refused(capsys, classifier, tmp_path / "out", *options)


def test_lengths_that_the_model_can_not_run_are_told_as_its_own(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONVERT_PYTHON, sys.executable)
    np.savez(tmp_path / "given.npz", **dict.fromkeys(FEEDS, np.full((1, 4), 10**6)))
    given = ("--calibration", tmp_path / "given.npz")
    source = onnx_models.onnx_file("classifier")
    error = refused(capsys, source, tmp_path / "out", "--to", "int8-calibrated", *given)
    assert f"{source} can't run input_ids [1, 4]" in error and "try other --lengths or inputs" in error


def test_an_onnx_model_has_no_precision_of_paddle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = onnx_models.onnx_file("classifier")
    error = refused(capsys, source, tmp_path / "out", "--to", "bf16")
    assert "is an ONNX model, which Paddle doesn't run" in error and "paddlewheel convert onnx" in error


@pytest.mark.parametrize("option", ["--inputs", "--calibration"])
def test_inputs_under_other_names_are_refused(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    file = tmp_path / "given.npz"
    np.savez(file, words=np.ones((1, 4), np.int64))
    given = ["--to", "int8-calibrated", "--generated-calibration"][: 2 if option == "--calibration" else 3]
    error = refused(capsys, classifier, tmp_path / "out", *given, option, file)
    assert f"{file} holds words, but" in error and f"takes {', '.join(FEEDS)}" in error


def test_inputs_that_can_t_be_read_are_refused(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("\n \n", "utf-8")
    (tmp_path / "texts.txt").write_text("国足客场两球取胜\n", "utf-8")
    (tmp_path / "text.npz").write_text("no archive", "utf-8")
    for name, told in {
        "missing.txt": "is not a file; name one with inputs",
        "empty.txt": "holds no text; give it one text a line",
        "texts.txt": "has neither tokenizer.json nor vocab.txt",
        "text.npz": "is no .npz file of plain arrays",
    }.items():
        given = ("--to", "bf16", "--inputs", tmp_path / name)
        assert told in refused(capsys, classifier, tmp_path / "out", *given)


def test_a_text_ends_with_a_line_feed_alone(classifier: Path, tmp_path: Path) -> None:
    model = load_serving_model(classifier)
    shutil.copytree(classifier, tmp_path / "model")
    vocabulary = tmp_path / "model" / model.directory.relative_to(classifier) / "vocab.txt"
    vocabulary.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n国\n足\n", "utf-8")
    (tmp_path / "texts.txt").write_text("国\u2028足\r\n足\u0085\n", "utf-8")
    served = load_serving_model(tmp_path / "model")
    rows = text_rows(tmp_path / "texts.txt", create_model_target(served, read_program(served.directory)))
    ids = next(feed.name for feed in model.feeds if feed.alias == "input_ids")
    assert [row[ids].tolist() for row in rows] == [[[2, 5, 6, 3]], [[2, 6, 3]]]


def test_bf16_is_the_same_program_which_says_how_it_is_run(
    classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a CPU without bf16 that is the sentence."""
    if not {"avx512_bf16", "amx_bf16"} & set(cpu_flags()):
        error = refused(capsys, classifier, tmp_path / "out", "--to", "bf16")
        assert "needs a CPU with avx512_bf16 or amx_bf16" in error
        return
    assert precision(classifier, tmp_path / "out", "--to", "bf16") == 0
    made = load_serving_model(tmp_path / "out")
    assert made.program.read_bytes() == load_serving_model(classifier).program.read_bytes()
    assert made.additions["local_service_conf"] == {"precision": "bf16"}
    error = refused(capsys, tmp_path / "out", tmp_path / "again", "--to", "bf16")
    assert "is of bf16 already; name the fp32 model" in error


def with_settings(folder: Path, settings: Any) -> Path:
    """A served ONNX model whose serving.yml has them."""
    model = onnx_models.serving(folder)
    file = model / "serving_server/serving.yml"
    document = yaml.safe_load(file.read_text("utf-8"))
    file.write_text(yaml.safe_dump(document | {"local_service_conf": settings}), "utf-8")
    return model


def service(model: Path, **keys: Any) -> ServiceProcess:
    conf = {"model_config": str(model), "thread_num": 1, **keys}
    return ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}, wait=False)


def test_the_model_s_own_settings_are_those_of_its_service(tmp_path: Path) -> None:
    """ONNX Runtime refuses precision on the CPU, and so tells that it was asked for."""
    with service(with_settings(tmp_path, {"precision": "bf16"}), strict_precision=True) as process:
        assert process.exit_code() != 0
        assert "precision bf16 is not for ONNX Runtime on cpu" in process.log


def test_config_yml_goes_before_the_model_s_own_settings(tmp_path: Path) -> None:
    with service(with_settings(tmp_path, {"precision": "bf16"}), precision="fp32") as process:
        process.wait_until_ready()
        assert "local_service_conf.precision is bf16, but config.yml has fp32" in process.log
        ids = "[[1, 2, 3]]"
        assert process.predict(dict.fromkeys(FEEDS[:1], ids) | dict.fromkeys(FEEDS[1:], "[[1, 1, 1]]"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"thread_num": 8}, "local_service_conf may have ir_optim and precision: put other keys in config"),
        ({"precision": "int3"}, "local_service_conf.precision: 'int3'"),
        ("bf16", "local_service_conf may have ir_optim and precision"),
    ],
)
def test_settings_that_a_model_may_not_have_end_the_start(tmp_path: Path, settings: Any, told: str) -> None:
    with service(with_settings(tmp_path, settings)) as process:
        assert process.exit_code() == 2
        assert told in process.log


def test_a_folder_here_is_not_taken_for_a_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one of `convert to-onnx models/demo onnx`."""
    (tmp_path / "a_converter").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert missing_packages(["a_converter", "numpy"]) == ["a_converter"]
    (tmp_path / "a_converter/__init__.py").touch()
    importlib.invalidate_caches()
    assert missing_packages(["a_converter", "numpy"]) == []
