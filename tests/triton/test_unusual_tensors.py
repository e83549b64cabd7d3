"""Tensors that few clients send: without elements, of rank 0, not UTF-8, bfloat16, optional."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as rpc
from ml_dtypes import bfloat16
from tritonclient.utils import InferenceServerException

from tests.support.repository_process import RepositoryProcess
from tests.support.service_process import HttpAnswer


@pytest.fixture
def client(details: RepositoryProcess) -> Iterator[rpc.InferenceServerClient]:
    with rpc.InferenceServerClient(details.rpc_address) as made:
        yield made


def tensor(name: str, datatype: str, array: np.ndarray[Any, Any]) -> rpc.InferInput:
    made = rpc.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def infer(details: RepositoryProcess, model: str, **fields: Any) -> HttpAnswer:
    x = {"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    return details.http(f"/v2/models/{model}/infer", json.dumps({"inputs": [x], **fields}))


def run_mixed(client: rpc.InferenceServerClient, **changed: np.ndarray[Any, Any]) -> rpc.InferResult:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "rows": np.ones((1, 4), np.float32),
        "texts": np.array([b"a"], object),
        "number": np.array([3.5], np.float32),
        "pair": np.array([1, 2], np.float32),
        **changed,
    }
    inputs = [tensor(name, "BYTES" if name == "texts" else "FP32", array) for name, array in arrays.items()]
    return client.infer("mixed", inputs)


def test_an_onnx_model_takes_tensors_without_elements(client: rpc.InferenceServerClient) -> None:
    answer = run_mixed(client, rows=np.zeros((0, 4), np.float32))
    assert answer.as_numpy("rows_out").shape == (0, 4)


def test_an_onnx_model_takes_bytes_that_are_no_utf_8(client: rpc.InferenceServerClient) -> None:
    texts = [b"\xff\xfe", "国足".encode(), b"a\x80b", b""]
    assert run_mixed(client, texts=np.array(texts, object)).as_numpy("texts_out").tolist() == texts


def test_an_onnx_model_has_inputs_of_rank_0(client: rpc.InferenceServerClient) -> None:
    assert run_mixed(client).as_numpy("number_out").tolist() == [3.5]


def test_an_initializer_is_an_optional_input(client: rpc.InferenceServerClient) -> None:
    assert run_mixed(client).as_numpy("pair_out").tolist() == [11, 22]
    stored = np.array([5, 5], np.float32)
    assert run_mixed(client, stored=stored).as_numpy("pair_out").tolist() == [6, 7]


def test_an_onnx_model_takes_bfloat16(client: rpc.InferenceServerClient) -> None:
    numbers = np.array([1.5, -2.0], bfloat16)
    assert client.infer("halves", [tensor("x", "BF16", numbers)]).as_numpy("y").tolist() == [1.5, -2.0]


def test_a_batch_without_rows_is_refused(
    details: RepositoryProcess, client: rpc.InferenceServerClient
) -> None:
    x = {"name": "X", "shape": [0, 2], "datatype": "FP32", "data": []}
    answer = infer(details, "two_rows", inputs=[x])
    assert answer.status == 400
    assert "inference request batch-size must be >= 1 for 'two_rows'" in answer.json["error"]
    with pytest.raises(InferenceServerException, match="batch-size must be >= 1"):
        client.infer("two_rows", [tensor("X", "FP32", np.zeros((0, 2), np.float32))])


def test_an_output_is_requested_once(details: RepositoryProcess, client: rpc.InferenceServerClient) -> None:
    answer = infer(details, "settings", outputs=[{"name": "Y"}, {"name": "Y"}])
    assert (answer.status, "output 'Y' already exists" in answer.json["error"]) == (400, True)
    x = tensor("X", "FP32", np.zeros(2, np.float32))
    with pytest.raises(InferenceServerException, match="already exists"):
        client.infer("settings", [x], outputs=[rpc.InferRequestedOutput("Y")] * 2)


def test_classes_of_a_type_without_scores_are_refused(client: rpc.InferenceServerClient) -> None:
    output = rpc.InferRequestedOutput("y", class_count=1)
    with pytest.raises(InferenceServerException, match="due to unsupported type 'BF16'") as refused:
        client.infer("halves", [tensor("x", "BF16", np.zeros(3, bfloat16))], outputs=[output])
    assert refused.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_classes_of_a_large_tensor_are_refused(client: rpc.InferenceServerClient) -> None:
    output = rpc.InferRequestedOutput("Y", class_count=1)
    x = tensor("X", "FP32", np.zeros(1_000_001, np.float32))
    with pytest.raises(InferenceServerException, match="classification output tensor too large"):
        client.infer("settings", [x], outputs=[output])


def test_a_parameter_of_streams_is_reserved(details: RepositoryProcess) -> None:
    answer = infer(details, "settings", parameters={"triton_enable_empty_final_response": True})
    assert (answer.status, "reserved for Triton usage" in answer.json["error"]) == (400, True)


def test_json_nests_up_to_100_levels(details: RepositoryProcess) -> None:
    def nested(levels: int) -> HttpAnswer:
        data: Any = [1, 2]
        for _ in range(levels - 4):  # the document, its inputs, the input and the data
            data = [data]
        x = {"name": "X", "shape": [2], "datatype": "FP32", "data": data}
        return infer(details, "settings", inputs=[x])

    assert nested(100).json["outputs"][0]["data"] == [1, 2]
    assert nested(101).status in (400, 413)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ([1 << 4, (1 << 60) + 2], "causes total element count to exceed maximum size of"),
        ([1 << 2, (1 << 60) + 2], "byte size overflow for input 'X'"),
    ],
)
def test_a_shape_with_more_elements_than_a_number_holds_is_refused(
    details: RepositoryProcess, shape: list[int], message: str
) -> None:
    x = {"name": "X", "shape": shape, "datatype": "FP32", "data": [1]}
    answer = infer(details, "settings", inputs=[x])
    assert (answer.status, message in answer.json["error"]) == (400, True), answer


def test_the_number_of_missing_inputs_has_two_bounds_with_optional_inputs(details: RepositoryProcess) -> None:
    x = {"name": "pair", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    message = infer(details, "mixed", inputs=[x]).json["error"]
    assert "expected number of inputs between 4 and 5 but got 1 inputs for model 'mixed'." in message
    assert "missing required input(s) ['rows','texts','number']." in message


def test_a_byte_order_mark_before_the_json_is_ignored(details: RepositoryProcess) -> None:
    x = {"name": "X", "shape": [2], "datatype": "FP32", "data": [1, 2]}
    body = b"\xef\xbb\xbf" + json.dumps({"inputs": [x]}).encode()
    assert details.http("/v2/models/settings/infer", body).json["outputs"][0]["data"] == [1, 2]


def test_the_index_takes_a_boolean_alone(details: RepositoryProcess) -> None:
    assert details.http("/v2/repository/index", b'{"ready": "x"}').status == 400
    assert details.http("/v2/repository/index", b'{"ready": true}').status == 200
