"""config.yml's keys in Paddle's own configuration, those of GPUs too, which a CPU build can only prepare."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convert.cli import main
from pipeline.config.config_file import LocalServiceConf
from pipeline.engines import DynamicShapes, create_predictor, input_examples
from pipeline.engines.device import Device
from pipeline.engines.dynamic_shape import read_ranges
from pipeline.engines.paddle.paddle_config import build_config, configure, precision_in_force
from pipeline.engines.paddle.paddle_import import inference
from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel, Variable, load_serving_model
from tests.support import models
from tests.support.models import local_conf
from tests.support.recording_config import RecordingConfig


def test_the_cpu_configuration_is_what_the_keys_say(pdmodel: ServingModel) -> None:
    config = build_config(
        pdmodel,
        local_conf(thread_num=3, use_mkldnn=True, mkldnn_cache_capacity=7, ir_optim=True, mem_optim=True),
    )
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
    config = build_config(pdmodel, local_conf(use_mkldnn=False, mem_optim=False))
    assert (config.ir_optim(), config.onednn_enabled()) == (False, False)
    assert summary(config) >= {("memory_optim", "false")}


def test_the_onednn_cache_is_bounded_when_nothing_is_said(pdmodel: ServingModel) -> None:
    assert ("mkldnn_cache_capacity", "10") in summary(build_config(pdmodel, local_conf(use_mkldnn=True)))


def test_onednn_is_off_when_nothing_is_said_as_in_paddle_serving(pdmodel: ServingModel) -> None:
    assert not build_config(pdmodel, local_conf(ir_optim=True)).onednn_enabled()


def summary(config: inference.Config) -> set[tuple[str, str]]:
    rows = [line.strip("| ").split("|") for line in config.summary().splitlines() if line.startswith("|")]
    return {(key.strip(), value.strip()) for key, value in rows}


@pytest.mark.parametrize(
    ("keys", "flags", "why"),
    [
        ({"precision": "fp16"}, [], "precision fp16 is not run on the CPU: use fp32 or bf16, or a GPU"),
        ({"precision": "INT8", "use_calib": True}, [], "precision int8 is not run on the CPU"),
        ({"precision": "bf16"}, ["avx2", "avx512f"], "this has neither: use fp32"),
        ({"precision": "bf16", "use_mkldnn": False}, ["avx512_bf16"], "needs oneDNN"),
        ({"precision": "int8", "device_type": 1}, [], "precision int8 on a GPU needs device_type: 2"),
        ({"use_calib": True}, [], "use_calib: true needs device_type: 2"),
    ],
)
def test_a_precision_that_the_device_lacks_is_fp32_unless_it_is_strict(
    classifier: ServingModel,
    caplog: pytest.LogCaptureFixture,
    keys: dict[str, Any],
    flags: list[str],
    why: str,
) -> None:
    device = Device.GPU if "device_type" in keys else Device.CPU
    assert precision_in_force(device, classifier, local_conf(**keys), flags) == "fp32"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert why in record.getMessage()
    assert record.getMessage().endswith(f"{classifier.program} runs in fp32")
    with pytest.raises(ConfigError, match=f"{why}.*; local_service_conf.strict_precision is set"):
        precision_in_force(device, classifier, local_conf(**keys, strict_precision=True), flags)


def test_a_precision_that_the_device_has_is_in_force(classifier: ServingModel) -> None:
    conf = local_conf(precision="bf16", strict_precision=True)
    assert precision_in_force(Device.CPU, classifier, conf, ["avx512f", "avx512_bf16"]) == "bf16"
    for precision in ("fp16", "bf16"):
        conf = local_conf(precision=precision, device_type=1, strict_precision=True)
        assert precision_in_force(Device.GPU, classifier, conf) == precision


def test_bf16_is_fp32_for_a_program_that_onednn_can_not_run(
    model_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = load_serving_model(models.enlarged(model_folder))
    flags = ["amx_bf16"]
    assert precision_in_force(Device.CPU, model, local_conf(precision="bf16"), flags) == "fp32"
    told = r"nearest_interp of .* which precision bf16 needs: use fp32"
    assert re.search(told, caplog.text)
    with pytest.raises(ConfigError, match=told):
        precision_in_force(Device.CPU, model, local_conf(precision="bf16", strict_precision=True), flags)


@pytest.mark.parametrize("precision", ["fp16", "int8"])
def test_fp16_and_int8_on_the_cpu_answer_as_fp32_does(classifier: ServingModel, precision: str) -> None:
    feeds = input_examples(classifier, rows=1, length=3)
    expected = create_predictor(classifier, local_conf()).run(feeds)["logits"]
    lower = create_predictor(classifier, local_conf(precision=precision, use_calib=True))
    np.testing.assert_array_equal(lower.run(feeds)["logits"], expected)
    with pytest.raises(ConfigError, match=f"precision {precision} is not run on the CPU"):
        create_predictor(classifier, local_conf(precision=precision, strict_precision=True))


def test_bf16_switches_on_the_graph_passes_it_needs(pdmodel: ServingModel) -> None:
    config = inference.Config(str(pdmodel.program), str(pdmodel.params))
    configure(config, pdmodel, local_conf(precision="bf16", ir_optim=False))
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
    ],
)
def test_what_this_build_can_t_do_is_refused_at_start(
    classifier: ServingModel, keys: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        create_predictor(classifier, local_conf(**keys))


SHAPES = {
    "min_input_shape": {"input_ids": [1, 1], "attention_mask": [1, 1], "unsqueeze2_0.tmp_0": [1, 1, 1]},
    "opt_input_shape": {"input_ids": [4, 32], "attention_mask": [4, 32], "unsqueeze2_0.tmp_0": [4, 32, 1]},
    "max_input_shape": {"input_ids": [10, 64], "attention_mask": [10, 64], "unsqueeze2_0.tmp_0": [10, 64, 1]},
}


def test_instances_take_the_cards_in_turn(pdmodel: ServingModel) -> None:
    cards = []
    for index in range(4):
        config = RecordingConfig(pdmodel)
        configure(
            config, pdmodel, local_conf(device_type=1, devices="2,5", precision="fp16"), instance_index=index
        )
        cards.append(config.gpu[1])
        assert config.gpu[2] == inference.PrecisionType.Half
        assert not config.tensorrt
    assert cards == [2, 5, 2, 5]


def test_tensorrt_is_given_precision_cache_and_the_shapes_of_inner_tensors(
    pdmodel: ServingModel, tmp_path: Path
) -> None:
    config = RecordingConfig(pdmodel)
    keys = local_conf(
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
    keys = local_conf(
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
        (
            {"tensorrt": {"shapes": "none.pbtxt"}},
            None,
            r"tensorrt\.shapes: there is no file none\.pbtxt: make it with `paddlewheel convert shapes",
        ),
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
            local_conf(device_type=2, **keys),
            dynamic_shapes=DynamicShapes.from_info(shapes) if shapes else None,
        )


def tuned(model: ServingModel, conf: LocalServiceConf) -> tuple[RecordingConfig, Path]:
    """(the configuration, the file of shapes that TensorRT would read)."""
    config = RecordingConfig(model)
    configure(config, model, conf)
    assert config.tuned_tensorrt_dynamic_shape()
    assert config.trt_allow_build_at_runtime()
    assert not config.shapes
    return config, Path(config.shape_range_info_path())


def test_a_file_of_collected_shapes_is_handed_to_tensorrt(pdmodel: ServingModel, tmp_path: Path) -> None:
    file = tmp_path / "shapes.pbtxt"
    sizes = ["--lengths", "16,32", "--batches", "1,6"]
    assert main(["shapes", str(pdmodel.directory), str(file), *sizes]) == 0
    keys = local_conf(device_type=2, tensorrt={"cache_dir": str(tmp_path), "shapes": str(file)})
    config, read = tuned(pdmodel, keys)
    assert read == file
    assert config.tensorrt["max_batch_size"] == 6


def test_auto_collect_finds_the_shapes_at_start_and_keeps_them(pdmodel: ServingModel, tmp_path: Path) -> None:
    keys = {"cache_dir": str(tmp_path / "engines"), "auto_collect": True}
    sizes: dict[str, Any] = {"collect_lengths": [4, 9], "collect_batches": [2, 3]}
    config, file = tuned(pdmodel, local_conf(device_type=2, tensorrt=keys | sizes))
    assert file.parent == tmp_path / "engines"
    ranges = read_ranges(file)
    assert config.tensorrt["max_batch_size"] == 3
    assert (ranges["input_ids"].min, ranges["input_ids"].max) == ((2, 4), (3, 9))
    inner = {name: found.max for name, found in ranges.items() if name.startswith("unsqueeze2_")}
    assert list(inner.values()) == [(3, 9, 1)]
    assert not {"words", "weight"} & ranges.keys()
    kept = file.stat().st_ino
    assert tuned(pdmodel, local_conf(device_type=2, tensorrt=keys | sizes))[1] == file
    assert file.stat().st_ino == kept
    other = tuned(pdmodel, local_conf(device_type=2, tensorrt=keys | sizes | {"collect_batches": [5]}))[1]
    assert read_ranges(other)["input_ids"].max == (5, 9)
    assert sorted(file.parent.iterdir()) == sorted([file, other])


def test_lengths_that_the_model_can_t_run_end_the_start(tmp_path: Path) -> None:
    bert = Path(__file__).parents[1] / "fixtures" / "pdmodel" / "bert"
    feeds = [Variable(name, name, "int64", (-1, -1)) for name in ("input_ids", "token_type_ids")]
    program, params = bert / "inference.pdmodel", bert / "inference.pdiparams"
    model = ServingModel(bert, program, params, tuple(feeds), (), format="pdmodel")
    keys = {"cache_dir": str(tmp_path), "auto_collect": True, "collect_lengths": [16, 129]}
    message = (
        r"tensorrt\.auto_collect: .* can't run .*\[1, 129\].*: change collect_lengths or collect_batches"
    )
    with pytest.raises(ConfigError, match=message):
        configure(RecordingConfig(model), model, local_conf(device_type=2, tensorrt=keys))
    assert not list(tmp_path.iterdir())


def test_shapes_that_are_given_are_not_collected(pdmodel: ServingModel, tmp_path: Path) -> None:
    config = RecordingConfig(pdmodel)
    keys = local_conf(device_type=2, tensorrt={"cache_dir": str(tmp_path), "auto_collect": True})
    configure(config, pdmodel, keys, dynamic_shapes=DynamicShapes.from_info(SHAPES))
    assert config.shapes[1]["input_ids"] == [10, 64]
    assert not list(tmp_path.iterdir())


def test_tensorrt_of_a_paddle_3_program_names_the_other_ways(classifier: ServingModel) -> None:
    with pytest.raises(
        ConfigError, match=r"\.pdmodel programs only: convert the model with --format pdmodel, or set"
    ):
        configure(RecordingConfig(classifier), classifier, local_conf(device_type=2))


def test_several_files_of_shapes_are_for_onnx_models(pdmodel: ServingModel, tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("short", "long")]
    for file, lengths in zip(files, ("1,16", "17,32"), strict=True):
        assert main(["shapes", str(pdmodel.directory), file, "--lengths", lengths, "--batches", "1,6"]) == 0
    keys = local_conf(device_type=2, tensorrt={"cache_dir": str(tmp_path), "shapes": files})
    with pytest.raises(ConfigError, match=r"shapes names 2 files.*length class by an Op of its own"):
        configure(RecordingConfig(pdmodel), pdmodel, keys)
