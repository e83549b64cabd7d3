"""The cost of a request for the front: parts are counted before they are decoded, large tensors are left."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelInferResponse
from client.protos.pipeline_service_pb2 import Request as RequestMessage
from pipeline.wire.paddle_tensors import to_message
from tests.support.service_process import APPS, PATIENCE_S, ServiceProcess

TENSORS, ROWS = 64, 1500
LARGE = 30_000  # elements of a list that makes a large body
V2_GRPC = "/inference.GRPCInferenceService/ModelInfer"
INFER, GENERATE, PREDICT = "/v2/models/test/infer", "/v2/models/test/generate", "/v1/models/test:predict"
WIDTH = 100


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = {"dag": {"http_errors": "status"}, "limits": {"tensors": TENSORS, "rows": ROWS}}
    with ServiceProcess(APPS / "rows.py", config, env={"DECLARED": "wide"}) as process:
        yield process


def v2_document(rows: int, **more: Any) -> dict[str, Any]:
    tensors = {"image": [rows, WIDTH], "threshold": [rows]}
    inputs = [
        {"name": name, "shape": shape, "datatype": "FP32", "data": data(rows)[name].ravel().tolist()}
        for name, shape in tensors.items()
    ]
    return {"inputs": inputs, **more}


def data(rows: int) -> dict[str, Any]:
    random = np.random.default_rng(rows)
    image = random.standard_normal((rows, WIDTH)).astype(np.float32)
    return {"image": image, "threshold": np.arange(rows, dtype=np.float32)}


def v2_message(rows: int) -> ModelInferRequest:
    request = ModelInferRequest(model_name="test")
    for name, array in data(rows).items():
        tensor = request.inputs.add(name=name, datatype="FP32", shape=array.shape)
        tensor.contents.fp32_contents.extend(array.ravel().tolist())
    return request


PARAMETERS = {f"p{number}": "x" * 10 for number in range(LARGE)}
LONG = ["x" * 10] * LARGE
REFUSED: dict[str, tuple[str, Any]] = {
    "parameters": (INFER, v2_document(1, parameters=PARAMETERS)),
    "outputs": (INFER, v2_document(1, outputs=[{"name": "threshold"}] * LARGE)),
    "inputs": (INFER, {"inputs": v2_document(1)["inputs"] * LARGE}),
    "parameters of an input": (
        INFER,
        {"inputs": [{**one, "parameters": PARAMETERS} for one in v2_document(1)["inputs"]]},
    ),
    "shape": (INFER, {"inputs": [{**v2_document(1)["inputs"][0], "shape": [1] * 20 * LARGE}]}),
    "a few too many outputs": (INFER, v2_document(1, outputs=[{"name": "threshold"}] * (TENSORS + 1))),
    "generate": (GENERATE, {"threshold": LONG}),
    "generate's parameters": (GENERATE, PARAMETERS),
    "v1 parameters": (PREDICT, {"instances": [{}], "parameters": PARAMETERS}),
    "key and value": ("/test/prediction", {"key": LONG, "value": LONG}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_more_parts_than_tensors_can_have_are_refused(service: ServiceProcess, case: str) -> None:
    path, document = REFUSED[case]
    answer = service.http(path, json.dumps(document))
    assert answer.status in (400, 413, 500)
    assert "limits.tensor" in answer.body.decode() or case == "shape"


def repeated(number: int, field: bytes) -> bytes:
    """A request whose input, or the request itself (0), has a field very often."""
    request = v2_message(1)
    if not number:
        return request.SerializeToString() + field * LARGE
    tensor = request.inputs[0].SerializeToString() + field * LARGE
    whole = ModelInferRequest(model_name="test").SerializeToString()
    size = bytes([len(tensor) & 127 | 128, len(tensor) >> 7 & 127 | 128, len(tensor) >> 14])
    return whole + b"\x2a" + size + tensor


@pytest.mark.parametrize(
    ("number", "field"),
    [
        (0, b"\x22\x08\x0a\x02aa\x12\x02\x10\x01"),
        (0, b"\x32\x03\x0a\x01a"),
        (1, b"\x22\x08\x0a\x02aa\x12\x02\x10\x01"),
    ],
    ids=["parameters", "outputs", "parameters of an input"],
)
def test_more_fields_than_tensors_can_have_are_refused_over_grpc(
    service: ServiceProcess, number: int, field: bytes
) -> None:
    with service.channel() as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(V2_GRPC)(repeated(number, field), timeout=PATIENCE_S)
    assert "limits.tensors" in str(refusal.value.details())


def test_large_tensors_are_answered_over_v2(service: ServiceProcess) -> None:
    rows = 1000
    document = json.dumps(v2_document(rows))
    assert len(document) > 1 << 20
    (output,) = service.http(INFER, document).json["outputs"]
    assert output["data"] == data(rows)["threshold"].tolist()
    answer = service.raw_rpc(v2_message(rows).SerializeToString(), method=V2_GRPC)
    raw = ModelInferResponse.FromString(answer).raw_output_contents[0]
    assert np.frombuffer(raw, "<f4").tolist() == data(rows)["threshold"].tolist()


@pytest.mark.parametrize("columns", [False, True])
def test_large_tensors_are_answered_over_v1(service: ServiceProcess, columns: bool) -> None:
    tensors = {name: array.tolist() for name, array in data(1000).items()}
    names = list(tensors)
    instances = [dict(zip(names, row, strict=True)) for row in zip(*tensors.values(), strict=True)]
    answer = service.http(PREDICT, json.dumps({"inputs": tensors} if columns else {"instances": instances}))
    assert answer.status == 200, answer.body[:300]
    values = answer.json["outputs"] if columns else [row["threshold"] for row in answer.json["predictions"]]
    assert np.ravel(values["threshold"] if columns else values).tolist() == tensors["threshold"]


KEY_VALUE = "/test/prediction"


def key_value_tensors(rows: int) -> dict[str, Any]:
    return {
        "tensors": [
            {"name": name, "elem_type": 1, "float_data": array.ravel().tolist(), "shape": array.shape}
            for name, array in data(rows).items()
        ]
    }


def key_value_message(rows: int) -> RequestMessage:
    return RequestMessage(tensors=[to_message(name, array) for name, array in data(rows).items()])


def test_large_tensors_are_answered_over_key_value(service: ServiceProcess) -> None:
    with np.printoptions(legacy="1.25", threshold=1 << 20):
        expected = [repr(data(1000)["threshold"])]
    answer = service.http(KEY_VALUE, json.dumps(key_value_tensors(1000)))
    assert (answer.status, answer.json["key"], answer.json["value"]) == (200, ["threshold"], expected)
    answered = service.rpc(key_value_message(1000), timeout_s=PATIENCE_S)
    assert (answered.err_no, list(answered.key), list(answered.value)) == (0, ["threshold"], expected)


def test_malformed_numbers_of_large_tensors_fail_their_request_alone(service: ServiceProcess) -> None:
    wrong = key_value_tensors(1000)
    wrong["tensors"][0]["float_data"][-1] = "x"
    message = key_value_message(1000)
    message.tensors[0].float_data.append(0)
    with ThreadPoolExecutor(8) as pool:
        bodies = [json.dumps(document) for document in (wrong, key_value_tensors(1000))] * 4
        answers = list(pool.map(lambda body: service.http(KEY_VALUE, body), bodies))
        messages = [message, key_value_message(1000)] * 4
        answered = list(pool.map(lambda one: service.rpc(one, timeout_s=PATIENCE_S), messages))
    assert [answer.status for answer in answers] == [400, 200] * 4
    assert (
        answers[0].json["err_no"] == 8000 and "'float_data' of tensor 'image'" in answers[0].json["err_msg"]
    )
    assert [answer.err_no for answer in answered] == [8000, 0] * 4
    assert "cannot reshape array of size 100001" in answered[0].err_msg


def test_contents_of_another_length_are_refused(service: ServiceProcess) -> None:
    request = v2_message(1000)
    request.inputs[0].contents.fp32_contents.append(0)
    with service.channel() as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(V2_GRPC)(request.SerializeToString(), timeout=PATIENCE_S)
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "Expected 400000, got 400004" in str(refusal.value.details())


def test_more_rows_than_allowed_are_refused(service: ServiceProcess) -> None:
    answer = service.http(INFER, json.dumps(v2_document(ROWS + 1)))
    assert answer.status == 400 and f"limits.rows is {ROWS}" in answer.body.decode()
    with service.channel() as channel, pytest.raises(grpc.RpcError) as refusal:
        channel.unary_unary(V2_GRPC)(v2_message(ROWS + 1).SerializeToString(), timeout=PATIENCE_S)
    assert f"limits.rows is {ROWS}" in str(refusal.value.details())
    instances = [{"image": [0.0] * WIDTH, "threshold": 0.0}] * (ROWS + 1)
    answer = service.http(PREDICT, json.dumps({"instances": instances}))
    assert answer.status == 413 and f"limits.rows is {ROWS}" in answer.body.decode()
