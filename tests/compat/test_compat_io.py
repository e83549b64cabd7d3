"""`paddle_serving_client.io`: serving models from programs in memory, layers, and folders of old programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.engines import create_predictor
from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import old_models
from tests.support.models import local_conf
from tests.support.service_process import ROOT

STATIC = """
import paddle
import paddle_serving_client.io as serving_io

paddle.enable_static()
x = paddle.static.data("x", [None, 13], "float32")
price = paddle.static.nn.fc(x, 1, weight_attr=paddle.nn.initializer.Constant(0.5))
cost = paddle.mean(price)
executor = paddle.static.Executor(paddle.CPUPlace())
executor.run(paddle.static.default_startup_program())
serving_io.save_model("uci_model", "uci_client", {"house": x}, {"price": price, "double": price * 2})
print(paddle.in_dynamic_mode())
"""
LAYER = """
import paddle
from paddle_serving_client.io import save_dygraph_model

layer = paddle.nn.Sequential(paddle.nn.Linear(4, 2), paddle.nn.Dropout(0.9))
try:
    save_dygraph_model("server", "client", layer)
except Exception as exc:
    print(type(exc).__name__, "InputSpec([None, 13], 'float32', 'x')" in str(exc))
spec = [paddle.static.InputSpec([None, 4], "float32", "features")]
layer = paddle.jit.to_static(layer, input_spec=spec, full_graph=True)
save_dygraph_model("server", "out/client", layer)
print(layer.training, paddle.in_dynamic_mode())
"""
RECURRENT = """
import paddle
from paddle_serving_client.io import inference_model_to_serving

class Recurrent(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.cells = paddle.nn.GRU(2, 3, num_layers=2)

    def forward(self, x, state):
        return self.cells(x, state)

given = [([1, None, 2], "x"), ([2, 1, 3], "state")]
spec = [paddle.static.InputSpec(shape, "float32", name) for shape, name in given]
paddle.jit.save(Recurrent(), "exported/model", input_spec=spec)
print(inference_model_to_serving("exported")[0])
"""
NAMES = """
from paddle_serving_client.io import inference_model_to_serving
print(inference_model_to_serving({!r}, **{!r}))
"""


def run(code: str, folder: Path) -> list[str]:
    """What a script in `folder` prints."""
    (folder / "script.py").write_text(code, "utf-8")
    env = os.environ | {"PYTHONPATH": f"{ROOT}:{ROOT / 'compat'}", "GLOG_minloglevel": "2"}
    command = [sys.executable, "-W", "ignore", "script.py"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (folder / "script.py").unlink()
    return done.stdout.splitlines()


def predict(model: ServingModel, **feeds: object) -> dict[str, list[object]]:
    predictor = create_predictor(model, local_conf())
    dtypes = {feed.alias: feed.numpy_dtype for feed in model.feeds}
    fetches = predictor.run({name: np.array(value, dtypes[name]) for name, value in feeds.items()})
    return {name: fetch.tolist() for name, fetch in fetches.items()}


def test_a_static_program_is_saved_under_its_aliases_without_what_the_fetches_do_not_need(
    tmp_path: Path,
) -> None:
    assert run(STATIC, tmp_path) == ["False"]  # the script is in the mode it was in
    model = load_serving_model(tmp_path / "uci_model")
    assert [(feed.name, feed.alias, feed.shape) for feed in model.feeds] == [("x", "house", (-1, 13))]
    assert [fetch.alias for fetch in model.fetches] == ["double", "price"]
    assert predict(model, house=np.ones((2, 13))) == {"double": [[13.0]] * 2, "price": [[6.5]] * 2}
    confs = [
        tmp_path / "uci_model/serving_server_conf.prototxt",
        tmp_path / "uci_client/serving_client_conf.prototxt",
    ]
    assert confs[0].read_bytes() == confs[1].read_bytes()


def test_a_layer_is_saved_for_evaluation_and_left_in_training(tmp_path: Path) -> None:
    assert run(LAYER, tmp_path) == ["ConversionError True", "True True"]
    model = load_serving_model(tmp_path / "server")
    assert (tmp_path / "out/client/serving_client_conf.prototxt").is_file()
    assert model.feeds[0].alias == "features"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "server"]
    (once,) = predict(model, features=[[1, 2, 3, 4]]).values()
    assert np.any(once)
    assert predict(model, features=[[1, 2, 3, 4]] * 8) == {
        model.fetches[0].alias: once * 8
    }  # nothing drops out


def test_a_program_with_a_file_for_each_weight_is_converted(model_folder: Path, tmp_path: Path) -> None:
    source = old_models.single_words(model_folder)
    options = {"feed_alias_names": "word", "fetch_alias_names": "score"}
    (printed,) = run(NAMES.format(str(source), options), tmp_path)
    assert printed.startswith("(['words'], ['")
    model = load_serving_model(tmp_path / "serving_server")
    assert predict(model, word=[[3], [4]]) == {"score": [[3.5, 1.0], [4.5, 1.0]]}


def test_a_program_of_sequences_keeps_its_feeds_ragged(model_folder: Path, tmp_path: Path) -> None:
    run(NAMES.format(str(old_models.bag_of_words(model_folder)), {"fetch_alias_names": "score"}), tmp_path)
    model = load_serving_model(tmp_path / "serving_server")
    predictor = create_predictor(model, local_conf())
    feeds = {"words": np.array([[1], [2], [3]]), "words.lod": np.array([0, 1, 3])}
    assert predictor.run(feeds)["score"].tolist() == [[1.5, 1.0], [5.5, 2.0]]


def test_a_recurrent_state_and_a_fixed_batch_keep_their_shapes(tmp_path: Path) -> None:
    assert run(RECURRENT, tmp_path) == ["['x', 'state']"]
    model = load_serving_model(tmp_path / "serving_server")
    assert [feed.shape for feed in model.feeds] == [(1, -1, 2), (2, 1, 3)]
    predictor = create_predictor(model, local_conf())
    assert not predictor.merges
    fetches = predictor.run({"x": np.ones((1, 5, 2)), "state": np.zeros((2, 1, 3))})
    assert [fetch.shape for fetch in fetches.values()] == [(1, 5, 3), (2, 1, 3)]


def test_show_proto_prints_the_description_and_writes_nothing(model_folder: Path, tmp_path: Path) -> None:
    source = old_models.single_words(model_folder)
    printed = run(NAMES.format(str(source), {"show_proto": True}), tmp_path)
    assert '  alias_name: "words"' in printed
    assert list(tmp_path.iterdir()) == []


def test_a_missing_weight_is_named(model_folder: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    shutil.copytree(old_models.single_words(model_folder), source)
    (source / "bias").unlink()
    with pytest.raises(AssertionError, match="has 2 weights, but neither one file for all of them nor bias"):
        run(NAMES.format(str(source), {}), tmp_path)


def test_several_programs_are_converted_by_one_call(model_folder: Path, tmp_path: Path) -> None:
    source = old_models.single_words(model_folder)
    printed = run(
        "from paddle_serving_client.io import inference_model_to_serving_multi as convert\n"
        f"names = convert([{str(source)!r}] * 2, ['a/server', 'b/server'], ['a/client', 'b/client'])\n"
        "print(len(names), names[0] == names[1])\n"
        "try:\n    convert(['one'], ['two', 'three'], ['four'])\n"
        "except Exception as exc:\n    print(type(exc).__name__, '1 programs, 2 server' in str(exc))\n",
        tmp_path,
    )
    assert printed == ["2 True", "ConversionError True"]
    for name in "ab":
        model = load_serving_model(tmp_path / name / "server")
        assert predict(model, words=[[3]]) == {model.fetches[0].alias: [[3.5, 1.0]]}
