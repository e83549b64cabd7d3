"""Models of tables, from the file that their library wrote to answers over HTTP."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from convert.cli import main
from convert.steps.conversion_environment import CONVERT_PYTHON
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


def test_rows_of_a_csv_file_are_the_proof_s(work: Path) -> None:
    told = trained("people", "model.joblib")
    lines = [",".join(told["rows"]), *(",".join(map(str, row.values())) for row in rows_of(told))]
    (work / "people.csv").write_text("\n".join(lines), "utf-8")
    assert main(["all", "model.joblib", "served", "--trust", "--sample", "people.csv"]) == 0
    reports = json.loads((work / "served" / "serving_server" / "parity.json").read_text("utf-8"))
    assert reports[0]["step"] == "scikit-learn to ONNX" and reports[0]["batches"][0][0] == 6
