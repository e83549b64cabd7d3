"""Small real models through the engine `openvino`: what they answer, refuse and leave behind."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.engines import Predictor, create_predictor, input_examples
from pipeline.engines.openvino import openvino_predictor
from pipeline.engines.openvino.openvino_predictor import openvino, properties
from pipeline.errors import ConfigError, InvalidInput, ModelFailed, UnusableFeed
from pipeline.models.serving_model import ServingModel, find_model_files, load_serving_model
from tests.engines.test_onnx_predictor import expected_logits, texts
from tests.support import models, onnx_models
from tests.support.models import local_conf
from tests.support.service_process import APPS, ServiceProcess, wait_until

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> ServingModel:
    return load_serving_model(onnx_models.serving(tmp_path_factory.mktemp("onnx")), "openvino")


@pytest.fixture(scope="module")
def predictor(served: ServingModel) -> Predictor:
    return create_predictor(served, local_conf())


def bare(folder: Path, name: str) -> ServingModel:
    return load_serving_model(onnx_models.bare(folder, name), "openvino")


# Its answers


@pytest.mark.parametrize("threads", [1, 2])
def test_a_row_answers_as_numpy_does_alone_padded_and_in_a_batch(served: ServingModel, threads: int) -> None:
    predictor = create_predictor(served, local_conf(thread_num=threads))
    rows = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    expected = np.stack([expected_logits(row) for row in rows])
    for feeds in (texts(rows), texts(rows, length=64)):
        np.testing.assert_allclose(predictor.run(feeds)["logits"], expected, atol=1e-5)
    alone = np.concatenate([predictor.run(texts([row]))["logits"] for row in rows])
    np.testing.assert_allclose(alone, expected, atol=1e-5)


@pytest.mark.parametrize("name", ["images", "mixes_rows", "scaled", "stateful", "fixed", "finder"])
def test_it_answers_as_onnx_runtime_does(tmp_path: Path, name: str) -> None:
    model = bare(tmp_path, name)
    ours = create_predictor(model, local_conf())
    theirs = create_predictor(load_serving_model(model.directory), local_conf())
    assert (ours.feeds, ours.fetches, ours.merges) == (theirs.feeds, theirs.fetches, theirs.merges)
    feeds = input_examples(ours, rows=2, length=4)
    expected, answers = theirs.run(feeds), ours.run(feeds)
    for alias, array in expected.items():
        assert (answers[alias].dtype, answers[alias].shape) == (array.dtype, array.shape)
        np.testing.assert_allclose(answers[alias], array, rtol=1e-5, atol=1e-6)


def test_a_pdmodel_program_answers_as_paddle_does(model_folder: Path) -> None:
    folder = models.classifier_pdmodel(model_folder)
    model = load_serving_model(folder, "openvino")
    assert (model.engine, model.format) == ("openvino", "pdmodel")
    ours = create_predictor(model, local_conf())
    theirs = create_predictor(load_serving_model(folder), local_conf())
    assert ours.merges
    feeds = {name: array for name, array in texts([[5, 6, 7], [8, 9]]).items() if name != "token_type_ids"}
    np.testing.assert_allclose(ours.run(feeds)["logits"], theirs.run(feeds)["logits"], atol=1e-6)


def test_weights_in_a_file_of_their_own_are_found(tmp_path: Path, predictor: Predictor) -> None:
    target = onnx_models.serving(tmp_path, "external/classifier")
    other = create_predictor(load_serving_model(target, "openvino"), local_conf())
    feeds = texts([[5, 6, 7]])
    np.testing.assert_allclose(other.run(feeds)["logits"], predictor.run(feeds)["logits"], atol=1e-6)
    (target / "serving_server" / "classifier.data").unlink()
    with pytest.raises(ConfigError, match=r"classifier\.onnx can't be loaded by OpenVINO .*classifier\.data"):
        create_predictor(load_serving_model(target, "openvino"), local_conf())


def test_what_is_read_only_is_fed_too(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    expected = predictor.run(feeds)["logits"]
    for array in feeds.values():
        array.flags.writeable = False
    np.testing.assert_array_equal(predictor.run(feeds)["logits"], expected)


def test_many_threads_share_one_model_and_none_has_anothers_answer(predictor: Predictor) -> None:
    rows = [[number % 64] * (2 + number % 9) for number in range(200)]

    def logits(row: list[int]) -> Array:
        if row[0] % 16 == 5:  # runs that fail among them
            with pytest.raises(ModelFailed):
                predictor.run(texts([row]) | {"attention_mask": np.ones((1, 20), np.int64)})
        return predictor.run(texts([row]))["logits"][0]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(logits, rows))
    np.testing.assert_allclose(answers, [expected_logits(row) for row in rows], atol=1e-5)


# Its refusals


@pytest.mark.parametrize("threads", [1, 2])
def test_a_run_that_fails_is_one_sentence_and_the_next_has_its_own_answer(
    served: ServingModel, threads: int
) -> None:
    predictor = create_predictor(served, local_conf(thread_num=threads))
    for length in (2, 1, 5):
        good = texts([[5 + length, 6, 7]])
        with pytest.raises(ModelFailed, match="OpenVINO refused the feeds input_ids") as caught:
            predictor.run(texts([[5, 6, 7]]) | {"input_ids": np.ones((3, length + 3), np.int64)})
        assert not any(sign in caught.value.message for sign in ("\n", "src/", "Exception"))
        np.testing.assert_allclose(
            predictor.run(good)["logits"][0], expected_logits([5 + length, 6, 7]), atol=1e-5
        )


def test_where_it_cant_be_compiled_again_the_next_run_tries_it(tmp_path: Path) -> None:
    folder = onnx_models.bare(tmp_path, "classifier")
    predictor = create_predictor(load_serving_model(folder, "openvino"), local_conf())
    file, away = folder / "model.onnx", tmp_path / "away.onnx"
    file.rename(away)
    with pytest.raises(ModelFailed, match="OpenVINO refused the feeds"):
        predictor.run(texts([[5, 6, 7]]) | {"input_ids": np.ones((3, 5), np.int64)})
    with pytest.raises(ModelFailed, match=r"model\.onnx can't be loaded by OpenVINO"):
        predictor.run(texts([[5, 6, 7]]))
    away.rename(file)
    np.testing.assert_allclose(
        predictor.run(texts([[5, 6, 7]]))["logits"][0], expected_logits([5, 6, 7]), atol=1e-5
    )


@pytest.mark.parametrize(
    ("feeds", "refusal", "told"),
    [
        ({"input_ids": 64}, UnusableFeed, "feed 'input_ids' holds 64, and the model has 64 rows"),
        ({"input_ids": -65}, UnusableFeed, "feed 'input_ids' holds -65, and the model has 64 rows"),
        ({"token_type_ids": 2}, UnusableFeed, "feed 'token_type_ids' holds 2, and the model has 2 rows"),
        ({"attention_mask": 1 << 31}, InvalidInput, "holds 2147483648, which is beyond the int32"),
        ({"attention_mask": -(1 << 40)}, InvalidInput, "holds -1099511627776, which is beyond the int32"),
    ],
)
def test_numbers_that_it_would_take_for_others_are_refused(
    predictor: Predictor, feeds: Mapping[str, int], refusal: type[Exception], told: str
) -> None:
    filled = {name: np.full((1, 3), number, np.int64) for name, number in feeds.items()}
    with pytest.raises(refusal, match=told):
        predictor.run(texts([[5, 6, 7]]) | filled)


def test_an_id_counted_from_the_end_is_looked_up_as_onnx_has_it(
    served: ServingModel, predictor: Predictor
) -> None:
    last = texts([[63, 62]]) | {"input_ids": np.array([[-1, -2]])}
    np.testing.assert_allclose(predictor.run(last)["logits"][0], expected_logits([63, 62]), atol=1e-5)


def test_feeds_are_checked_as_those_of_other_engines(tmp_path: Path) -> None:
    fixed = create_predictor(bare(tmp_path, "fixed"), local_conf())
    with pytest.raises(UnusableFeed, match=r"has shape \(2, 4\), expected float32 \[1, 4\]"):
        fixed.run({"x": np.ones((2, 4)), "rate": np.array(2.5)})
    assert fixed.run({"x": np.ones((1, 4)), "rate": np.array(2.5)})["y"].tolist() == [[2.5] * 4]


def test_a_fetch_that_is_declared_for_one_row_has_the_shape_that_runs_show(tmp_path: Path) -> None:
    table = create_predictor(bare(tmp_path, "table"), local_conf())
    assert {fetch.alias: fetch.shape for fetch in table.fetches} == {"label": (-1,), "probabilities": (-1, 3)}
    assert table.merges


def test_texts_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"feed 'text' of .* holds texts, .*: remove engine: openvino"):
        create_predictor(bare(tmp_path, "dtypes"), local_conf())


def test_a_program_that_it_cant_read_is_told_in_one_sentence(tmp_path: Path, model_folder: Path) -> None:
    source = load_serving_model(models.classifier_pdmodel(model_folder))
    for file in source.directory.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / source.program.name).write_bytes(b"no program")
    with pytest.raises(ConfigError, match=r"\.pdmodel can't be loaded by OpenVINO") as caught:
        create_predictor(load_serving_model(tmp_path, "openvino"), local_conf())
    assert "\n" not in caught.value.message


def test_it_takes_no_model_unless_it_is_named(tmp_path: Path, model_folder: Path) -> None:
    onnx, pir = onnx_models.bare(tmp_path, "images"), models.classifier(model_folder) / "serving_server"
    assert find_model_files(onnx).engine == "onnxruntime"
    assert find_model_files(models.classifier_pdmodel(model_folder) / "serving_server").engine == "paddle"
    with pytest.raises(ConfigError, match=r"engine: openvino does not run .*\.json: remove the key"):
        find_model_files(pir, "openvino")


# Its settings


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"device_type": 1}, "device_type 1 with devices '': OpenVINO runs models on the CPU here"),
        ({"devices": "0"}, "OpenVINO runs models on the CPU here: set device_type: 0"),
        ({"device_type": 2}, "device_type 2"),
        ({"precision": "fp16", "strict_precision": True}, "precision fp16 is not run by OpenVINO on the CPU"),
        ({"precision": "int8", "strict_precision": True}, "precision int8 is in the model's file"),
        ({"use_calib": True, "strict_precision": True}, "use_calib is not for OpenVINO"),
    ],
)
def test_what_it_cant_do_is_refused_with_the_remedy(
    served: ServingModel, keys: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        create_predictor(served, local_conf(**keys))


class CoreOf:
    """An OpenVINO on a CPU with these capabilities."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def get_property(self, device: str, name: str) -> list[str]:
        assert (device, name) == ("CPU", "OPTIMIZATION_CAPABILITIES")
        return list(self._capabilities)


def test_bf16_is_computed_where_the_cpu_has_it(
    served: ServingModel, caplog: pytest.LogCaptureFixture
) -> None:
    conf = local_conf(precision="bf16", thread_num=3)
    able, unable = CoreOf("FP32", "BF16"), CoreOf("FP32", "INT8")
    found = properties(able, served, conf)  # type: ignore[arg-type]
    assert found["INFERENCE_PRECISION_HINT"] == "bf16"
    assert (found["INFERENCE_NUM_THREADS"], found["NUM_STREAMS"], found["ENABLE_CPU_PINNING"]) == (
        3,
        1,
        False,
    )
    assert not caplog.records
    assert properties(unable, served, conf)["INFERENCE_PRECISION_HINT"] == "f32"  # type: ignore[arg-type]
    assert "precision bf16 needs a CPU with avx512_bf16 or amx_bf16" in caplog.text
    strict = local_conf(precision="bf16", strict_precision=True)
    with pytest.raises(ConfigError, match="strict_precision is set"):
        properties(unable, served, strict)  # type: ignore[arg-type]


def test_fp32_is_told_to_it_which_would_take_bf16_by_itself(
    served: ServingModel, caplog: pytest.LogCaptureFixture
) -> None:
    able = CoreOf("FP32", "BF16")
    conf = local_conf(use_mkldnn=True)
    assert properties(able, served, conf)["INFERENCE_PRECISION_HINT"] == "f32"  # type: ignore[arg-type]
    assert "use_mkldnn: Paddle's own, without effect with engine: openvino" in caplog.text


# The cache of compiled models


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(openvino_predictor, "MIN_BYTES", 1)
    return tmp_path / "cache" / "paddlewheel" / "openvino"


def test_a_compiled_model_is_kept_apart_from_the_model_and_used_again(
    served: ServingModel, predictor: Predictor, cache: Path
) -> None:
    feeds, expected = texts([[5, 6, 7]]), predictor.run(texts([[5, 6, 7]]))["logits"]
    files = set(served.directory.iterdir())
    for _ in range(2):
        again = create_predictor(served, local_conf())
        np.testing.assert_array_equal(again.run(feeds)["logits"], expected)
    assert set(served.directory.iterdir()) == files
    (folder,) = cache.iterdir()
    (blob,) = folder.glob("*.blob")
    written = blob.stat().st_mtime_ns
    create_predictor(served, local_conf())
    assert blob.stat().st_mtime_ns == written
    compiled = openvino.Core().compile_model(str(served.program), "CPU", {"CACHE_DIR": str(folder)})
    assert compiled is not None


def test_a_model_of_the_same_name_with_other_weights_is_not_taken_from_the_cache(
    tmp_path: Path, cache: Path
) -> None:
    folder = onnx_models.bare(tmp_path, "images")
    model, image = load_serving_model(folder, "openvino"), np.ones((1, 3, 2, 2), np.float32)
    create_predictor(model, local_conf()).run({"image": image})
    content = (folder / "model.onnx").read_bytes()
    two, three = np.float32(2).tobytes(), np.float32(3).tobytes()
    assert two in content
    (folder / "model.onnx").write_bytes(content.replace(two, three, 1))
    ours = create_predictor(model, local_conf()).run({"image": image})["doubled"]
    theirs = create_predictor(load_serving_model(folder), local_conf()).run({"image": image})["doubled"]
    np.testing.assert_allclose(ours, theirs)
    assert len(list(cache.iterdir())) == 2


@pytest.mark.skipif(
    "BF16" not in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"),
    reason="a CPU without bf16",
)
def test_a_model_compiled_for_one_precision_is_not_taken_for_another(
    served: ServingModel, predictor: Predictor, cache: Path
) -> None:
    feeds = texts([[5, 6, 7], [8, 9]])
    expected = predictor.run(feeds)["logits"]
    for precision, allowed in (("fp32", 1e-5), ("bf16", 0.1), ("fp32", 1e-5), ("bf16", 0.1)):
        again = create_predictor(served, local_conf(precision=precision))
        np.testing.assert_allclose(again.run(feeds)["logits"], expected, atol=allowed)
    assert len(list(cache.iterdir())) == 2


def test_what_another_process_left_unfinished_is_made_again(
    served: ServingModel, predictor: Predictor, cache: Path
) -> None:
    create_predictor(served, local_conf())
    (folder,) = cache.iterdir()
    (blob,) = folder.glob("*.blob")
    blob.chmod(0o600)
    blob.write_bytes(blob.read_bytes()[:1000])
    (folder / "complete").unlink()
    again = create_predictor(served, local_conf())
    feeds = texts([[5, 6, 7]])
    np.testing.assert_array_equal(again.run(feeds)["logits"], predictor.run(feeds)["logits"])
    assert (folder / "complete").exists()


def test_the_cache_is_bounded_and_goes_without_where_it_cant_be_written(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("images", "scaled", "mixes_rows")
    found = [bare(tmp_path / name, name) for name in names]
    largest = max(model.program.stat().st_size for model in found)
    monkeypatch.setattr(openvino_predictor, "MAX_BYTES", 20 * largest)
    for model in found:
        create_predictor(model, local_conf())
    assert 0 < len(list(cache.iterdir())) < len(names)
    monkeypatch.setenv("XDG_CACHE_HOME", str(found[0].program))  # a file
    with caplog.at_level(logging.INFO):
        create_predictor(found[0], local_conf())
    assert "is compiled without the cache" in caplog.text


# As a service


def test_its_instances_have_a_process_each_and_a_refused_run_harms_no_other(served: ServingModel) -> None:
    section = {
        "local_service_conf": {"model_config": str(served.directory), "engine": "openvino"},
        "concurrency": 3,
        "batch_size": 4,
    }
    config = {"dag": {"is_thread_op": True, "http_errors": "status"}, "op": {"model": section}}
    with ServiceProcess(APPS / "model.py", config) as service:
        wait_until(lambda: service.metric("paddlewheel_op_ready_instances") == 3, "all are ready")
        assert len(service.worker_pids()) == 3  # threads would take turns on the one compiled model
        inputs = {name: json.dumps(array.tolist()) for name, array in texts([[5, 6, 7]]).items()}
        answer = service.predict(inputs)
        np.testing.assert_allclose(json.loads(answer["logits"])[0], expected_logits([5, 6, 7]), atol=1e-4)
        refused = service.ask(inputs | {"input_ids": "[[1, 2]]"})
        assert refused["err_no"] == UnusableFeed.err_no
        assert json.loads(service.predict(inputs)["logits"]) == json.loads(answer["logits"])


def test_without_openvino_the_start_ends_with_the_line_that_adds_it(
    served: ServingModel, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'openvino' else find(name, package)\n",
        "utf-8",
    )
    section = {"local_service_conf": {"model_config": str(served.directory), "engine": "openvino"}}
    config = {"op": {"model": section}}
    paths = f"{tmp_path}:{Path(__file__).parents[2]}"
    with ServiceProcess(APPS / "model.py", config, env={"PYTHONPATH": paths}, wait=False) as service:
        assert service.process.wait(60) != 0
        told = "needs OpenVINO, which is not installed here: pip install 'paddlewheel[openvino]'"
        assert told in service.log
        assert "Traceback" not in service.log


def test_importing_openvino_tells_nobody_and_writes_nothing(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pipeline.engines.openvino import openvino_predictor\n"
        "assert not [name for name in sys.modules if name.startswith('openvino_telemetry.')]\n"
    )
    environment = {"HOME": str(tmp_path), "PATH": "/usr/bin"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=Path(__file__).parents[2], check=False
    )
    assert (done.returncode, list(tmp_path.iterdir())) == (0, [])
