"""`paddlewheel convert check`, and the server's refusal of a model that failed it."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from convert.cli import main
from convert.proof.parity import compare
from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from tests.support import models, onnx_models
from tests.support.service_process import APPS, ServiceProcess

PADDING = "input_ids=0,token_type_ids=0,attention_mask=0"
CLASSIFIER = onnx_models.onnx_file("classifier")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A serving model as `convert serving` wrote it, from a source that stays where it was."""
    assert main(["serving", str(CLASSIFIER), str(tmp_path / "served"), "--padding", PADDING]) == 0
    return tmp_path / "served"


def check(*arguments: object) -> int:
    return main(["check", *map(str, arguments)])


def reports(served: Path) -> dict[str, dict[str, Any]]:
    """The stored reports by step."""
    stored = json.loads((served / "serving_server/parity.json").read_text("utf-8"))
    return {report["step"]: report for report in stored}


def perturb(served: Path) -> None:
    shutil.copy(onnx_models.onnx_file("perturbed"), served / "serving_server/classifier.onnx")


def service(model: Path, *, wait: bool = True, **keys: Any) -> ServiceProcess:
    conf = {"model_config": str(model), "thread_num": 1, **keys}
    return ServiceProcess(APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}, wait=wait)


@pytest.mark.parametrize("other", [onnx_models.FIXTURES / "external", onnx_models.onnx_file("renamed")])
def test_two_forms_of_one_model_agree(other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Weights in a file of their own; other names, and int32 for int64."""
    assert check(CLASSIFIER, other) == 0
    out = capsys.readouterr().out
    assert f"{other} answers as {CLASSIFIER} does" in " ".join(out.split())
    for column in ("max |diff|", "mean", "cosine", "top-1"):
        assert column in out


def test_figures_tell_how_far_two_models_are_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "parity.json"
    perturbed = onnx_models.onnx_file("perturbed")
    assert check(CLASSIFIER, perturbed, "--report", report) == 1
    assert "check: output 'logits' is off by 0.1" in capsys.readouterr().err
    parity, batch = json.loads(report.read_text("utf-8"))
    (figures,) = parity["outputs"]
    assert 0.01 < figures["mean_abs_diff"] < figures["max_abs_diff"] < 0.2
    assert 0.999 < figures["cosine"] < 1
    assert figures["top1_agreement"] > 0.9
    assert sorted({tuple(shape) for shape in parity["batches"]}) == [
        (rows, length) for rows in (1, 2, 5) for length in (5, 16, 33)
    ]
    assert (parity["passed"], batch["passed"]) == (False, True)
    assert check(CLASSIFIER, perturbed, "--tolerance", 0.2) == 0


def test_a_paddle_program_and_its_serving_model_agree(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = models.classifier(model_folder)
    for file in (served / "serving_server").glob("inference.*"):
        shutil.copy(file, tmp_path)
    assert check(tmp_path, served) == 0
    assert "check padding" in capsys.readouterr().out


def test_padding_is_tried_on_feeds_that_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    wrong = onnx_models.onnx_file("ignores_mask")
    assert check(wrong, wrong) == 0
    assert check(wrong, wrong, "--padding", PADDING) == 1
    assert "check padding: output 'logits' is off by" in capsys.readouterr().err
    assert check(CLASSIFIER, CLASSIFIER, "--padding", PADDING) == 0


def test_a_model_whose_rows_depend_on_their_neighbours_fails(capsys: pytest.CaptureFixture[str]) -> None:
    mixes = onnx_models.onnx_file("mixes_rows")
    assert check(mixes, mixes) == 1
    assert "check batch: output 'y' is off by" in capsys.readouterr().err


def test_the_demo_and_others_without_a_source_that_runs_are_compared_with_their_own_program(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    demo = shutil.copytree(root / "models/demo", tmp_path / "demo")
    assert check(demo) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "own program does without optimisation (what it was made of, demo, can't be run); it" in told
    assert reports(demo)["check"]["passed"] and reports(demo)["check padding"]["passed"]
    assert check(demo, "--tolerance", 0) == 1
    # On some CPUs the optimised program has the same bits; padded rows then differ from rows alone.
    stored = [reports(demo)[step] for step in ("check", "check padding")]
    assert [report["passed"] for report in stored] == [report["max_abs_diff"] == 0 for report in stored]
    assert not all(report["passed"] for report in stored)


def test_a_passed_check_is_recorded_and_the_result_stays_up_to_date(
    served: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(served) == 0
    assert check(served / "serving_server") == 0
    assert {step: report["passed"] for step, report in reports(served).items()} == dict.fromkeys(
        ("static to serving", "padding", "check", "check padding"), True
    )
    capsys.readouterr()
    assert main(["serving", str(CLASSIFIER), str(served), "--padding", PADDING]) == 0
    assert "is up to date" in capsys.readouterr().out


def test_a_perturbed_weight_is_found_recorded_and_refused_by_the_server(served: Path) -> None:
    perturb(served)
    before = {path: path.read_bytes() for path in served.rglob("*") if path.name.startswith("classifier")}
    assert check(served) == 1
    assert not reports(served)["check"]["passed"]
    assert reports(served)["static to serving"]["passed"]
    assert {path: path.read_bytes() for path in before} == before
    with service(served, wait=False) as refused:
        assert refused.exit_code() != 0
        assert "parity.json: check: output 'logits' is off by 0.1" in refused.log
        assert "allow_failed_parity: true" in refused.log
    assert main(["serving", str(CLASSIFIER), str(served), "--padding", PADDING]) == 0
    with service(served) as running:
        assert "is warm" in running.log


def test_other_files_than_were_proved_are_told_at_the_start_until_a_check_passes(served: Path) -> None:
    file = served / "serving_server/classifier.onnx"
    file.write_bytes(file.read_bytes() + b"\x32\x01x")  # a doc_string, which changes no answer
    with service(served) as running:
        assert f"{file} is not the file that was proved (parity.json)" in running.log
    assert check(served) == 0
    with service(served) as running:
        assert "is not the file that was proved" not in running.log


def test_weights_changed_after_the_conversion_fail_a_check_that_has_no_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own_linear.py").write_text(
        "import paddle\n\ndef create():\n    return paddle.nn.Linear(4, 3)\n", "utf-8"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(["all", "own_linear:create", "served", "--input-spec", "x:float32[-1,4]"]) == 0
    served = tmp_path / "served"
    assert check(served) == 0
    assert "its files are those that were proved." in " ".join(capsys.readouterr().out.split())
    assert reports(served)["check files"]["passed"]
    weights = served / "serving_server/inference.pdiparams"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert check(served) == 1
    told = capsys.readouterr().err
    assert "check files: inference.pdiparams in " in told and "is not what was proved; copy the model" in told
    assert load_serving_model(served).failures
    weights.write_bytes(whole)
    assert check(served) == 0
    assert not load_serving_model(served).failures


@pytest.mark.parametrize("digests", [["classifier.onnx"], {"../x": {}}, {"classifier.onnx": {"sha256": 1}}])
def test_digests_that_are_none_are_told(
    served: Path, digests: object, capsys: pytest.CaptureFixture[str]
) -> None:
    additions = served / "serving_server/serving.yml"
    document = yaml.safe_load(additions.read_text("utf-8"))
    additions.write_text(yaml.safe_dump({**document, "digests": digests}), "utf-8")
    assert check(served) == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("serving.yml: digests is not what convert writes: convert the model again.")


def test_a_wrong_mask_fails_the_check_of_padding_and_is_served_only_where_that_is_allowed(
    tmp_path: Path,
) -> None:
    served = tmp_path / "served"
    assert main(["serving", str(onnx_models.onnx_file("ignores_mask")), str(served)]) == 0
    additions = served / "serving_server/serving.yml"
    feeds = {name: {"axis": 1, "value": 0} for name in onnx_models.FEEDS}
    additions.write_text(yaml.safe_dump({"padding": {"feeds": feeds, "fetches": {}}}), "utf-8")
    assert check(served) == 1
    assert {step: reports(served)[step]["passed"] for step in ("check", "check padding")} == {
        "check": True,
        "check padding": False,
    }
    with service(served, wait=False) as refused:
        assert refused.exit_code() != 0
        assert "check padding: output 'logits' is off by" in refused.log
    with service(served, allow_failed_parity=True) as running:
        assert "served all the same, for allow_failed_parity is set" in running.log
        ones = dict.fromkeys(onnx_models.FEEDS, "[[1, 1]]")
        assert json.loads(running.predict(ones)["logits"])


def test_outputs_that_are_not_cut_back_as_they_grow_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    served = onnx_models.serving(tmp_path)
    additions = served / "serving_server/serving.yml"
    document = yaml.safe_load(additions.read_text("utf-8"))
    document["padding"]["fetches"] = {"logits": 1}
    prototxt = served / "serving_server/serving_server_conf.prototxt"
    prototxt.write_text(prototxt.read_text("utf-8").replace("shape: 3", "shape: -1"), "utf-8")
    additions.write_text(yaml.safe_dump(document), "utf-8")
    assert check(CLASSIFIER, served) == 1
    assert "serving.yml cuts back {'logits': 1}, but none grow" in capsys.readouterr().err


def scaled(folder: Path, factor: float) -> Path:
    """scaled.onnx with another factor."""
    source = onnx_models.onnx_file("scaled")
    content, before = source.read_bytes(), np.float32(4500).tobytes()
    assert content.count(before) == 1
    folder.mkdir()
    (folder / "model.onnx").write_bytes(content.replace(before, np.float32(factor).tobytes()))
    return folder / "model.onnx"


def test_an_output_is_judged_by_its_own_scale(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4500 times a random number is off by some 0.02 where the factor is off by 0.0076."""
    original = onnx_models.onnx_file("scaled")
    near, far = scaled(tmp_path / "near", 4500.0076), scaled(tmp_path / "far", 4510)
    report = tmp_path / "parity.json"
    assert check(original, near, "--report", report) == 0
    (output,) = json.loads(report.read_text("utf-8"))[0]["outputs"]
    assert output["max_abs_diff"] > 0.005 and output["largest"] > 4500
    assert check(original, far) == 1
    told = capsys.readouterr().err.strip().splitlines()[-1]
    assert re.fullmatch(
        r"check: output 'y' is off by \d+\.?\d*, over the tolerance of 0\.0001 of its largest value "
        r"1\.05e\+04, that is 1\.05 \(--tolerance; cosine 1\.000000, top-1 100\.0%\)\.",
        told,
    ), told
    assert check(original, far, "--tolerance", 0.003) == 0


def test_small_outputs_have_an_absolute_tolerance(tmp_path: Path) -> None:
    """A hundredth of a random number, off by some 3e-5 and by some 3e-4."""
    original, near = scaled(tmp_path / "original", 0.01), scaled(tmp_path / "near", 0.01002)
    assert check(original, near) == 0
    assert check(original, scaled(tmp_path / "far", 0.0102)) == 1


def test_what_fills_masked_places_is_no_scale() -> None:
    values = np.random.default_rng(0).standard_normal((50, 20)).astype(np.float32)
    masked = np.where(np.arange(20) > 15, np.float32(-1e9), values)
    other = np.where(np.arange(20) > 15, masked, values + 0.01)
    report = compare("check", ["y"], lambda _: [masked], lambda _: [other], [{"x": masked}])
    assert not report.passed and report.outputs[0].largest < 10
    assert compare("check", ["y"], lambda _: [masked], lambda _: [masked], [{"x": masked}]).passed


def test_figures_that_are_no_numbers_fail_and_are_stored_as_json(served: Path) -> None:
    content = (served / "serving_server/classifier.onnx").read_bytes()
    weight = np.random.default_rng(7).standard_normal((64, 16)).astype(np.float32).tobytes()
    nan = np.full(1024, np.nan, np.float32).tobytes()
    assert weight in content
    (served / "serving_server/classifier.onnx").write_bytes(content.replace(weight, nan))
    assert check(served) == 1
    text = (served / "serving_server/parity.json").read_text("utf-8")
    assert "NaN" not in text
    assert reports(served)["check"]["max_abs_diff"] is None


def test_inputs_of_one_s_own_take_the_place_of_random_ones(tmp_path: Path) -> None:
    file, report = tmp_path / "inputs.npz", tmp_path / "parity.json"
    ids = np.full((7, 11), 5, np.int32)
    np.savez(file, input_ids=ids, token_type_ids=ids * 0, attention_mask=np.ones_like(ids))
    assert check(CLASSIFIER, CLASSIFIER, "--inputs", file, "--report", report) == 0
    assert json.loads(report.read_text("utf-8"))[0]["batches"] == [[7, 11], [1, 11]]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ["{images}", "{classifier}"],
            "have no inputs in common: image float32[-1, 3, -1, -1] and input_ids",
        ),
        (["{classifier}", "{here}/absent"], "absent is neither a folder nor a .onnx file"),
        (["{here}"], "is no serving model; name two models: check A B"),
        (["{served}", "--report", "x.json"], "--padding and --report are for two models"),
        (["{served}"], "was made of {here}/source.onnx, which is not there; name what to compare with"),
        (["{classifier}", "{classifier}", "--inputs", "{here}/some.npz"], "holds ids, but"),
        (["{classifier}", "{classifier}", "--inputs", "{here}/text.npz"], "is no .npz file of plain arrays"),
        (
            ["{classifier}", "{classifier}", "--inputs", "{here}/pickled.npz"],
            "is no .npz file of plain arrays",
        ),
        (
            ["{classifier}", "{classifier}", "--inputs", "{here}/absent.npz"],
            "absent.npz is not a file; name one with inputs",
        ),
        (["{classifier}", "{classifier}", "--padding", "ids=0"], "'ids' is not a feed"),
    ],
)
def test_what_can_t_be_checked_is_told_in_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], told: str
) -> None:
    source, served = tmp_path / "source.onnx", tmp_path / "served"
    shutil.copy(CLASSIFIER, source)
    assert main(["serving", str(source), str(served)]) == 0
    source.unlink()
    np.savez(tmp_path / "some.npz", ids=np.ones((1, 2)))
    np.savez(tmp_path / "pickled.npz", input_ids=np.array([{}], object))
    (tmp_path / "text.npz").write_text("no arrays")
    names = {
        "here": tmp_path, "served": served, "classifier": CLASSIFIER,
        "images": onnx_models.onnx_file("images"),
    }  # fmt: skip
    assert check(*(argument.format(**names) for argument in arguments)) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert told.format(**names) in error


def test_a_report_that_can_t_be_read_is_told_at_the_start(served: Path) -> None:
    for content in ("", "{}", "[1]", '[{"step": "check"}]'):
        (served / "serving_server/parity.json").write_text(content, "utf-8")
        with pytest.raises(ConfigError, match=r"parity\.json holds no parity reports: check the model again"):
            load_serving_model(served)
