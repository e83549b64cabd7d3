"""ONNX models with every kind of input, mostly from the tests.

ONNX's evaluator computes the expected answers.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from bench.models.subject import LENGTH, ROWS, Subject, keep
from convert.steps.progress import Steps

FAMILY = "ONNX"
FIXTURES = Path(__file__).parents[2] / "tests" / "fixtures" / "onnx"
_SOURCE = "model.onnx"


def make(steps: Steps, folder: str, fixture: str) -> str:
    """Write one of the models of the tests."""
    source = Path(folder, _SOURCE)
    shutil.copy(FIXTURES / f"{fixture}.onnx", source)
    return _keep_expected(folder, source, _GIVEN[fixture])


def make_sequence_input(steps: Steps, folder: str) -> str:
    """Write a model whose input is a sequence of tensors, which no single tensor can replace."""
    import onnx
    from onnx import TensorProto, helper

    inputs = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, ["N", 4])
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])
    node = helper.make_node("ConcatFromSequence", ["parts"], ["y"], axis=0)
    graph = helper.make_graph([node], "parts", [inputs], [output])
    source = Path(folder, _SOURCE)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), source)
    return str(source)


def make_of_opset(steps: Steps, folder: str, opset: int) -> str:
    """Write a layer with operators of a late opset: Gelu and LayerNormalization."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(5)
    arrays = {"weight": (6, 6), "scale": (6,), "bias": (6,)}
    weights = [
        numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)
        for name, shape in arrays.items()
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("LayerNormalization", ["product", "scale", "bias"], ["normal"], axis=-1),
        helper.make_node("Gelu", ["normal"], ["y"]),
    ]
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 6]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "layer", shapes[:1], shapes[1:], weights)
    source = Path(folder, _SOURCE)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), source)
    return _keep_expected(folder, source, {"x": _numbers(ROWS, 6)})


def _keep_expected(folder: str, source: Path, inputs: dict[str, Any]) -> str:
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(str(source))
    answers = dict(zip(evaluator.output_names, evaluator.run(None, inputs), strict=True))
    keep(folder, *({name: _storable(array) for name, array in many.items()} for many in (inputs, answers)))
    return str(source)


def _storable(value: Any) -> Any:
    """Return texts in a type that NumPy stores without pickle."""
    array = np.asarray(value)
    return array.astype(str) if array.dtype.kind == "O" else array


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


def _ids(*shape: int) -> Any:
    return np.random.default_rng(7).integers(0, 60, shape)


_MASKED = {
    "input_ids": _ids(ROWS, LENGTH),
    "token_type_ids": np.ones((ROWS, LENGTH), np.int64),
    "attention_mask": np.ones((ROWS, LENGTH), np.int64),
}
_GIVEN: dict[str, dict[str, Any]] = {
    "fixed": {"x": _numbers(1, 4), "rate": np.array(3, np.float32)},
    "photos_of_four": {"image": _numbers(4, 3, 32, 32)},
    "photos": {"image": _numbers(ROWS, 3, 32, 32)},
    "images": {"image": _numbers(ROWS, 3, 6, 5)},
    "classifier": _MASKED,
    "tags": {"input_ids": _ids(ROWS, LENGTH)},
    "series": {"x": _numbers(ROWS, LENGTH, 6)},
    "stateful": {
        "x": _numbers(ROWS, 4), "state": _numbers(2, ROWS, 4), "rate": np.array(0.5, np.float32),
    },
    "words": {"word": np.array([["up"], ["down"]], object)},
    "people": {
        "age": np.array([[61], [20]], np.float32), "hours": np.array([[8.5], [40]], np.float32),
        "job": np.array([["clerk"], ["nurse"]], object),
    },
    "captioned": {"image": _numbers(ROWS, 3, 4, 4), "ids": np.arange(6).reshape(ROWS, 3)},
    "flowers": {"x": _numbers(ROWS, 4)},
    "sequence": {"x": _numbers(ROWS, 4)},
}  # fmt: skip


def _of_tests(name: str, fixture: str, *options: str, refused: str = "") -> Subject:
    arguments = {"fixture": fixture}
    return Subject(name, FAMILY, f"{__name__}:make", ("onnx",), arguments, options, refused=refused)


SUBJECTS = (
    _of_tests("one row and a scalar, no other number", "fixed"),
    _of_tests("four images, no other number", "photos_of_four"),
    _of_tests("four images, with --rebatch", "photos_of_four", "--rebatch"),
    _of_tests("images of one size", "photos"),
    _of_tests("images of any size", "images"),
    _of_tests("texts of any length", "classifier"),
    _of_tests("tokens of any length", "tags"),
    _of_tests("a series of any length", "series"),
    _of_tests("a state that goes along", "stateful"),
    _of_tests("strings", "words"),
    _of_tests("strings beside numbers", "people"),
    _of_tests("an image and a text", "captioned"),
    _of_tests("label and probabilities", "flowers"),
    Subject(
        "opset 20, Gelu and LayerNormalization", FAMILY, f"{__name__}:make_of_opset", ("onnx",),
        {"opset": 20},
    ),
    _of_tests("a sequence of tensors as output", "sequence", refused="is no tensor"),
    Subject(
        "a sequence of tensors as input", FAMILY, f"{__name__}:make_sequence_input", ("onnx",),
        refused="is no tensor",
    ),
)  # fmt: skip
