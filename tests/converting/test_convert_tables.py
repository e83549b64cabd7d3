"""Models of tables that `paddlewheel convert all` looks at and does not load."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from convert.cli import main
from convert.steps import conversion_environment


class Touches:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("suffix", [".joblib", ".pkl", ".pickle"])
def test_a_pickle_is_not_loaded_unless_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    touched = tmp_path / "touched"
    source = tmp_path / f"model{suffix}"
    source.write_bytes(pickle.dumps(Touches(touched)))
    assert main(["all", str(source), str(tmp_path / "out")]) == 2
    told = capsys.readouterr().err.replace("\n", " ")
    assert "is a pickle: loading it runs whatever code stands in it" in told and "--trust" in told
    assert not touched.exists() and not (tmp_path / "out").exists()


def test_trust_is_for_models_of_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = Path(__file__).parents[1] / "fixtures" / "onnx" / "flowers.onnx"
    assert main(["all", str(onnx), str(tmp_path / "out"), "--trust"]) == 2
    assert "--trust is for a model of tables" in capsys.readouterr().err.replace("\n", " ")


def test_paddle_runs_no_trees(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "model.txt"
    source.write_text("tree\nversion=v4\n", "utf-8")
    assert main(["all", str(source), str(tmp_path / "out"), "--engine", "paddle"]) == 2
    assert "--engine paddle does not run a model of tables" in capsys.readouterr().err.replace("\n", " ")


def test_a_file_that_is_none_of_them_is_refused_with_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "notes.txt"
    source.write_text("some notes\n", "utf-8")
    assert main(["all", str(source), str(tmp_path / "out")]) == 2
    assert "nor a model of scikit-learn" in capsys.readouterr().err.replace("\n", " ")


def test_without_an_environment_the_error_names_the_version_in_the_pickle(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(conversion_environment.CONVERT_PYTHON, raising=False)
    monkeypatch.setattr(conversion_environment, "FOLDER", tmp_path / "absent")
    source = tmp_path / "people.joblib"
    source.write_bytes(pickle.dumps({"_sklearn_version": "1.5.2"}))
    assert main(["all", str(source), str(tmp_path / "out"), "--trust"]) == 2
    message = capsys.readouterr().err.replace("\n", " ")
    assert "was saved by scikit-learn 1.5.2, and there is no conversion environment" in message
    assert (
        "convert-env scikit-learn-1.5.2 --tables scikit-learn==1.5.2 && PADDLEWHEEL_CONVERT_PYTHON" in message
    )
