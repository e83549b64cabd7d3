"""Example feeds of a model: from a file beside it, or in declared shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.errors import ConfigError
from pipeline.models.serving_model import ServingModel, load_serving_model
from tests.support import onnx_models
from tests.support.service_process import APPS, ServiceProcess

SHAPES = {"input": [1, 64], "state": [2, 1, 4], "sr": []}


def speech(folder: Path, shapes: Any) -> ServingModel:
    model = onnx_models.bare(folder, "speech")
    (model / "serving.yml").write_text(json.dumps({"warmup_shapes": shapes}), "utf-8")
    return load_serving_model(model)


def test_declared_shapes_are_filled_with_ones(tmp_path: Path) -> None:
    example = speech(tmp_path, SHAPES).read_example()
    assert {name: list(array.shape) for name, array in example.items()} == SHAPES
    assert {array.dtype.name for array in example.values()} == {"float32", "int64"}
    assert example["sr"] == 1 and (example["input"] == 1).all()


def test_a_file_goes_before_the_shapes(tmp_path: Path) -> None:
    model = speech(tmp_path, SHAPES)
    np.savez(model.directory / "example.npz", sr=np.array(16000))
    assert model.read_example() == {"sr": 16000}


@pytest.mark.parametrize(
    ("shapes", "expected"),
    [
        ([1], "is not a mapping of feeds to shapes"),
        ({"y": [1]}, "the model has no feed 'y', only input, state, sr"),
        ({"input": 3}, "warmup_shapes.input is 3, expected lengths from 1 up"),
        ({"input": [1, 0]}, "warmup_shapes.input is [1, 0]"),
        ({"input": [1, 1 << 40]}, "warmup_shapes.input is"),
        ({"input": [1]}, "warmup_shapes.input is [1], but the feed takes"),
        ({"state": [3, 1, 4]}, "warmup_shapes.state is [3, 1, 4], but the feed takes"),
    ],
)
def test_shapes_that_the_model_does_not_take(tmp_path: Path, shapes: Any, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        speech(tmp_path, shapes).read_example()
    assert expected in caught.value.message


def test_an_op_declares_shapes_for_the_warm_up(tmp_path: Path) -> None:
    conf = {"model_config": str(onnx_models.bare(tmp_path, "speech")), "thread_num": 1}
    variables = {"WARMUP_SHAPES": json.dumps(SHAPES)}
    config = {"op": {"model": {"local_service_conf": conf}}}
    with ServiceProcess(APPS / "model.py", config, env=variables) as service:
        assert "is warm" in service.log and "not warmed up" not in service.log
