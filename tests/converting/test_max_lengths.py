"""The greatest length that a model takes: found at conversion, kept to by padding, told to who sends more."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from convert.cli import main
from pipeline.errors import ConfigError
from pipeline.models.serving_model import load_serving_model
from tests.support import onnx_models
from tests.support.service_process import APPS, ROOT, HttpAnswer, ServiceProcess

POSITIONS = 130
PADDING = ",".join(f"{name}=0" for name in onnx_models.FEEDS)
LAYER = """
import paddle


class Classifier(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.words, self.positions = paddle.nn.Embedding(64, 8), paddle.nn.Embedding(130, 8)
        self.output = paddle.nn.Linear(8, 3)

    def forward(self, input_ids, attention_mask):
        places = paddle.arange(input_ids.shape[1], dtype="int64")
        mask = attention_mask.astype("float32").unsqueeze(-1)
        states = (self.words(input_ids) + self.positions(places)) * mask
        return self.output(states.sum(1) / mask.sum(1).clip(min=1.0))
"""
ERNIE = ROOT / "tests/fixtures/pdmodel/ernie"


@pytest.fixture(scope="module", params=["onnx", "paddle"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 130 positions whose feeds may be padded, as the conversion leaves it."""
    folder = tmp_path_factory.mktemp("positions")
    if request.param == "onnx":
        source = str(onnx_models.onnx_file("positions"))
        assert main(["serving", source, str(folder / "served"), "--padding", PADDING]) == 0
        return folder / "served"
    (folder / "positions_layer.py").write_text(LAYER, "utf-8")
    spec = "input_ids:int64[-1,-1];attention_mask:int64[-1,-1]"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        source = "positions_layer:Classifier"
        assert main(["all", source, str(folder / "served"), "--input-spec", spec, "--engine", "paddle"]) == 0
    return folder / "served"


def service(model: Path, **keys: Any) -> ServiceProcess:
    op = {"batch_size": 8, "local_service_conf": {"model_config": str(model), "thread_num": 1}, **keys}
    return ServiceProcess(APPS / "model.py", {"op": {"model": op}, "dag": {"http_errors": "status"}})


def ask(running: ServiceProcess, message: dict[str, list[str]]) -> HttpAnswer:
    return running.http("/test/prediction", json.dumps(message))


def body(model: Path, length: int) -> dict[str, list[str]]:
    feeds = [feed.alias for feed in load_serving_model(model).feeds]
    return {"key": feeds, "value": [json.dumps([[1] * length])] * len(feeds)}


def test_the_limit_stands_in_serving_yml(served: Path) -> None:
    model = load_serving_model(served)
    assert {feed.longest for feed in model.feeds} == {(1, POSITIONS)}
    assert model.padding is not None and model.padding.feeds.keys() == {feed.alias for feed in model.feeds}


def test_padding_keeps_within_the_limit_and_longer_feeds_are_refused_by_name(served: Path) -> None:
    lengths = [1, 7, 121, 128, 129, 130, 129, 130]
    with service(served) as running:
        alone = [ask(running, body(served, length)) for length in lengths]
        assert [answer.status for answer in alone] == [200] * len(lengths), [a.body for a in alone]
        with ThreadPoolExecutor(len(lengths)) as pool:
            together = list(pool.map(lambda length: ask(running, body(served, length)), lengths))
        for one, other in zip(alone, together, strict=True):
            expected, found = (json.loads(answer.json["value"][0]) for answer in (one, other))
            np.testing.assert_allclose(found, expected, atol=1e-4)
        for length in (131, 144, 400):
            answer = ask(running, body(served, length))
            assert answer.status == 400
            told = answer.json["err_msg"]
            assert f"has length {length} on axis 1, and the model takes {POSITIONS} at most" in told
            assert "feed 'input_ids'" in told
        for length, status in ((129, 200), (131, 400)):
            feeds = body(served, length)["key"]
            tensors = [
                {"name": name, "shape": [1, length], "datatype": "INT64", "data": [1] * length}
                for name in feeds
            ]
            infer = running.http("/v2/models/model/infer", json.dumps({"inputs": tensors}))
            instance = dict.fromkeys(feeds, [1] * length)
            predict = running.http("/v1/models/model:predict", json.dumps({"instances": [instance]}))
            assert [infer.status, predict.status] == [status] * 2


def test_length_buckets_over_the_limit_are_cut_to_it(served: Path) -> None:
    with service(served, length_buckets=[64, 256]) as running:
        assert [ask(running, body(served, length)).status for length in (65, 130, 131)] == [200, 200, 400]


def test_a_limit_under_the_warm_up_s_lengths_is_no_obstacle(served: Path, tmp_path: Path) -> None:
    additions = served / "serving_server/serving.yml"
    before = additions.read_text("utf-8")
    document = yaml.safe_load(before)
    for entry in document["max_lengths"].values():
        entry["length"] = 12
    additions.write_text(yaml.safe_dump(document), "utf-8")
    try:
        with service(served) as running:
            running.wait_for_log("is warm")
            assert [ask(running, body(served, length)).status for length in (12, 13)] == [200, 400]
    finally:
        additions.write_text(before, "utf-8")


def limits(tmp_path: Path, source: Path, *options: str) -> Any:
    assert main(["serving", str(source), str(tmp_path / "served"), *options]) == 0
    additions = yaml.safe_load((tmp_path / "served/serving_server/serving.yml").read_text("utf-8"))
    return additions.get("max_lengths")


def test_a_model_that_may_not_be_padded_has_its_limit_too(tmp_path: Path) -> None:
    found = limits(tmp_path, ERNIE)
    assert found and {(entry["axis"], entry["length"]) for entry in found.values()} == {(1, 128)}


@pytest.mark.parametrize("name", ["classifier", "images", "stateful", "dtypes", "mixes_rows"])
def test_a_model_without_a_limit_has_none(tmp_path: Path, name: str) -> None:
    assert limits(tmp_path, onnx_models.onnx_file(name)) is None


def test_a_length_that_was_tried_may_be_the_limit(tmp_path: Path) -> None:
    found = limits(tmp_path, onnx_models.onnx_file("positions"), "--lengths", str(POSITIONS))
    assert {entry["length"] for entry in found.values()} == {POSITIONS}


def test_a_check_tries_no_length_that_the_model_does_not_take(tmp_path: Path) -> None:
    served = onnx_models.serving(tmp_path, "positions")
    additions = served / "serving_server/serving.yml"
    document = yaml.safe_load(additions.read_text("utf-8"))
    limits = {name: {"axis": 1, "length": 20} for name in onnx_models.FEEDS}
    additions.write_text(yaml.safe_dump({**document, "max_lengths": limits}), "utf-8")
    report = tmp_path / "parity.json"
    command = ["check", str(served), str(onnx_models.onnx_file("positions")), "--report", str(report)]
    assert main(command) == 0
    lengths = {shape[1] for shape in json.loads(report.read_text("utf-8"))[0]["batches"]}
    assert lengths == {5, 16, 20}


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ({"ids": {"axis": 1, "length": 5}}, "max_lengths.ids: the model has only input_ids"),
        ({"input_ids": 5}, "max_lengths.input_ids is not of the form {axis: 1, length: 512}"),
        ({"input_ids": {"axis": 0, "length": 5}}, "max_lengths.input_ids: axis 0 is not one of 1 to 1"),
        ({"input_ids": {"axis": 1, "length": 0}}, "length 0 is not a whole number from 1 up"),
        ([5], "max_lengths is not a mapping"),
    ],
)
def test_a_mistake_in_serving_yml_is_told(tmp_path: Path, entry: object, told: str) -> None:
    served = onnx_models.serving(tmp_path)
    (served / "serving_server/serving.yml").write_text(yaml.safe_dump({"max_lengths": entry}), "utf-8")
    with pytest.raises(ConfigError) as caught:
        load_serving_model(served)
    assert told in caught.value.message
