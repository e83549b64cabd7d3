"""Requests of unequal shapes that a model gets end to end, and the tensors that are made of a whole batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from onnx import TensorProto, helper

from client.protos.kserve_v2_pb2 import BatchInput, ModelConfig
from pipeline.triton.ragged_batch import find_ragged_errors, make_batch_input
from tests.support.repository_process import RepositoryProcess
from tests.support.triton_details import write_onnx
from tests.support.triton_repository import write_model

# Two requests of a row leave together.
CONFIG = """
backend: "onnxruntime"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
output { name: "end" data_type: TYPE_INT32 dims: 1 }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT target_name: "ends" data_type: TYPE_INT32 source_input: "x" }
batch_output { target_name: "y" kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "x" }
dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 600000000 }
"""
SHAPES = [(1, 3), (2, 4)]
PYTHON_CONFIG = """
backend: "python"
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "length" data_type: TYPE_INT32 dims: 1 }
output { name: "requests" data_type: TYPE_INT32 dims: 1 }
dynamic_batching { preferred_batch_size: 2 max_queue_delay_microseconds: 600000000 }
"""
PYTHON_MODEL = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.count(request, len(requests)) for request in requests]

    def count(self, request, requests):
        counts = {"length": request.inputs()[0].as_numpy().shape[1], "requests": requests}
        tensors = [pb_utils.Tensor(name, np.array([[count]], np.int32)) for name, count in counts.items()]
        return pb_utils.InferenceResponse(tensors)
"""


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [3, 8]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [3, 11]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 3, 11]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0] * 8),
        ("BATCH_ITEM_SHAPE", [[3], [4], [4]]),
        ("BATCH_ITEM_SHAPE_FLATTEN", [3, 4, 4]),
    ],
)
@pytest.mark.parametrize("data_type", ["TYPE_INT32", "TYPE_FP32"])
def test_each_kind_of_batch_input_describes_the_requests(kind: str, data_type: str, expected: Any) -> None:
    tensor = make_batch_input({"kind": kind, "data_type": data_type}, SHAPES)
    assert tensor.dtype == ("int32" if data_type == "TYPE_INT32" else "float32")
    assert tensor.tolist() == expected


def test_mistakes_in_batch_inputs_and_outputs_are_named() -> None:
    config = ModelConfig(name="model")
    config.batch_input.add(kind=BatchInput.BATCH_ITEM_SHAPE)
    config.batch_output.add(target_name=["y"], source_input=["x"])
    assert list(find_ragged_errors(config)) == [
        "batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for model",
        "batch_input of model: BATCH_ITEM_SHAPE has no target_name",
        "unknown source input name 'x' for model",
        "batch input data type must be TYPE_INT32 or TYPE_FP32 for model, and is TYPE_INVALID",
        "unknown target output name 'y' for model",
    ]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RepositoryProcess]:
    folder = tmp_path_factory.mktemp("ragged")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N"])
    ends = helper.make_tensor_value_info("ends", TensorProto.INT32, ["M"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N"])
    end = helper.make_tensor_value_info("end", TensorProto.INT32, ["M", 1])
    nodes = [
        helper.make_node("Add", ["x", "x"], ["y"]),
        helper.make_node("Unsqueeze", ["ends", "axis"], ["end"]),
    ]
    axis = helper.make_tensor("axis", TensorProto.INT64, [1], [1])
    write_onnx(folder, "ragged", CONFIG, nodes, [x, ends], [y, end], [axis])
    write_model(folder, "lengths", PYTHON_CONFIG, PYTHON_MODEL)
    with RepositoryProcess(folder) as process:
        yield process


def infer_together(server: RepositoryProcess, model: str) -> list[dict[str, Any]]:
    """Send requests of lengths 2 and 3 at once. Return the shape and data of each output by name."""

    def infer(length: int) -> dict[str, Any]:
        x = {"name": "x", "shape": [1, length], "datatype": "FP32", "data": list(range(length))}
        answer = server.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [x]})).json
        return {output["name"]: (output["shape"], output["data"]) for output in answer["outputs"]}

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(infer, (2, 3)))


def test_a_python_model_gets_requests_of_unequal_shapes_together(server: RepositoryProcess) -> None:
    answers = infer_together(server, "lengths")
    assert [(answer["length"][1], answer["requests"][1]) for answer in answers] == [([2], [2]), ([3], [2])]


def test_requests_of_unequal_shapes_share_a_run(server: RepositoryProcess) -> None:
    answers = infer_together(server, "ragged")
    assert [answer["y"] for answer in answers] == [
        ([1, length], [2.0 * number for number in range(length)]) for length in (2, 3)
    ]
    ends = sorted(answer["end"][1][0] for answer in answers)
    assert ends in ([2, 5], [3, 5]), "both were in one batch"
    (signature,) = server.http("/v2/models/ragged").json["inputs"]
    assert (signature["name"], signature["shape"]) == ("x", [-1, -1])
