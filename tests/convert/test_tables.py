"""Models of tables, from the file that their library wrote to answers over HTTP."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from convert.from_tables.pickle_facts import read_pickle_facts
from convert.programs import engines
from convert.steps.conversion_environment import CONVERT_PYTHON, FOLDER
from convert.steps.isolation import run_isolated
from pipeline.models.serving_model import load_serving_model
from tests.support.new_services import new_service

NEEDS = ("sklearn", "lightgbm", "xgboost", "pandas")


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.delenv(CONVERT_PYTHON, raising=False)
    return tmp_path


def trained(kind: str, file: str) -> dict[str, Any]:
    arguments = {"kind": kind, "file": file}
    told: dict[str, Any] = run_isolated(
        "environment_steps:table_model", arguments, converter="the trainer", needs=NEEDS
    )
    return told


def rows_of(told: dict[str, Any]) -> list[dict[str, Any]]:
    names = list(told["rows"])
    return [dict(zip(names, row, strict=True)) for row in zip(*told["rows"].values(), strict=True)]


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("forest", "model.joblib"),
        ("histogram", "model.pkl"),
        ("vectors", "model.joblib"),
        ("kernels", "model.joblib"),
        ("people", "model.joblib"),
        ("people, columns named as answers", "model.joblib"),
        ("people, regression, columns named as answers", "model.joblib"),
        ("people, columns with blanks", "model.joblib"),
        ("people with gaps", "model.joblib"),
        ("people with gaps, imputed", "model.joblib"),
        ("people of lightgbm", "model.joblib"),
        ("lightgbm", "model.joblib"),
        ("regression", "model.joblib"),
        ("xgboost regression", "model.ubj"),
    ],
)
def test_rows_are_answered_over_http_as_the_library_answers_them(work: Path, kind: str, file: str) -> None:
    told = trained(kind, file)
    trust = ["--trust"] if file.endswith(("joblib", "pkl")) else []
    assert main(["all", file, "served", *trust]) == 0
    with new_service(work / "services", work / "served", "rows") as new:
        body = json.dumps({"instances": rows_of(told)})
        answer = new.service.http("/v1/models/rows:predict", body)
        assert answer.status == 200, answer
        predictions = answer.json["predictions"]
        assert new.ask().status == 200
    if "values" in told:
        values = [row["prediction"][0] for row in predictions]
        assert values == pytest.approx(told["values"], rel=1e-4, abs=1e-4)
        return
    assert [row["label"] for row in predictions] == told["labels"]
    if told["scores"] is not None:
        assert [row["score"] for row in predictions] == pytest.approx(told["scores"], abs=1e-5)


@pytest.mark.parametrize(
    ("library", "file", "unknown"),
    [
        ("lightgbm", "model.txt", ""),
        (
            "xgboost",
            "model.json",
            "'job' is 'poet', which the model does not know; it knows clerk, driver, nurse",
        ),
    ],
)
def test_clients_send_the_categories_of_the_training(
    work: Path, library: str, file: str, unknown: str
) -> None:
    told = trained(f"people in categories of {library}", file)
    assert main(["all", file, "served"]) == 0
    with new_service(work / "services", work / "served", "rows") as new:
        rows = rows_of(told)
        answer = new.service.http("/v1/models/rows:predict", json.dumps({"instances": rows}))
        assert answer.status == 200, answer
        other = {**rows[-1], "job": "poet"}
        answer_to_other = new.service.http("/v1/models/rows:predict", json.dumps({"instances": [other]}))
        assert new.ask().status == 200
    predictions = answer.json["predictions"]
    assert [row["label"] for row in predictions] == told["labels"] and len(set(told["labels"])) == 2
    assert [row["score"] for row in predictions] == pytest.approx(told["scores"], abs=1e-5)
    assert rows[-1]["job"] is None
    if unknown:  # XGBoost rejects other categories, LightGBM treats them as missing
        assert answer_to_other.status == 400 and unknown in answer_to_other.json["error"]
    else:
        assert answer_to_other.json["predictions"] == [pytest.approx(predictions[-1], abs=1e-6)]


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_the_proof_of_an_estimator_has_its_categories(work: Path, library: str) -> None:
    trained(f"people in categories of {library}", "model.joblib")
    assert main(["all", "model.joblib", "served", "--trust"]) == 0
    (table,) = load_serving_model("served").description.inputs.values()
    columns = {column["name"]: column for column in table.model_dump()["columns"]}
    assert (columns["job"]["type"], columns["city"]["type"]) == ("text", "integer")
    with np.load(work / "served" / "serving_server" / "sample.npz") as rows:
        assert {"clerk", "driver", "nurse", ""} <= set(rows["job"].ravel().tolist())
        assert set(rows["city"].ravel().tolist()) == {0, 10, 20}


@pytest.mark.parametrize(("kind", "file"), [("lightgbm", "model.txt"), ("xgboost", "model.json")])
def test_a_booster_by_itself_needs_no_trust_and_takes_labels(kind: str, file: str) -> None:
    trained(kind, file)
    assert main(["all", file, "served", "--labels", "blue,red,white"]) == 0
    model = load_serving_model("served")
    assert model.labels == ("blue", "red", "white")
    (table,) = model.description.inputs.values()
    columns = table.model_dump()["columns"]
    assert [column["missing"] for column in columns] == ["nan"] * 3
    assert columns[0]["name"] == "length"


def test_labels_that_are_not_as_many_as_the_classes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    trained("xgboost", "model.json")
    assert main(["all", "model.json", "served", "--labels", "a,b"]) == 2
    assert "--labels has 2 names, and the model has 3 classes" in capsys.readouterr().err.replace("\n", " ")


def test_what_is_no_model_is_told(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "broken.joblib").write_bytes(b"no pickle")
    assert main(["all", "broken.joblib", "served", "--trust"]) == 2
    assert "broken.joblib can't be loaded" in capsys.readouterr().err.replace("\n", " ")


def renamed(file: Path, *names: tuple[bytes, bytes]) -> None:
    """Replace names in a pickle by names of equal length."""
    data = file.read_bytes()
    for before, after in names:
        assert before in data and len(before) == len(after)
        data = data.replace(before, after)
    file.write_bytes(data)


class TestAnotherVersionOfScikitLearn:
    @pytest.fixture
    def version(self, work: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """The version that saved model.joblib. Its pickle names another of the same length."""
        monkeypatch.setattr(engines, "_DISTRIBUTIONS", ())  # table models need no Paddle
        trained("people", "model.joblib")
        version = read_pickle_facts(work / "model.joblib").sklearn
        renamed(work / "model.joblib", (version.encode(), b"1.2.2"))
        return version

    def test_a_failure_names_both_versions_and_the_command(
        self, work: Path, version: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        renamed(work / "model.joblib", (b"linear_model._logistic", b"linear_model._logistik"))
        assert main(["all", "model.joblib", "served", "--trust"]) == 2
        told = capsys.readouterr().err.replace("\n", " ")
        assert "model.joblib can't be loaded (ModuleNotFoundError" in told
        assert f"was saved by scikit-learn 1.2.2, and {FOLDER / 'bin' / 'python'} has {version}" in told
        command = re.findall("`([^`]+)`", told)[-1]
        environment, _, conversion = command.partition(" && ")
        assert environment.endswith("paddlewheel convert-env scikit-learn-1.2.2 --tables scikit-learn==1.2.2")
        assert conversion.startswith("PADDLEWHEEL_CONVERT_PYTHON=scikit-learn-1.2.2/bin/python ")
        assert conversion.endswith("paddlewheel convert all model.joblib served --trust")

    def test_a_success_comes_with_a_warning(
        self, work: Path, version: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["all", "model.joblib", "served", "--trust"]) == 0
        told = capsys.readouterr().err
        assert "Warning: model.joblib was saved by scikit-learn 1.2.2" in told and f"has {version}" in told


def test_the_conversion_imports_no_paddle_and_no_rich() -> None:
    imported = run_isolated(
        "environment_steps:imported_for_tables", {}, converter="imports", needs=("sklearn", "skl2onnx")
    )
    assert "onnxruntime" in imported
    assert not {"paddle", "rich", "pydantic", "onnxmltools", "torch"} & set(imported)


def test_rows_of_a_csv_file_are_the_proof_s(work: Path) -> None:
    told = trained("people", "model.joblib")
    lines = [",".join(told["rows"]), *(",".join(map(str, row.values())) for row in rows_of(told))]
    (work / "people.csv").write_text("\n".join(lines), "utf-8")
    assert main(["all", "model.joblib", "served", "--trust", "--sample", "people.csv"]) == 0
    reports = json.loads((work / "served" / "serving_server" / "parity.json").read_text("utf-8"))
    assert reports[0]["step"] == "scikit-learn to ONNX" and reports[0]["batches"][0][0] == 6
