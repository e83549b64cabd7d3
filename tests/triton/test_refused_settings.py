"""Flawed config.pbtxt of models and ensembles, which the reader of repositories refuses in Triton's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.triton.repository import ModelRepository
from tests.support.triton_repository import write_model

X = 'input { name: "X" data_type: TYPE_FP32 dims: 2 }\n'
Y = 'output { name: "Y" data_type: TYPE_FP32 dims: 2 }\n'
IDENTITY = f'backend: "identity"\n{X}{Y}'
BATCH_INPUT = 'batch_input { kind: BATCH_ITEM_SHAPE data_type: TYPE_FP32 target_name: "S" '
BATCH_OUTPUT = "batch_output { kind: BATCH_SCATTER_WITH_INPUT_SHAPE "


def step(inputs: str = "X", outputs: str = "Y", model: str = "echo") -> str:
    """A step of an ensemble: names of its tensors in the ensemble, for inputs X0, ... and outputs Y0, ..."""
    maps = [
        f'{field} {{ key: "{letter}{number}" value: "{name}" }}'
        for field, letter, names in (("input_map", "X", inputs), ("output_map", "Y", outputs))
        for number, name in enumerate(names.split())
    ]
    return f'step {{ model_name: "{model}" {" ".join(maps)} }}'


def ensemble(*steps: str, more: str = "") -> str:
    return f'platform: "ensemble"\n{X}{Y}{more}ensemble_scheduling {{ {" ".join(steps)} }}'


TENSORS = {
    "image": (
        IDENTITY.replace("dims: 2", "dims: 2 format: FORMAT_NCHW", 1),
        "model input NHWC/NCHW require 3 dims for {}",
    ),
    "shape": (
        IDENTITY.replace("dims: 2", "dims: 2 is_shape_tensor: true", 1),
        "shape tensors are only supported for TensorRT platform for {}",
    ),
    "dims": (
        IDENTITY.replace("dims: 2", "dims: 0", 1),
        "model input 'X' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for {}",
    ),
    "no_dims": (IDENTITY.replace("dims: 2", "", 1), "model input 'X' must specify 'dims' for {}"),
    "no_name": (IDENTITY.replace('name: "Y"', "", 1), "model output must specify 'name' for {}"),
    "zero_reshape": (
        IDENTITY.replace("dims: 2", "dims: 2 reshape { shape: [ 0, 2 ] }", 1),
        "model input 'X' reshape dimensions must be integer >= 1, or -1 to indicate",
    ),
    "open_reshape": (
        IDENTITY.replace("dims: 2", "dims: [ -1, -1 ] reshape { shape: [ -1 ] }", 1),
        "model input 'X' has different number of variable-size dimensions for dims and reshape for {}",
    ),
    "no_source": (
        f"{IDENTITY}{BATCH_INPUT} }}",
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for {}",
    ),
    "source": (f'{IDENTITY}{BATCH_INPUT} source_input: "Z" }}', "unknown source input name 'Z' for {}"),
    "batch_type": (
        f'{IDENTITY}{BATCH_INPUT} source_input: "X" }}'.replace("TYPE_FP32 target", "TYPE_INT64 target"),
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for {}",
    ),
    "target": (
        f'{IDENTITY}{BATCH_OUTPUT} source_input: "X" target_name: "Z" }}',
        "unknown target output name 'Z' for {}",
    ),
    "two_targets": (
        f'{IDENTITY}{BATCH_OUTPUT} source_input: "X" target_name: [ "Y", "Y" ] }}',
        "target output name 'Y' can only be specified once for {}",
    ),
}
SETTINGS = {
    "platform": (f'platform: "caffe2"\n{X}{Y}', "unexpected platform type 'caffe2' for {}"),
    "pair": (
        f'platform: "tensorrt_plan" backend: "onnxruntime"\n{X}{Y}',
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    "no_backend": (f"{X}{Y}", "Could not determine backend for model '{}' with no backend"),
    "model.unheard": (f"{X}{Y}", "unable to find backend library for backend 'unheard'"),
    "negative": (f"{IDENTITY}max_batch_size: -1", "'max_batch_size' must be non-negative value for {}"),
    "profile": (
        f'{IDENTITY}instance_group {{ profile: "1" }}',
        "specifies profile field which is only supported for TensorRT models",
    ),
    "no_preference": (
        f"{IDENTITY}dynamic_batching {{ preferred_batch_size: 0 }}",
        "dynamic batching preferred size must be positive for {}",
    ),
    "cached_sequences": (
        f"{IDENTITY}sequence_batching {{ }} response_cache {{ enable: true }}",
        "Response Cache does not currently support model {} with sequence batching scheduler",
    ),
}
ENSEMBLES = {
    "unscheduled": (
        f'platform: "ensemble"\n{X}{Y}',
        "ensemble scheduling must be set for ensemble {} whose platform is ensemble",
    ),
    "scheduled": (
        f'backend: "identity"\n{X}{Y}ensemble_scheduling {{ {step()} }}',
        "ensemble scheduling cannot be set for model '{}' whose platform is not ensemble",
    ),
    "backed": (
        ensemble(step(), more='backend: "identity"\n'),
        "Ensemble model '{}' must have platform type 'ensemble' and empty backend type",
    ),
    "instances": (
        ensemble(step(), more="instance_group { count: 2 }\n"),
        "instance group should not be specified for ensemble '{}'",
    ),
    "optimized": (
        ensemble(step(), more="optimization { }\n"),
        "optimization should not be specified for ensemble '{}'",
    ),
    "warm": (
        ensemble(step(), more='model_warmup { name: "w" }\n'),
        "model_warmup can not be specified for ensemble '{}'",
    ),
    "no_step": (ensemble(), "must specify 'step' for ensemble '{}'"),
    "no_model": (ensemble(step(model="")), "must specify 'model_name' in step 0 of ensemble '{}'"),
    "no_inputs": (
        ensemble(step(), step(inputs="", outputs="t")),
        "must specify 'input_map' in step 1 of ensemble '{}'",
    ),
    "no_outputs": (ensemble(step(outputs="")), "must specify 'output_map' in step 0 of ensemble '{}'"),
    "twice": (
        ensemble(step(), step()),
        "ensemble tensor 'Y' can appear in an output map only once for ensemble '{}' step 1",
    ),
    "unused_input": (ensemble(step(inputs="Z")), "ensemble input 'X' for ensemble '{}' is not used"),
    "unused_output": (ensemble(step(outputs="t")), "ensemble output 'Y' for ensemble '{}' is not used"),
    "unconnected": (
        ensemble(step(inputs="X Z")),
        "output 'Y' for ensemble '{}' is not written: at least one of its depending tensors, 'Z', is not "
        "connected",
    ),
    "unused": (
        ensemble(step(), step(inputs="Z", outputs="t")),
        "ensemble tensor 'Z' is unused in ensemble '{}'",
    ),
    "unmapped": (
        ensemble(step()),
        "in ensemble {}, ensemble tensor X is mapping to non-existing input X0 in model echo",
    ),
    "absent": (
        ensemble(step(model="nothing")),
        "ensemble {} contains models that are not available or ambiguous: nothing",
    ),
}
CASES = TENSORS | SETTINGS | ENSEMBLES


@pytest.fixture(scope="module")
def reasons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Why each model of a repository with all cases can't be served."""
    folder = tmp_path_factory.mktemp("flawed")
    write_model(folder, "echo", IDENTITY)
    for name, (config, _) in CASES.items():
        write_model(folder, name, config)
    content = ModelRepository((folder,)).read_models()
    return {name: why.reason for name, why in content.unavailable.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_flawed_configuration_is_refused_in_the_words_of_triton(reasons: dict[str, str], name: str) -> None:
    assert CASES[name][1].format(name) in reasons[name]


def test_a_model_is_served_beside_them(tmp_path: Path) -> None:
    write_model(tmp_path, "echo", IDENTITY)
    assert not ModelRepository((tmp_path,)).read_models().unavailable
