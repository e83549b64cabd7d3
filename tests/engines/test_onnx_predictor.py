"""Small real ONNX models through `create_predictor`: what they compute, cast and refuse."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from convert.cli import main
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import DynamicShapes, Predictor, create_predictor, input_examples
from pipeline.engines.device import Device
from pipeline.engines.dynamic_shape import TensorRange, format_ranges
from pipeline.engines.onnxruntime.onnx_predictor import session_options, session_plans
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.serving_model import ServingModel, load_serving_model
from pipeline.paddle_serving.op_settings import LocalClient
from tests.support import models, onnx_models
from tests.support.models import local_conf

Array = np.ndarray[Any, np.dtype[Any]]
PROFILE = {"input_ids": (1, 16), "token_type_ids": (1, 16), "attention_mask": (1, 16)}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServingModel:
    return load_serving_model(onnx_models.serving(tmp_path_factory.mktemp("onnx")))


@pytest.fixture(scope="module")
def predictor(served: ServingModel) -> Predictor:
    return create_predictor(served, local_conf())


def texts(rows: list[list[int]], length: int | None = None) -> dict[str, Array]:
    """Feeds of rows of ids, padded with id 0 to the longest row or to `length`."""
    width = length or max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}


def expected_logits(row: list[int]) -> Array:
    """The classifier in NumPy, from the same random weights."""
    random = np.random.default_rng(7)
    shapes: list[tuple[int, ...]] = [(64, 16), (2, 16), (16, 3), (3,)]
    words, types, weight, bias = (random.standard_normal(shape).astype(np.float32) for shape in shapes)
    return (words[row] + types[0]).mean(0) @ weight + bias


@pytest.mark.parametrize("ir_optim", [False, True])
def test_a_row_answers_as_numpy_does_alone_padded_and_in_a_batch(
    served: ServingModel, ir_optim: bool
) -> None:
    predictor = create_predictor(served, local_conf(ir_optim=ir_optim))
    rows = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    expected = np.stack([expected_logits(row) for row in rows])
    for feeds in (texts(rows), texts(rows, length=64)):
        np.testing.assert_allclose(predictor.run(feeds)["logits"], expected, atol=1e-5)
    alone = np.concatenate([predictor.run(texts([row]))["logits"] for row in rows])
    np.testing.assert_allclose(alone, expected, atol=1e-5)


def test_every_dtype_goes_through_as_it_is(tmp_path: Path) -> None:
    predictor = create_predictor(
        load_serving_model(onnx_models.serving(tmp_path, "dtypes", padded=False)), local_conf()
    )
    feeds = input_examples(predictor, rows=2, length=2)
    kinds = {name: array.dtype.name for name, array in feeds.items()}
    assert kinds == {
        "half": "float16", "double": "float64", "int64": "int64", "int32": "int32", "int16": "int16",
        "int8": "int8", "uint8": "uint8", "flag": "bool", "text": "object",
    }  # fmt: skip
    feeds["half"] = np.array([[0.5, -2], [65504, 1e-3]], np.float16)
    feeds["text"] = np.array([["新闻", b"caf\xc3\xa9"], ["", "a"]], object)
    fetches = predictor.run(feeds)
    for name, array in feeds.items():
        assert fetches[f"{name}_out"].dtype == array.dtype
        if name != "text":
            np.testing.assert_array_equal(fetches[f"{name}_out"], array)
    assert fetches["text_out"].tolist() == [["新闻", "café"], ["", "a"]]
    by_client = LocalClient(predictor).predict(feeds, ["text_out", "half_out"], batch=True)
    assert by_client["text_out"].tolist() == [["新闻", "café"], ["", "a"]]
    assert predictor.run(feeds | {"text": np.array([["a", "b"]] * 2)})["text_out"][0, 1] == "b"
    for value, told in ((b"\xff", "are no UTF-8"), (7, "holds a int, expected str or bytes")):
        with pytest.raises(InvalidInput, match=f"feed 'text' holds .*{told}|feed 'text' {told}"):
            predictor.run(feeds | {"text": np.array([[value, "a"]] * 2, object)})


def test_a_folder_with_an_onnx_file_alone_describes_itself(tmp_path: Path) -> None:
    model = load_serving_model(onnx_models.bare(tmp_path, "images"))
    assert [(v.alias, v.dtype, v.shape) for v in (*model.feeds, *model.fetches)] == [
        ("image", "float32", (-1, 3, -1, -1)),
        ("doubled", "float32", (-1, 3, -1, -1)),
    ]
    image = np.random.default_rng(0).random((2, 3, 4, 5), dtype=np.float32)
    doubled = create_predictor(model, local_conf()).run({"image": image})["doubled"]
    np.testing.assert_allclose(doubled, image * 2 + np.arange(3).reshape(1, 3, 1, 1), rtol=1e-6)


def test_requests_share_a_run_only_where_rows_can_be_told_apart(tmp_path: Path, predictor: Predictor) -> None:
    assert predictor.merges
    fixed, finder = (
        create_predictor(load_serving_model(onnx_models.bare(tmp_path, name)), local_conf())
        for name in ("fixed", "finder")
    )
    assert not fixed.merges
    assert not finder.merges
    fetches = fixed.run({"x": np.ones((1, 4)), "rate": np.array(2.5)})
    assert fetches["y"].tolist() == [[2.5] * 4]
    with pytest.raises(InvalidInput, match=r"has shape \(2, 4\), expected float32 \[1, 4\]"):
        fixed.run({"x": np.ones((2, 4)), "rate": np.array(2.5)})


def test_weights_in_a_file_of_their_own_are_found(tmp_path: Path, predictor: Predictor) -> None:
    target = onnx_models.serving(tmp_path, "external/classifier")
    other = create_predictor(load_serving_model(target), local_conf())
    feeds = texts([[5, 6, 7]])
    np.testing.assert_array_equal(other.run(feeds)["logits"], predictor.run(feeds)["logits"])
    (target / "serving_server" / "classifier.data").unlink()
    with pytest.raises(ConfigError, match=r"can't be loaded by ONNX Runtime .*: .*classifier\.data"):
        create_predictor(load_serving_model(target), local_conf())


def test_a_refusal_of_the_engine_is_one_sentence_and_the_next_run_works(predictor: Predictor) -> None:
    good = texts([[5, 6, 7]])
    before = predictor.run(good)["logits"]
    with pytest.raises(UnusableFeed, match="feed 'input_ids' holds 64; the model has -64 to 63"):
        predictor.run(good | {"input_ids": np.full((1, 3), 64)})
    with pytest.raises(ModelFailed, match="Attempting to broadcast") as caught:
        predictor.run(good | {"input_ids": np.ones((1, 2), np.int64)})
    assert not any(sign in caught.value.message for sign in ("\n", "ONNXRuntimeError", "/onnxruntime"))
    np.testing.assert_array_equal(predictor.run(good)["logits"], before)


def test_a_fetch_that_is_declared_for_one_row_has_the_shape_that_runs_show(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "pipeline"):
        table = create_predictor(load_serving_model(onnx_models.bare(tmp_path, "table")), local_conf())
    assert [(fetch.alias, fetch.shape) for fetch in table.fetches] == [
        ("label", (-1,)),
        ("probabilities", (-1, 3)),
    ]
    assert table.merges
    assert "declares label as [1], and answers [-1]: a row for each row fed" in caplog.text
    assert "run alone" not in caplog.text
    assert table.run({"input": np.ones((5, 4))})["label"].shape == (5,)


def test_feeds_are_checked_as_those_of_a_paddle_model(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    small = {name: array.astype(np.int32) for name, array in feeds.items()}
    np.testing.assert_array_equal(predictor.run(small)["logits"], predictor.run(feeds)["logits"])
    with pytest.raises(InvalidInput, match="feed 'input_ids' is float64 with values beyond int64"):
        predictor.run(feeds | {"input_ids": np.full((1, 3), 1.5)})
    del feeds["token_type_ids"]
    with pytest.raises(InvalidInput, match="feed 'token_type_ids' is missing"):
        predictor.run(feeds)


def test_many_threads_share_one_session(predictor: Predictor) -> None:
    rows = [[number % 64] * (1 + number % 9) for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda row: predictor.run(texts([row]))["logits"][0], rows))
    np.testing.assert_allclose(answers, [expected_logits(row) for row in rows], atol=1e-5)


def test_a_closed_predictor_says_so(served: ServingModel) -> None:
    predictor = create_predictor(served, local_conf(fetch_list=["logits"]))
    predictor.close()
    with pytest.raises(ModelFailed, match="the predictor is closed"):
        predictor.run(texts([[5]]))


def _another_dtype(model: ServingModel) -> ServingModel:
    return dataclasses.replace(
        model, feeds=(dataclasses.replace(model.feeds[0], dtype="int32"), *model.feeds[1:])
    )


def _another_fetch(model: ServingModel) -> ServingModel:
    return dataclasses.replace(model, fetches=(dataclasses.replace(model.fetches[0], name="probs"),))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_another_dtype, "feed 'input_ids' is int32 there, and int64 in the model"),
        (_another_fetch, "fetch 'probs' is only in one of them; the model has logits"),
        (lambda m: dataclasses.replace(m, feeds=m.feeds[:2]), "feed 'attention_mask' is only in one of them"),
    ],
)
def test_a_description_of_another_model_is_told_at_the_start(
    served: ServingModel, change: Callable[[ServingModel], ServingModel], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        create_predictor(change(served), local_conf())


@pytest.mark.parametrize(
    "content", [b"", b"no model", b"\xff" * 50, None], ids=["empty", "text", "bytes", "cut"]
)
def test_a_file_that_is_no_whole_model_is_told_in_one_sentence(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(onnx_models.onnx_file("classifier").read_bytes()[:3000] if content is None else content)
    with pytest.raises(ConfigError, match=r"model\.onnx is not an ONNX model \(") as caught:
        load_serving_model(tmp_path)
    assert "\n" not in caught.value.message


def test_outputs_that_are_no_tensors_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="output 'all' is no tensor"):
        load_serving_model(onnx_models.bare(tmp_path, "sequence"))


def test_the_session_is_what_the_keys_say() -> None:
    options = session_options(local_conf(thread_num=3, ir_optim=True, mem_optim=False))
    levels = onnxruntime.GraphOptimizationLevel
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert options.graph_optimization_level == levels.ORT_ENABLE_ALL
    assert (options.enable_mem_reuse, options.enable_cpu_mem_arena) == (False, False)
    options = session_options(local_conf())
    assert options.graph_optimization_level == levels.ORT_ENABLE_BASIC
    assert (options.enable_mem_reuse, options.enable_mem_pattern) == (True, False)


def test_instances_take_the_cards_in_turn(served: ServingModel) -> None:
    conf = local_conf(device_type=1, devices="2,5")
    plans = [session_plans(served, conf, Device.GPU, instance_index=index) for index in range(3)]
    assert [plan.providers[0] for (plan,) in plans] == [
        ("CUDAExecutionProvider", {"device_id": card}) for card in ("2", "5", "2")
    ]


def test_dynamic_shapes_become_tensorrt_s_profile(served: ServingModel, tmp_path: Path) -> None:
    shapes = DynamicShapes(PROFILE, PROFILE, dict.fromkeys(PROFILE, (32, 128)))
    conf = local_conf(device_type=2, tensorrt={"precision": "fp16", "cache_dir": str(tmp_path)})
    (plan,) = session_plans(served, conf, Device.TENSORRT, dynamic_shapes=shapes)
    (name, options), *others = plan.providers
    assert (name, [other for other, _ in others]) == (
        "TensorrtExecutionProvider",
        ["CUDAExecutionProvider", "CPUExecutionProvider"],
    )
    assert options["trt_profile_min_shapes"] == "input_ids:1x16,token_type_ids:1x16,attention_mask:1x16"
    assert options["trt_profile_max_shapes"] == "input_ids:32x128,token_type_ids:32x128,attention_mask:32x128"
    assert (options["trt_fp16_enable"], options["trt_engine_cache_path"]) == ("1", str(tmp_path))
    with pytest.raises(ConfigError, match="TensorRT needs the shapes of feed 'input_ids'"):
        session_plans(served, conf, Device.TENSORRT)
    collecting = local_conf(device_type=2, tensorrt={"cache_dir": str(tmp_path), "auto_collect": True})
    with pytest.raises(ConfigError, match=r"auto_collect is for \.pdmodel programs: give min, opt and max"):
        session_plans(served, collecting, Device.TENSORRT)


def test_of_a_paddle_program_s_shapes_the_inputs_become_the_profile(
    served: ServingModel, tmp_path: Path
) -> None:
    names = [*PROFILE, "softmax_0.tmp_0"]
    ranges = {name: TensorRange(min=(1, 16), opt=(8, 64), max=(32, 128)) for name in names}
    file = tmp_path / "shapes.pbtxt"
    file.write_text(format_ranges(ranges))
    conf = local_conf(device_type=2, tensorrt={"cache_dir": str(tmp_path), "shapes": str(file)})
    (plan,) = session_plans(served, conf, Device.TENSORRT)
    profile = plan.providers[0][1]["trt_profile_opt_shapes"]
    assert profile == "input_ids:8x64,token_type_ids:8x64,attention_mask:8x64"


def three_classes(served: ServingModel, folder: Path) -> LocalServiceConf:
    """A file for the lengths to 8, to 16 and to 32, as `convert shapes` writes it of the ONNX model."""
    files = []
    for shortest, longest in ((1, 8), (9, 16), (17, 32)):
        files.append(str(folder / f"shapes-{longest}.pbtxt"))
        sizes = ("--lengths", f"{shortest},{longest}", "--batches", "1,4")
        assert main(["shapes", str(served.directory), files[-1], *sizes]) == 0
    return local_conf(device_type=2, precision="fp16", tensorrt={"cache_dir": str(folder), "shapes": files})


def test_each_length_class_has_a_session_with_its_profile_and_engines(
    served: ServingModel, tmp_path: Path
) -> None:
    plans = session_plans(served, three_classes(served, tmp_path), Device.TENSORRT)
    options = [plan.providers[0][1] for plan in plans]
    assert [of["trt_profile_min_shapes"].partition(",")[0] for of in options] == [
        f"input_ids:1x{length}" for length in (1, 9, 17)
    ]
    assert [of["trt_profile_max_shapes"].partition(",")[0] for of in options] == [
        f"input_ids:4x{length}" for length in (8, 16, 32)
    ]
    assert {of["trt_fp16_enable"] for of in options} == {"1"}
    folders = [of["trt_engine_cache_path"] for of in options]
    assert folders == [str(tmp_path / f"profile-{number}") for number in (1, 2, 3)]


def test_a_batch_is_run_by_the_length_class_that_holds_it(
    served: ServingModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sessions are of the CPU; the shapes and the choice are TensorRT's."""
    expected = create_predictor(served, local_conf())
    plans = session_plans(served, three_classes(served, tmp_path), Device.TENSORRT)
    cpu = [plan._replace(providers=[("CPUExecutionProvider", {})]) for plan in plans]
    monkeypatch.setattr("pipeline.engines.onnxruntime.onnx_predictor.session_plans", lambda *_, **__: cpu)
    predictor = create_predictor(served, local_conf())
    for rows, length in ((1, 1), (4, 8), (2, 9), (4, 16), (1, 32)):
        feeds = input_examples(served, rows, length)
        assert np.array_equal(predictor.run(feeds)["logits"], expected.run(feeds)["logits"])
    with pytest.raises(InvalidInput, match=r"none of the 3 TensorRT profiles .* takes input_ids \[1, 33\]"):
        predictor.run(input_examples(served, 1, 33))
    with pytest.raises(InvalidInput, match=r"takes input_ids \[5, 8\]"):
        predictor.run(input_examples(served, 5, 8))


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"device_type": 1}, "device_type 1 needs CUDAExecutionProvider.*install onnxruntime-gpu"),
        ({"devices": "0"}, "device_type 1 needs CUDAExecutionProvider"),
        ({"device_type": 2}, "device_type 2 needs TensorrtExecutionProvider"),
        ({"device_type": 4}, r"device_type 4 \(xpu\) is not served"),
        (
            {"precision": "fp16", "strict_precision": True},
            "precision fp16 is not for ONNX Runtime on cpu: .*; local_service_conf.strict_precision is set",
        ),
        ({"use_calib": True, "strict_precision": True}, "use_calib: true is not for ONNX Runtime"),
    ],
)
def test_what_this_build_can_t_do_is_refused_with_the_remedy(
    served: ServingModel, keys: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        create_predictor(served, local_conf(**keys))


@pytest.mark.parametrize("keys", [{"precision": "int8"}, {"precision": "fp16", "use_calib": True}])
def test_a_precision_that_is_not_in_the_file_is_a_warning(
    served: ServingModel, keys: Mapping[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    feeds = input_examples(served, 1, 4)
    expected = create_predictor(served, local_conf()).run(feeds)
    caplog.clear()
    given = create_predictor(served, local_conf(**keys)).run(feeds)
    assert all(np.array_equal(given[name], expected[name]) for name in expected)
    assert "is not for ONNX Runtime on cpu: the arithmetic of an ONNX model is in its file" in caplog.text


def test_engine_names_which_of_two_models_is_run(model_folder: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(models.images(model_folder), both)
    shutil.copy(onnx_models.onnx_file("images"), both / "serving_server")
    with pytest.raises(ConfigError, match="holds several models"):
        load_serving_model(both)
    assert load_serving_model(both, "paddle").format == "pir"
    assert load_serving_model(both, "onnxruntime").format == "onnx"
    with pytest.raises(ConfigError, match=r"engine: paddle does not run \S+classifier\.onnx"):
        load_serving_model(onnx_models.serving(tmp_path), "paddle")


def test_onnx_runtime_prints_nothing_of_its_own(served: ServingModel) -> None:
    code = (
        "import sys; from pipeline.config.config_file import LocalServiceConf\n"
        "from pipeline.engines import *;"
        "from pipeline.models.serving_model import load_serving_model\n"
        "from pipeline.errors import UnusableFeed\n"
        "p = create_predictor(load_serving_model(sys.argv[1]), LocalServiceConf(model_config='-'))\n"
        "feeds = input_examples(p, 1, 4); feeds['input_ids'] += 99\n"
        "try: p.run(feeds)\n"
        "except UnusableFeed: print('paddle' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(served.directory)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")
