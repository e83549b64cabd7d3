"""`engine: auto` and `batch_size: auto`: what is timed, what is chosen of it, where the choice is kept."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from pipeline.config.op_section import LocalServiceConf, OpConfig
from pipeline.engines import create_predictor
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.models.serving_model import SAMPLE_FILE, load_serving_model
from pipeline.tuning import auto, timed_runs
from pipeline.tuning.choice import CHOICES_FILE, Timed, choose, read_choice, write_choice
from pipeline.tuning.real_rows import feeds_to_time
from pipeline.tuning.timed_runs import Grid, time_runs
from tests.support import models, onnx_models
from tests.support.free_ports import free_port
from tests.support.models import local_conf
from tests.support.service_process import APPS, ROOT, ServiceProcess

ROWS = [[number % 60 + 1] * (1 + number % 9) for number in range(40)]
RATE = "paddlewheel_op_chosen_rows_per_second"
CHOSEN = "chosen by its times on this machine: onnxruntime fp32, batches of about"


def timed(engine: str, alone_ms: float, row_ms: float, **more: Any) -> Timed:
    """A candidate that takes so long for a row alone, and so long for each of 8."""
    points = tuple(
        (rows, length, (alone_ms if rows == 1 else rows * row_ms) / 1e3)
        for rows in (1, 8)
        for length in (16, 64)
    )
    return Timed(engine, "fp32", "model.onnx", points, **more)


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ([timed("slow", 2.0, 1.0), timed("fast", 1.0, 0.5)], "fast"),
        ([timed("slow", 2.0, 1.0), Timed("broken", "fp32", refused="it has no such operator")], "slow"),
        ([timed("even", 1.0, 0.2), timed("dear alone", 5.0, 0.19)], "even"),
        ([timed("even", 1.0, 0.2), timed("better in batches", 1.1, 0.1)], "better in batches"),
    ],
)
def test_the_fastest_is_chosen_of_those_that_can_run_the_model(candidates: list[Timed], chosen: str) -> None:
    choice = choose(candidates)
    assert choice.engine == chosen
    assert choice.best_rows == 8
    assert choice.among[0].engine == chosen
    for one in candidates:
        assert one.engine in choice.line()
        assert one.refused in choice.line()


def test_where_nothing_can_run_the_model_each_reason_is_told() -> None:
    refused = [
        Timed("one", "fp32", refused="it is damaged"),
        Timed("two", "fp32", refused="it is no program"),
    ]
    with pytest.raises(ConfigError, match=r"one fp32: it is damaged; two fp32: it is no program"):
        choose(refused)


class Slow:
    """A predictor whose clock goes on by 1 ms for each element that it runs."""

    def __init__(self, predictor: Any, most_rows: int = 99) -> None:
        self.feeds, self.fetches, self.merges = predictor.feeds, predictor.fetches, predictor.merges
        self.now = 0.0
        self.runs = 0
        self._most_rows = most_rows

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        rows, length = feeds["input_ids"].shape
        if rows > self._most_rows:
            raise ModelFailed("too many rows")
        self.runs += 1
        self.now += 0.001 * rows * length
        return {}

    def close(self) -> None: ...

    def clock(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnx_models.serving(tmp_path_factory.mktemp("auto"))


def test_sizes_that_the_budget_does_not_allow_are_estimated_from_those_that_were_run(model: Path) -> None:
    slow = Slow(create_predictor(load_serving_model(model), local_conf()))
    points = time_runs(slow, Grid((1, 4, 32), (8, 64)), 1.0, slow.clock)
    seconds = {(rows, length): s for rows, length, s in points}
    assert seconds[1, 8] == pytest.approx(0.008)
    assert seconds[32, 64] == pytest.approx(2.048)  # a run of it would have taken twice the budget
    assert slow.now <= 1.0


def test_a_size_that_the_model_refuses_is_estimated_too(model: Path) -> None:
    slow = Slow(create_predictor(load_serving_model(model), local_conf()), most_rows=4)
    points = time_runs(slow, Grid((1, 4, 8), (8,)), 10.0, slow.clock)
    assert points[-1] == (8, 8, pytest.approx(0.064))


def test_a_model_that_runs_at_no_size_is_refused(model: Path) -> None:
    slow = Slow(create_predictor(load_serving_model(model), local_conf()), most_rows=0)
    with pytest.raises(ModelFailed, match="too many rows"):
        time_runs(slow, Grid((1, 4), (8,)), 10.0, slow.clock)


class Choosy(Slow):
    """A predictor that refuses feeds of ones, as one may that knows few ids."""

    def run(self, feeds: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        if (feeds["input_ids"] == 1).all():
            raise InvalidInput("these are no ids")
        return super().run(feeds)


def test_real_rows_beside_the_model_are_timed_in_place_of_ones(tmp_path: Path, model: Path) -> None:
    known = load_serving_model(model)
    choosy = Choosy(create_predictor(known, local_conf()))
    grid = Grid((1, 4), (2, 8))
    with pytest.raises(InvalidInput, match="no ids"):
        time_runs(choosy, grid, 10.0, choosy.clock)
    rows = {feed.alias: np.array([[7, 8, 9, 0], [5, 6, 0, 0]]) for feed in known.feeds}
    np.savez(tmp_path / SAMPLE_FILE, **rows)
    feeds_of = feeds_to_time(choosy, tmp_path, known.padding)
    assert feeds_of is not None
    assert feeds_of(3, 5)["input_ids"].tolist() == [[7, 8, 9, 7, 8], [5, 6, 0, 5, 6], [7, 8, 9, 7, 8]]
    points = time_runs(choosy, grid, 10.0, choosy.clock, feeds_of)
    assert {(count, length) for count, length, _ in points} == {(1, 2), (1, 8), (4, 2), (4, 8)}


@pytest.mark.parametrize(
    "arrays",
    [{"other": np.ones((2, 4))}, {"input_ids": np.ones((0, 4))}, {"input_ids": np.array(1)}],
    ids=["of another model", "no rows", "no batch axis"],
)
def test_rows_that_do_not_suit_the_model_are_not_timed(
    tmp_path: Path, model: Path, arrays: dict[str, np.ndarray[Any, Any]]
) -> None:
    np.savez(tmp_path / SAMPLE_FILE, **arrays)
    known = load_serving_model(model)
    predictor = create_predictor(known, local_conf())
    assert feeds_to_time(predictor, tmp_path, known.padding) is None
    predictor.close()


def started(model: Path, cache: Path, **conf: Any) -> ServiceProcess:
    conf = {"model_config": os.fspath(model), "engine": "auto", "thread_num": 1, **conf}
    section = {"batch_size": "auto", "concurrency": 2, "local_service_conf": conf}
    config = {"dag": {"is_thread_op": True}, "op": {"model": section}}
    return ServiceProcess(APPS / "model.py", config, env={"XDG_CACHE_HOME": os.fspath(cache)})


def inputs(row: list[int]) -> dict[str, str]:
    return {
        "input_ids": json.dumps([row]),
        "token_type_ids": json.dumps([[0] * len(row)]),
        "attention_mask": json.dumps([[1] * len(row)]),
    }


def test_a_service_measures_once_keeps_its_choice_and_answers_as_ever(model: Path, tmp_path: Path) -> None:
    with started(model, tmp_path) as service:
        assert "timing onnxruntime" in service.log
        assert CHOSEN in service.log
        assert_answers_as(model, service)
    content = json.loads((model / "serving_server" / "choices.json").read_text())
    assert len(content["choices"]) == 1
    with started(model, tmp_path) as service:
        assert "timing onnxruntime" not in service.log
        assert CHOSEN in service.log


def assert_answers_as(model: Path, service: ServiceProcess) -> None:
    predictor = create_predictor(load_serving_model(model), local_conf())
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda row: service.predict(inputs(row)), ROWS))
    for row, answer in zip(ROWS, answers, strict=True):
        feeds = {name: np.array(json.loads(text)) for name, text in inputs(row).items()}
        np.testing.assert_allclose(json.loads(answer["logits"]), predictor.run(feeds)["logits"], atol=1e-5)


def reload(service: ServiceProcess, version: int) -> None:
    service.process.send_signal(signal.SIGHUP)
    service.wait_for_log(f"Op model runs what is on disk now, version {version}")


def test_a_new_version_that_the_chosen_engine_can_t_run_is_run_by_that_of_its_files(
    model: Path, model_folder: Path, tmp_path: Path
) -> None:
    versions = tmp_path / "versions"
    shutil.copytree(model, versions / "1")
    with started(versions, tmp_path / "cache") as service:
        chosen = {"op": "model", "engine": "onnxruntime", "precision": "fp32"}
        assert CHOSEN in service.log
        assert service.metric(RATE, **chosen) > 0
        shutil.copytree(models.classifier(model_folder), versions / "2")  # a Paddle program without others
        reload(service, 2)
        assert (
            f"{versions}/2 runs by engine paddle in fp32, for onnxruntime in fp32 was chosen" in service.log
        )
        assert_answers_as(versions / "2", service)
        assert service.metric(RATE) == 0
        shutil.copytree(model, versions / "3")
        reload(service, 3)
        assert_answers_as(versions / "3", service)
        assert service.metric(RATE, **chosen) > 0
        assert service.log.count("was chosen for another version") == 1


def test_onednn_is_a_candidate_that_real_rows_prove(model_folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(models.classifier(model_folder), model)
    lengths = np.array([2, 3, 4, 7])
    filled = (np.arange(8) < lengths[:, None]).astype("int64")
    rows = {"input_ids": 5 * filled, "token_type_ids": 0 * filled, "attention_mask": filled}
    np.savez(model / "serving_server" / SAMPLE_FILE, **rows)
    with started(model, tmp_path / "cache") as service:
        assert re.search(r"paddle fp32 with oneDNN(: \d+ rows/s, alone|, batches of)", service.log)
        assert_answers_as(model, service)


@pytest.mark.parametrize("onednn", [True, False])
def test_onednn_is_used_where_it_was_chosen(onednn: bool) -> None:
    conf = LocalServiceConf.model_validate({"engine": "auto", "model_config": "m"})
    choice = choose([timed("paddle", 1.0, 0.5, onednn=onednn)])
    section = auto.with_choice(OpConfig(local_service_conf=conf), choice)
    assert section.local_service_conf is not None
    assert section.local_service_conf.use_mkldnn is (True if onednn else None)


def test_the_choice_is_told_where_the_configuration_is_printed(model: Path, tmp_path: Path) -> None:
    conf = {"model_config": os.fspath(model), "engine": "auto"}
    config = {"http_port": free_port(), "op": {"model": {"local_service_conf": conf}}}
    file = tmp_path / "config.yml"
    file.write_text(yaml.safe_dump(config), "utf-8")
    command = [sys.executable, "-m", "pipeline", "run", "--config", file, "--print-config", APPS / "model.py"]
    env = os.environ | {"SERVICE_CONFIG": os.fspath(file)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=True)
    assert f"# op.model, {CHOSEN}" in done.stdout
    assert yaml.safe_load(done.stdout)["op"]["model"]["local_service_conf"]["engine"] == "onnxruntime"


@pytest.mark.parametrize("among", [None, [], [{"engine": "onnxruntime", "precision": "fp32"}]])
def test_a_damaged_file_of_choices_is_measured_anew_and_that_is_told_once(
    tmp_path: Path, among: list[Any] | None
) -> None:
    model = onnx_models.serving(tmp_path)
    file = model / "serving_server" / "choices.json"
    file.write_text("{" if among is None else json.dumps({"choices": {"a key": {"among": among}}}))
    with started(model, tmp_path / "cache") as service:
        assert "timing onnxruntime" in service.log
        assert service.log.count(f"{file} is no file of choices") == 1
    assert list(json.loads(file.read_text())["choices"]) != ["a key"]


def test_of_two_starts_that_measured_at_once_both_take_the_choice_of_the_first(tmp_path: Path) -> None:
    model = load_serving_model(onnx_models.serving(tmp_path))
    first, second = (choose([timed(name, 1.0, 0.5)]) for name in ("onnxruntime", "openvino"))
    assert write_choice(model, "key", "facts", first) == first
    assert write_choice(model, "key", "facts", second) == first
    assert read_choice(model, "key") == first


def test_where_no_folder_can_be_written_the_choice_counts_and_the_places_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user without a home folder
    file = tmp_path / "file"
    file.touch()
    model = replace(load_serving_model(onnx_models.serving(tmp_path)), directory=file)
    choice = choose([timed("onnxruntime", 1.0, 0.5)])
    assert write_choice(model, "key", "facts", choice) == choice
    assert f"the choice can't be kept in {file}/choices.json or /proc/no-home-folder/" in caplog.text
    assert read_choice(model, "key") is None


def test_what_can_t_be_kept_leaves_no_file_behind(tmp_path: Path) -> None:
    model = load_serving_model(onnx_models.serving(tmp_path))
    (model.directory / CHOICES_FILE).mkdir()
    before = sorted(model.directory.iterdir())
    write_choice(model, "key", "facts", choose([timed("onnxruntime", 1.0, 0.5)]))
    assert sorted(model.directory.iterdir()) == before


def test_candidates_are_timed_without_a_folder_for_temporary_files(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/proc/none")
    conf = {"model_config": os.fspath(model), "engine": "onnxruntime"}
    assert not timed_runs.timed(timed_runs.Order("onnxruntime", "fp32", conf, [1, 2], [8], 0.1)).refused


def test_a_model_that_made_up_feeds_do_not_suit_is_served_as_without_auto(tmp_path: Path) -> None:
    model = onnx_models.serving(tmp_path, "speech", padded=False)
    with started(model, tmp_path / "cache") as service:
        assert f"Op model: {model} can't be timed on feeds that are made up, and runs as" in service.log
        feeds = {"input": [[0.5] * 576], "state": [[[0.0] * 4]] * 2, "sr": 16000}
        assert service.predict({name: json.dumps(value) for name, value in feeds.items()})


@pytest.mark.parametrize(("name", "rows"), [("photos_of_four", {1}), ("images", {1, 2, 4, 8, 16, 32})])
def test_sizes_are_timed_that_the_model_has(tmp_path: Path, name: str, rows: set[int]) -> None:
    model = onnx_models.serving(tmp_path, name, padded=False)
    with started(model, tmp_path / "cache", engine="onnxruntime") as service:
        assert CHOSEN in service.log
    (choice,) = json.loads((model / "serving_server" / CHOICES_FILE).read_text())["choices"].values()
    points = choice["among"][0]["points"]
    assert {point[0] for point in points} == rows
    assert {point[1] for point in points} == {16}  # of images sides of 64, as in the warm-up


def test_a_precision_that_no_engine_here_has_is_fp32_with_the_warning_of_a_named_engine(
    tmp_path: Path,
) -> None:
    model = onnx_models.serving(tmp_path)
    with started(model, tmp_path / "cache", precision="fp16") as service:
        assert (
            service.log.count("timing onnxruntime, openvino") == 2
        )  # those that have it, then those that run
        assert "precision fp16 is not" in service.log
        assert service.predict(inputs([1, 2, 3]))


def test_what_no_engine_can_run_ends_the_start_with_each_ones_reason(tmp_path: Path) -> None:
    model = onnx_models.serving(tmp_path)
    program = next((model / "serving_server").glob("*.onnx"))
    program.write_bytes(program.read_bytes()[:-200])
    conf = {"model_config": os.fspath(model), "engine": "auto"}
    with ServiceProcess(
        APPS / "model.py", {"op": {"model": {"local_service_conf": conf}}}, wait=False
    ) as service:
        assert service.exit_code() == 2
        assert program.name in service.log
