"""An engine whose library is not installed: the start says what to install, without importing anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.config.op_section import LocalServiceConf
from pipeline.engines import create_predictor
from pipeline.engines.onnxruntime.engine import ENGINE as ONNX_RUNTIME
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel, load_serving_model, require_library
from pipeline.plugins import Library
from tests.support import onnx_models


@pytest.fixture
def model(tmp_path: Path) -> ServingModel:
    return load_serving_model(onnx_models.serving(tmp_path))


def test_a_model_whose_library_is_there_may_be_loaded(model: ServingModel) -> None:
    require_library(model)


def test_one_whose_library_is_not_there_is_refused_with_the_line_for_pip(
    model: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ONNX_RUNTIME, "library", Library("not_there_at_all", "a-package[run]"))
    told = f"{model.program} needs ONNX Runtime, which is not installed here: pip install 'a-package[run]'"
    for refused in (lambda: require_library(model), lambda: create_predictor(model, LocalServiceConf())):
        with pytest.raises(ConfigError) as caught:
            refused()
        assert caught.value.message == told


def test_an_engine_that_names_no_library_brings_it_along(
    model: ServingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(ONNX_RUNTIME), "library")
    require_library(model)


def test_a_folder_of_the_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are often kept in one named paddle/, beside the script."""
    (tmp_path / "not_there_at_all").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert not Library("not_there_at_all", "").is_installed
    (tmp_path / "not_there_at_all/__init__.py").touch()
    assert Library("not_there_at_all", "").is_installed
