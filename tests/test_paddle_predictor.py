"""Real Paddle models through `create_predictor`, and the configurations a CPU build can only prepare."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import models
from pipeline.config import LocalServiceConf
from pipeline.errors import ConfigError, InvalidInput, ModelFailed
from pipeline.predictors import DynamicShapes, Predictor, create_predictor, input_examples
from pipeline.predictors.paddle_config import Device, build_config, configure, refuse_unsupported
from pipeline.predictors.paddle_import import inference
from pipeline.serving_model import ServingModel, load_serving_model

Array = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def classifier(folder: Path) -> ServingModel:
    return load_serving_model(models.classifier(folder))


@pytest.fixture(scope="module")
def pdmodel(folder: Path) -> ServingModel:
    return load_serving_model(models.classifier_pdmodel(folder))


@pytest.fixture(scope="module")
def predictor(classifier: ServingModel) -> Predictor:
    return create_predictor(classifier, conf())


def conf(**keys: Any) -> LocalServiceConf:
    return LocalServiceConf(**({"model_config": "unused", "thread_num": 1} | keys))


def texts(rows: list[list[int]], length: int | None = None) -> dict[str, Array]:
    """Feeds of rows of ids, padded with id 0 to the longest row or to `length`."""
    width = length or max(map(len, rows))
    ids = np.array([row + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    mask = np.array([[1] * len(row) + [0] * (width - len(row)) for row in rows], dtype=np.int64)
    return {"input_ids": ids, "token_type_ids": np.zeros_like(ids), "attention_mask": mask}


def expected_images(image: Array) -> Array:
    return image * 2 + np.arange(3, dtype=np.float32).reshape(1, 3, 1, 1)


@pytest.mark.parametrize("use_mkldnn", [None, True, False], ids=["default", "onednn", "native"])
def test_an_image_is_computed_exactly_at_any_size(folder: Path, use_mkldnn: bool | None) -> None:
    predictor = create_predictor(load_serving_model(models.images(folder)), conf(use_mkldnn=use_mkldnn))
    for shape in [(1, 3, 4, 5), (2, 3, 9, 1), (1, 3, 4, 5)]:
        image = np.random.default_rng(0).random(shape, dtype=np.float32)
        np.testing.assert_allclose(
            predictor.run({"image": image})["doubled"], expected_images(image), rtol=1e-6
        )


@pytest.mark.parametrize("use_mkldnn", [True, False], ids=["onednn", "native"])
@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_row_answers_the_same_alone_padded_and_in_a_batch(
    folder: Path, kind: str, use_mkldnn: bool
) -> None:
    model = load_serving_model(getattr(models, kind)(folder))
    predictor = create_predictor(model, conf(use_mkldnn=use_mkldnn, ir_optim=True))
    names = [variable.alias for variable in model.feeds]

    def logits(feeds: dict[str, Array]) -> Array:
        return predictor.run({name: feeds[name] for name in names})["logits"]

    rows = [[5, 6, 7], [8, 9], [10, 11, 12, 13, 14]]
    alone = np.concatenate([logits(texts([row])) for row in rows])
    assert len(np.unique(alone.round(4))) == alone.size
    np.testing.assert_allclose(logits(texts(rows)), alone, atol=1e-5)
    np.testing.assert_allclose(logits(texts(rows, length=64)), alone, atol=1e-5)


def test_outputs_are_not_overwritten_by_the_next_run(predictor: Predictor) -> None:
    first = predictor.run(texts([[5, 6, 7]]))["logits"]
    kept = first.copy()
    second = predictor.run(texts([[20, 21, 22]]))["logits"]
    np.testing.assert_array_equal(first, kept)
    assert not np.allclose(first, second)


def test_the_fetch_list_selects_by_alias(classifier: ServingModel) -> None:
    predictor = create_predictor(classifier, conf(fetch_list=["logits"]))
    assert [variable.alias for variable in predictor.fetches] == ["logits"]
    with pytest.raises(ConfigError, match="fetch_list: the model has no 'probs', only logits"):
        create_predictor(classifier, conf(), fetch_list=["probs"])


def test_integers_are_cast_when_nothing_is_lost(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    small = {name: array.astype(np.int32) for name, array in feeds.items()}
    small["attention_mask"] = feeds["attention_mask"].astype(bool)
    np.testing.assert_array_equal(predictor.run(small)["logits"], predictor.run(feeds)["logits"])


def test_floats_are_cast_unless_they_overflow(folder: Path) -> None:
    predictor = create_predictor(load_serving_model(models.images(folder)), conf())
    image = np.full((1, 3, 2, 2), 0.1)
    doubled = predictor.run({"image": image})["doubled"]
    np.testing.assert_allclose(doubled, expected_images(image), rtol=1e-6)
    with pytest.raises(InvalidInput, match="feed 'image' is float64 with values beyond float32"):
        predictor.run({"image": image * 1e300})


def test_a_view_with_strides_is_read_as_it_looks(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7], [8, 9, 10]])
    turned = {name: np.asfortranarray(array) for name, array in feeds.items()}
    np.testing.assert_array_equal(predictor.run(turned)["logits"], predictor.run(feeds)["logits"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_id": np.ones((1, 3), np.int64)}, "the model has no feed 'input_id', only input_ids, token"),
        ({"input_ids": np.ones((1, 3), np.float32)}, "feed 'input_ids' is float32, expected int64"),
        ({"input_ids": np.array([["a"]])}, "feed 'input_ids' is <U1, expected int64"),
        (
            {"input_ids": np.full((1, 3), 2**63, np.uint64)},
            "feed 'input_ids' is uint64 with values beyond int64",
        ),
        ({"input_ids": np.ones(3, np.int64)}, "has shape (3,), expected int64 [-1, -1]"),
        ({"input_ids": np.ones((0, 3), np.int64)}, "has shape (0, 3) and so no element"),
        ({"input_ids": [[1, 2, 3]]}, "feed 'input_ids' is of type list, expected an ndarray"),
        ({"attention_mask": None}, "feed 'attention_mask' is of type NoneType"),
    ],
)
def test_a_feed_that_does_not_fit_is_named(
    predictor: Predictor, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidInput) as caught:
        predictor.run(texts([[5, 6, 7]]) | change)
    assert message in caught.value.message


def test_a_missing_feed_is_named(predictor: Predictor) -> None:
    feeds = texts([[5, 6, 7]])
    del feeds["token_type_ids"]
    with pytest.raises(InvalidInput, match=r"feed 'token_type_ids' is missing \(int64 \[-1, -1\]\)"):
        predictor.run(feeds)


def test_a_fixed_axis_of_another_length_is_refused(folder: Path) -> None:
    predictor = create_predictor(load_serving_model(models.hidden_states(folder)), conf())
    assert predictor.run({"input_ids": np.ones((1, 128), np.int64)})["hidden"].shape == (1, 128, 768)
    with pytest.raises(InvalidInput, match=r"has shape \(1, 127\), expected int64 \[-1, 128\]"):
        predictor.run({"input_ids": np.ones((1, 127), np.int64)})


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_refusal_of_the_engine_is_one_sentence_and_the_next_run_works(folder: Path, kind: str) -> None:
    model = load_serving_model(getattr(models, kind)(folder))
    predictor = create_predictor(model, conf())
    good = input_examples(model, rows=1, length=3)
    before = predictor.run(good)["logits"]
    with pytest.raises(ModelFailed) as caught:
        predictor.run(good | {"input_ids": np.full((1, 3), models.VOCABULARY, np.int64)})
    assert "expected >= 0 and < 64, but got 64" in caught.value.message
    assert "input_ids [1, 3]" in caught.value.message
    assert "\n" not in caught.value.message
    np.testing.assert_array_equal(predictor.run(good)["logits"], before)


def test_a_closed_predictor_says_so(classifier: ServingModel) -> None:
    predictor = create_predictor(classifier, conf())
    predictor.close()
    with pytest.raises(ModelFailed, match="the predictor is closed"):
        predictor.run(texts([[5]]))


def test_examples_for_warm_up_have_the_model_s_shapes_and_dtypes(folder: Path) -> None:
    examples = input_examples(load_serving_model(models.images(folder)), rows=2, length=7)
    assert {name: (array.shape, array.dtype) for name, array in examples.items()} == {
        "image": ((2, 3, 7, 7), np.float32)
    }


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_axes_that_the_description_left_out_are_taken_from_the_program(folder: Path, kind: str) -> None:
    model = load_serving_model(getattr(models, kind)(folder))
    # As older conversions of Paddle Serving store [-1, -1]: no shape at all.
    feeds = tuple(dataclasses.replace(variable, shape=(-1,)) for variable in model.feeds)
    predictor = create_predictor(dataclasses.replace(model, feeds=feeds), conf())
    assert predictor.feeds == model.feeds
    assert predictor.run(input_examples(predictor, rows=2, length=5))["logits"].shape == (2, 3)


def test_a_description_of_another_model_is_refused_at_start(classifier: ServingModel) -> None:
    fewer = dataclasses.replace(classifier, feeds=classifier.feeds[:2])
    with pytest.raises(ConfigError, match="feed 'attention_mask' is only in one of them"):
        create_predictor(fewer, conf())
    renamed = dataclasses.replace(classifier.fetches[0], name="softmax_0.tmp_0")
    with pytest.raises(ConfigError, match=r"fetch 'softmax_0\.tmp_0' .* the program has fetch_name_0"):
        create_predictor(dataclasses.replace(classifier, fetches=(renamed,)), conf())


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
@pytest.mark.parametrize("damage", [b"", b"not a program", b'{"base_code":{"magic":"pir"}}'])
def test_a_damaged_program_is_refused_in_one_sentence(
    folder: Path, tmp_path: Path, kind: str, damage: bytes
) -> None:
    model = load_serving_model(getattr(models, kind)(folder))
    program = tmp_path / model.program.name
    program.write_bytes(damage)
    with pytest.raises(
        ConfigError, match=r"is not a Paddle program .* copy or export the model again"
    ) as caught:
        create_predictor(dataclasses.replace(model, program=program), conf())
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("kind", ["classifier", "classifier_pdmodel"])
def test_a_damaged_or_missing_parameter_file_is_refused(folder: Path, tmp_path: Path, kind: str) -> None:
    model = load_serving_model(getattr(models, kind)(folder))
    assert model.params is not None
    whole = model.params.read_bytes()
    cut = tmp_path / "cut.pdiparams"
    for data in (b"", whole[:-1], whole[: len(whole) // 2], b"\xff" * len(whole)):
        cut.write_bytes(data)
        with pytest.raises(ConfigError) as caught:
            create_predictor(dataclasses.replace(model, params=cut), conf())
        assert "\n" not in caught.value.message
    with pytest.raises(ConfigError, match=r"parameters, but no \.pdiparams is beside it"):
        create_predictor(dataclasses.replace(model, params=None), conf())


def test_the_cpu_configuration_is_what_the_keys_say(pdmodel: ServingModel) -> None:
    config = build_config(pdmodel, conf(thread_num=3, mkldnn_cache_capacity=7, ir_optim=True, mem_optim=True))
    assert (config.cpu_math_library_num_threads(), config.ir_optim(), config.onednn_enabled()) == (
        3,
        True,
        True,
    )
    assert summary(config) >= {
        ("mkldnn_cache_capacity", "7"),
        ("memory_optim", "true"),
        ("enable_log", "false"),
    }
    config = build_config(pdmodel, conf(use_mkldnn=False, mem_optim=False))
    assert (config.ir_optim(), config.onednn_enabled()) == (False, False)
    assert summary(config) >= {("memory_optim", "false")}


def test_the_onednn_cache_is_bounded_when_nothing_is_said(pdmodel: ServingModel) -> None:
    assert ("mkldnn_cache_capacity", "10") in summary(build_config(pdmodel, conf()))


def summary(config: inference.Config) -> set[tuple[str, str]]:
    rows = [line.strip("| ").split("|") for line in config.summary().splitlines() if line.startswith("|")]
    return {(key.strip(), value.strip()) for key, value in rows}


def test_bf16_runs_only_where_the_cpu_has_it(classifier: ServingModel) -> None:
    refuse_unsupported(Device.CPU, conf(precision="bf16"), cpu_flags=["avx512f", "avx512_bf16"])
    with pytest.raises(ConfigError, match="this has neither: use fp32"):
        refuse_unsupported(Device.CPU, conf(precision="bf16"), cpu_flags=["avx2", "avx512f"])
    with pytest.raises(ConfigError, match="needs oneDNN"):
        create_predictor(classifier, conf(precision="bf16", use_mkldnn=False))


def test_bf16_switches_on_the_graph_passes_it_needs(pdmodel: ServingModel) -> None:
    config = inference.Config(str(pdmodel.program), str(pdmodel.params))
    configure(config, pdmodel, conf(precision="bf16", ir_optim=False))
    assert (config.ir_optim(), config.onednn_enabled()) == (True, True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"device_type": 1},
            "needs a GPU build of Paddle, but .* install a GPU build .* or set device_type: 0",
        ),
        ({"device_type": 2}, "device_type 2 with devices '' needs a GPU build"),
        ({"devices": "0,1"}, "device_type -1 with devices '0,1' needs a GPU build"),
        ({"device_type": 4}, r"device_type 4 \(xpu\) is not served: use -1, 0 cpu, 1 gpu or 2 tensorRT"),
        ({"precision": "fp16"}, "precision fp16 is not run on the CPU: use fp32 or bf16, or a GPU"),
        ({"precision": "int8"}, "precision int8 is not run on the CPU"),
    ],
)
def test_what_this_build_can_t_do_is_refused_at_start(
    classifier: ServingModel, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_predictor(classifier, conf(**keys))


class RecordingConfig(inference.Config):  # type: ignore[misc]
    """Paddle's own Config: on a CPU build it checks the arguments of GPU setters, then ignores or refuses."""

    def __init__(self, model: ServingModel) -> None:
        super().__init__(str(model.program), str(model.params))
        self.gpu: tuple[Any, ...] = ()
        self.tensorrt: dict[str, Any] = {}
        self.shapes: tuple[dict[str, list[int]], ...] = ()
        self.cache_folder = ""

    def enable_use_gpu(self, *arguments: Any) -> None:
        super().enable_use_gpu(*arguments)
        self.gpu = arguments

    def enable_tensorrt_engine(self, **arguments: Any) -> None:
        with pytest.raises(RuntimeError, match="please compile with TENSORRT first"):
            super().enable_tensorrt_engine(**arguments)
        self.tensorrt = arguments

    def set_trt_dynamic_shape_info(self, *shapes: dict[str, list[int]]) -> None:
        super().set_trt_dynamic_shape_info(*shapes)
        self.shapes = shapes

    def set_optim_cache_dir(self, folder: str) -> None:
        super().set_optim_cache_dir(folder)
        self.cache_folder = folder


SHAPES = {
    "min_input_shape": {"input_ids": [1, 1], "attention_mask": [1, 1], "unsqueeze2_0.tmp_0": [1, 1, 1]},
    "opt_input_shape": {"input_ids": [4, 32], "attention_mask": [4, 32], "unsqueeze2_0.tmp_0": [4, 32, 1]},
    "max_input_shape": {"input_ids": [10, 64], "attention_mask": [10, 64], "unsqueeze2_0.tmp_0": [10, 64, 1]},
}


def test_instances_take_the_cards_in_turn(pdmodel: ServingModel) -> None:
    cards = []
    for index in range(4):
        config = RecordingConfig(pdmodel)
        configure(config, pdmodel, conf(device_type=1, devices="2,5", precision="fp16"), instance_index=index)
        cards.append(config.gpu[1])
        assert config.gpu[2] == inference.PrecisionType.Half
        assert not config.tensorrt
    assert cards == [2, 5, 2, 5]


def test_tensorrt_is_given_precision_cache_and_the_shapes_of_inner_tensors(
    pdmodel: ServingModel, tmp_path: Path
) -> None:
    config = RecordingConfig(pdmodel)
    keys = conf(
        device_type=2,
        devices="1",
        precision="fp16",
        min_subgraph_size=5,
        tensorrt={"cache_dir": str(tmp_path / "engines")},
    )
    configure(config, pdmodel, keys, dynamic_shapes=DynamicShapes.from_info(SHAPES))
    assert config.gpu[1] == 1
    assert config.tensorrt["precision_mode"] == inference.PrecisionType.Half
    assert (config.tensorrt["min_subgraph_size"], config.tensorrt["max_batch_size"]) == (5, 10)
    assert (config.tensorrt["use_static"], config.tensorrt["use_calib_mode"]) == (True, False)
    assert config.shapes == tuple(SHAPES[f"{bound}_input_shape"] for bound in ("min", "max", "opt"))
    assert config.tensorrt_dynamic_shape_enabled()
    assert config.ir_optim()
    assert Path(config.cache_folder).is_dir()


def test_shapes_of_config_yml_count_when_the_op_gives_none(pdmodel: ServingModel, tmp_path: Path) -> None:
    ranges = {name: {"min": [1, 1], "opt": [2, 8], "max": [3, 9]} for name in ("input_ids", "attention_mask")}
    keys = conf(
        device_type=2,
        tensorrt={"cache_dir": str(tmp_path), "shapes": ranges, "precision": "int8"},
        use_calib=True,
    )
    config = RecordingConfig(pdmodel)
    configure(config, pdmodel, keys)
    assert config.shapes[1] == {"input_ids": [3, 9], "attention_mask": [3, 9]}
    assert config.tensorrt["precision_mode"] == inference.PrecisionType.Int8
    assert config.tensorrt["use_calib_mode"] is True
    configure(config, pdmodel, keys, dynamic_shapes=DynamicShapes.from_info(SHAPES))
    assert config.shapes[1]["input_ids"] == [10, 64]


@pytest.mark.parametrize(
    ("keys", "shapes", "message"),
    [
        ({}, None, "TensorRT needs the shapes of feed 'input_ids': give them in set_dynamic_shape_info or"),
        ({"tensorrt": {"auto_collect": True}}, None, "auto_collect is not supported yet"),
        ({"precision": "bf16"}, SHAPES, "precision bf16 is not run by TensorRT here: use fp32, fp16 or int8"),
        ({"use_calib": True}, SHAPES, "use_calib: true is for precision int8, but it is fp32"),
        ({}, {bound: {"input_ids": [1, 1, 1]} for bound in SHAPES}, "have 3 axes, the model's .* has 2"),
        ({"tensorrt": {"cache_dir": "/proc/none"}}, SHAPES, "tensorrt.cache_dir /proc/none can't be made"),
    ],
)
def test_a_tensorrt_configuration_that_can_t_work_is_refused(
    pdmodel: ServingModel, keys: dict[str, Any], shapes: dict[str, Any] | None, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        configure(
            RecordingConfig(pdmodel),
            pdmodel,
            conf(device_type=2, **keys),
            dynamic_shapes=DynamicShapes.from_info(shapes) if shapes else None,
        )


def test_tensorrt_of_a_paddle_3_program_names_the_other_ways(classifier: ServingModel) -> None:
    with pytest.raises(ConfigError, match=r"takes \.pdmodel programs only: .* or set device_type: 1"):
        configure(RecordingConfig(classifier), classifier, conf(device_type=2))


def test_an_onnx_model_is_refused_with_its_name(classifier: ServingModel) -> None:
    with pytest.raises(ConfigError, match="is an ONNX model, which this version does not serve"):
        create_predictor(dataclasses.replace(classifier, format="onnx"), conf())


def test_paddle_prints_nothing_of_its_own(folder: Path) -> None:
    code = (
        "import sys; from pipeline.config import LocalServiceConf; from pipeline.predictors import *;"
        "from pipeline.serving_model import load_serving_model;"
        "p = create_predictor(load_serving_model(sys.argv[1]), LocalServiceConf(model_config='-'));"
        "p.run(input_examples(p, 1, 4)); p.close()"
    )
    command = [sys.executable, "-c", code, str(models.classifier_pdmodel(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=quiet_environment())
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_worker_that_ignores_sigterm_still_does_with_a_model_loaded(folder: Path) -> None:
    code = (
        "import os, signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "from pipeline.config import LocalServiceConf; from pipeline.predictors import *;"
        "from pipeline.serving_model import load_serving_model;"
        "p = create_predictor(load_serving_model(sys.argv[1]), LocalServiceConf(model_config='-'));"
        "os.kill(os.getpid(), signal.SIGTERM); print('still here')"
    )
    command = [sys.executable, "-c", code, str(models.classifier(folder))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "still here\n")


def quiet_environment() -> dict[str, str]:
    """This process's own, less what the import of Paddle above has set."""
    return {
        key: value for key, value in os.environ.items() if not key.startswith(("GLOG_", "FLAGS_", "OMP_"))
    }
