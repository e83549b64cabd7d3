"""What every engine promises, ours and those that other packages bring by entry points."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from pipeline import plugins
from pipeline.engines import create_predictor, find_engine, input_examples, load_engine
from pipeline.engines.base import Engine
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import models, onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess

PLUGIN = Path(__file__).parents[1] / "fixtures" / "plugins" / "numpy_engine"
WEIGHT, BIAS = np.array([[1, 0], [0, 2], [3, 3]], np.float32), np.array([0.5, -0.5], np.float32)
NAMES = ("paddle", "onnxruntime", "openvino", "numpy")


class Subject(NamedTuple):
    engine: Engine
    model: ServingModel


def linear_model(folder: Path) -> Path:
    """x, float32 [-1, 3] -> y, float32 [-1, 2], for the engine of tests/fixtures/plugins."""
    folder.mkdir(exist_ok=True)
    np.savez(folder / "linear.npz", weight=WEIGHT, bias=BIAS)
    return folder


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The NumPy engine's package is installed for the length of a test."""
    _forget()
    monkeypatch.syspath_prepend(str(PLUGIN))
    yield
    sys.modules.pop("numpy_engine", None)
    _forget()


def _forget() -> None:
    plugins.find.cache_clear()
    plugins.load.cache_clear()


@pytest.fixture(params=NAMES)
def subject(request: pytest.FixtureRequest, installed: None, model_folder: Path, tmp_path: Path) -> Subject:
    name: str = request.param
    folders = {
        "paddle": lambda: models.classifier(model_folder),
        "onnxruntime": lambda: onnx_models.serving(tmp_path),
        "openvino": lambda: onnx_models.serving(tmp_path),
        "numpy": lambda: linear_model(tmp_path / "linear"),
    }
    engine = load_engine(name)
    return Subject(engine, load_serving_model(folders[name](), name if only_named(engine) else None))


def only_named(engine: Engine) -> bool:
    """Whether it has to be named; the engine of the fixture, which does not say, need not be."""
    return getattr(engine, "only_named", False)


def test_an_engine_is_found_by_the_files_that_it_runs(subject: Subject, tmp_path: Path) -> None:
    engine, model = subject
    assert model.engine == engine.name
    assert model.format == engine.format_of(model.program) != ""
    assert find_engine(model.directory, engine.name) is engine
    assert (find_engine(model.directory) is engine) is not only_named(engine)
    other = tmp_path / "tokenizer.json"
    other.write_text("{}", "utf-8")
    assert engine.format_of(other) == ""
    assert isinstance(engine.holds_gil, bool)


def test_what_it_loads_answers_with_a_row_for_each_row_fed(subject: Subject) -> None:
    predictor = create_predictor(subject.model, local_conf())
    assert {feed.alias for feed in predictor.feeds} == {feed.alias for feed in subject.model.feeds}
    answers = predictor.run(input_examples(predictor, rows=3, length=8))
    assert list(answers) == [fetch.alias for fetch in predictor.fetches]
    for fetch in predictor.fetches:
        assert answers[fetch.alias].dtype == fetch.numpy_dtype
        assert len(answers[fetch.alias]) == 3


def test_what_it_answered_stays_when_it_runs_again(subject: Subject) -> None:
    predictor = create_predictor(subject.model, local_conf())
    feeds = input_examples(predictor, rows=2, length=8)
    first = predictor.run(feeds)
    kept = {name: array.copy() for name, array in first.items()}
    predictor.run({name: array * 0 for name, array in feeds.items()})
    for name, array in kept.items():
        np.testing.assert_array_equal(first[name], array)


def test_a_feed_that_is_missing_is_the_callers_mistake(subject: Subject) -> None:
    predictor = create_predictor(subject.model, local_conf())
    feeds = input_examples(predictor, rows=1, length=8)
    name = predictor.feeds[0].alias
    del feeds[name]
    with pytest.raises(InvalidInput, match=f"feed '{name}' is missing"):
        predictor.run(feeds)


def test_an_output_that_the_model_lacks_ends_the_load(subject: Subject) -> None:
    with pytest.raises(ConfigError, match="fetch_list: the model has no 'nonsense'"):
        create_predictor(subject.model, local_conf(), fetch_list=["nonsense"])


def test_what_is_closed_runs_no_more(subject: Subject) -> None:
    predictor = create_predictor(subject.model, local_conf())
    predictor.close()
    with pytest.raises(ModelFailed, match="closed"):
        predictor.run(input_examples(predictor, rows=1, length=8))


# As a service:


def served(folder: Path, *search_path: Path, wait: bool = True, **conf: object) -> ServiceProcess:
    section = {"local_service_conf": {"model_config": str(folder), **conf}, "batch_size": 4}
    paths = os.pathsep.join(map(str, (*search_path, Path(__file__).parents[2])))
    config = {"dag": {"http_errors": "status"}, "op": {"model": section}}
    return ServiceProcess(APPS / "model.py", config, env={"PYTHONPATH": paths}, wait=wait)


@pytest.mark.parametrize("conf", [{}, {"engine": "numpy"}], ids=["by its files", "by its name"])
def test_a_model_of_another_packages_engine_is_served(tmp_path: Path, conf: dict[str, str]) -> None:
    with served(linear_model(tmp_path / "model"), PLUGIN, **conf) as service:
        answer = service.predict({"x": "[[1, 2, 3]]"})
        assert json.loads(answer["y"]) == (np.array([[1, 2, 3]]) @ WEIGHT + BIAS).tolist()
        assert service.ask({"x": "[[1, 2]]"})["err_no"] == UnusableFeed.err_no


def end_of(service: ServiceProcess) -> str:
    """What a service that can't start has said."""
    with service:
        assert service.process.wait(60) != 0
        return service.log


def test_an_engine_that_is_not_installed_is_refused_with_those_that_are(tmp_path: Path) -> None:
    log = end_of(served(linear_model(tmp_path / "model"), PLUGIN, wait=False, engine="nunpy"))
    assert "local_service_conf.engine: 'nunpy' given" in log
    assert "allowed: 'numpy' or 'onnxruntime' or 'openvino' or 'paddle' or 'pytorch'" in log


def test_without_its_package_the_model_has_no_engine(tmp_path: Path) -> None:
    assert "has neither serving_server_conf.prototxt" in end_of(
        served(linear_model(tmp_path / "model"), wait=False)
    )


def test_an_engine_that_cant_be_imported_ends_the_start_with_its_package(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    shutil.copytree(PLUGIN, plugin)
    (plugin / "numpy_engine.py").write_text("import nothing_of_this_name\n", "utf-8")
    log = end_of(served(linear_model(tmp_path / "model"), plugin, wait=False))
    assert "engine numpy (numpy_engine:ENGINE) of numpy-engine can't be loaded: ModuleNotFoundError" in log
    assert "mend or uninstall numpy-engine" in log
    assert "Traceback" not in log


def test_two_packages_with_an_engine_of_one_name_are_told_apart(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin"
    shutil.copytree(PLUGIN, plugin)
    points = plugin / "numpy_engine-1.0.dist-info" / "entry_points.txt"
    points.write_text("[paddlewheel.engines]\nonnxruntime = numpy_engine:ENGINE\n", "utf-8")
    log = end_of(served(linear_model(tmp_path / "model"), plugin, wait=False))
    assert "there are two engines with the name 'onnxruntime'" in log
