"""What a client may send at most, on every endpoint: more is refused, and costs nobody else anything."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator

import grpc
import pytest

from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from client.protos.pipeline_service_pb2 import Request, Response
from tests.support.front_memory import front_bytes
from tests.support.going_on import going_on
from tests.support.service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, key_value

LIMITS = {
    "body_bytes": 200_000,
    "tensors": 8,
    "header_bytes": 4096,
    "json_depth": 8,
    "text_chars": 6000,
}
V2 = "/inference.GRPCInferenceService/"
PREDICT, INFER = "/test/prediction", "/v2/models/test/infer"


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = {"dag": {"http_errors": "status"}, "limits": LIMITS}
    with ServiceProcess(APPS / "echo.py", config) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    """And the front has not grown."""
    with going_on(service):
        yield
    assert front_bytes(service) < 200e6


def rpc_refusal(service: ServiceProcess, method: str, data: bytes, **more: object) -> grpc.StatusCode:
    with service.channel() as channel, pytest.raises(grpc.RpcError) as told:
        channel.unary_unary(method)(data, timeout=PATIENCE_S, **more)
    code: grpc.StatusCode = told.value.code()
    return code


def key_value_error(service: ServiceProcess, message: Request | bytes) -> str:
    data = message if isinstance(message, bytes) else message.SerializeToString()
    answer = Response.FromString(service.raw_rpc(data))
    assert answer.err_no == 5000, answer
    return answer.err_msg


def test_more_keys_than_allowed_are_refused(service: ServiceProcess) -> None:
    inputs = {f"k{i}": "1" for i in range(9)}
    answer = service.http(PREDICT, key_value(inputs))
    assert answer.status == 413 and "limits.tensors is 8" in answer.json["err_msg"]
    assert "limits.tensors is 8" in key_value_error(service, Request(key=list(inputs), value=["1"] * 9))
    assert service.ask({f"k{i}": "1" for i in range(8)})["err_no"] == 0


@pytest.mark.parametrize("tensor", ["{}", '{"name": "a{b", "str_data": ["c"]}'])
def test_more_tensors_than_allowed_are_refused_before_they_are_made(
    service: ServiceProcess, tensor: str
) -> None:
    answer = service.http(PREDICT, '{"tensors":[' + ",".join([tensor] * 4000) + "]}")
    assert answer.status == 413
    assert "4001 objects" in answer.json["err_msg"]


def test_braces_in_texts_are_no_tensors(service: ServiceProcess) -> None:
    assert service.predict({"number": "1", "text": "{" * 5000})["doubled"] == "2"


@pytest.mark.parametrize("field", [b"\x1a\x00", b"\x0a\x00", b"\x12\x00"], ids=["tensors", "keys", "values"])
def test_a_message_of_nothing_but_fields_is_refused_before_it_is_parsed(
    service: ServiceProcess, field: bytes
) -> None:
    assert "more than 32 fields" in key_value_error(service, field * 90_000)


def test_more_inputs_than_allowed_are_refused(service: ServiceProcess) -> None:
    one = {"shape": [1], "datatype": "BYTES", "data": ["1"]}
    document = {"inputs": [{"name": f"k{i}", **one} for i in range(9)]}
    answer = service.http(INFER, json.dumps(document))
    assert answer.status == 400 and "limits.tensors is 8" in answer.json["error"]
    message = ModelInferRequest(model_name="test")
    for i in range(9):
        message.inputs.add(name=f"k{i}", datatype="BYTES", shape=[1]).contents.bytes_contents.append(b"1")
    data = message.SerializeToString()
    assert rpc_refusal(service, V2 + "ModelInfer", data) is grpc.StatusCode.INVALID_ARGUMENT
    fields = b"\x2a\x00" * 90_000
    assert rpc_refusal(service, V2 + "ModelInfer", fields) is grpc.StatusCode.INVALID_ARGUMENT
    with service.channel() as channel:
        stream = channel.stream_stream(V2 + "ModelStreamInfer")(iter([fields]), timeout=PATIENCE_S)
        assert "fields" in ModelStreamInferResponse.FromString(next(stream)).error_message


NESTED = "[" * 9 + "]" * 9


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, '{"key":["a"],"value":["b"],"other":' + NESTED + "}"),
        (INFER, '{"inputs":[{"name":"a","shape":[1],"datatype":"BYTES","data":' + NESTED + "}]}"),
        (INFER, '{"inputs":[],"parameters":{"a":' + NESTED + "}}"),
        ("/v2/models/test/generate", '{"a":' + NESTED + "}"),
        ("/v1/models/test:predict", '{"instances":' + NESTED + "}"),
    ],
)
def test_json_that_nests_too_deep_is_refused_at_every_endpoint(
    service: ServiceProcess, path: str, body: str
) -> None:
    answer = service.http(path, body)
    assert answer.status == 413
    assert b"limits.json_depth is 8" in answer.body


LONG = "a" * 6001


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, {"key": ["text"], "value": [LONG]}),
        (PREDICT, {"tensors": [{"name": "text", "elem_type": 12, "shape": [1], "str_data": [LONG]}]}),
        (INFER, {"inputs": [{"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", LONG]}]}),
        ("/v2/models/test/generate", {"text": LONG}),
        ("/v1/models/test:predict", {"instances": [{"text": LONG}]}),
    ],
)
def test_a_text_too_long_is_refused_at_every_endpoint(
    service: ServiceProcess, path: str, body: object
) -> None:
    answer = service.http(path, json.dumps(body))
    assert answer.status == 413, answer
    assert b"limits.text_chars is 6000" in answer.body
    shorter = service.http(path, json.dumps(body).replace(LONG, LONG[1:]))
    assert b"limits" not in shorter.body


def test_an_element_of_bytes_too_long_is_refused_over_grpc(service: ServiceProcess) -> None:
    for text, refused in ((LONG, True), (LONG[1:], False)):
        message = ModelInferRequest(model_name="test")
        tensor = message.inputs.add(name="text", datatype="BYTES", shape=[1])
        tensor.contents.bytes_contents.append(text.encode())
        if refused:
            code = rpc_refusal(service, V2 + "ModelInfer", message.SerializeToString())
            assert code is grpc.StatusCode.INVALID_ARGUMENT
        else:
            assert service.raw_rpc(message.SerializeToString(), method=V2 + "ModelInfer")


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_refused_before_it_goes_off(service: ServiceProcess, encoding: str) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[encoding]
    answer = service.http(INFER, pack(b"[" * (32 << 20)), headers={"Content-Encoding": encoding})
    assert answer.status == 413 and "200000 bytes once decompressed" in answer.json["error"]


@pytest.mark.parametrize("encoding", ["gzip, gzip", "gzip,deflate", "br", "GZIP gzip"])
def test_encodings_within_encodings_are_not_read(service: ServiceProcess, encoding: str) -> None:
    body = gzip.compress(gzip.compress(b'{"inputs":[]}'))
    assert service.http(INFER, body, headers={"Content-Encoding": encoding}).status == 501


def test_a_bomb_over_grpc_is_refused(service: ServiceProcess) -> None:
    bomb = Request(key=["a"], value=["b" * 10 * LIMITS["body_bytes"]]).SerializeToString()
    code = rpc_refusal(service, RPC_METHOD, bomb, compression=grpc.Compression.Gzip)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    fits = Request(key=["text"], value=["b" * 1000]).SerializeToString()
    with service.channel() as channel:
        answer = channel.unary_unary(RPC_METHOD)(fits, timeout=PATIENCE_S, compression=grpc.Compression.Gzip)
    assert Response.FromString(answer).err_no == 0


def test_metadata_over_the_limit_are_refused(service: ServiceProcess) -> None:
    metadata = [(f"x-{i}", "y" * 1000) for i in range(6)]
    data = Request(key=["a"], value=["b"]).SerializeToString()
    code = rpc_refusal(service, RPC_METHOD, data, metadata=metadata)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


def test_messages_nested_in_messages_are_refused(service: ServiceProcess) -> None:
    groups = b"\x7b" * 50_000
    with service.channel() as channel:
        answer = Response.FromString(channel.unary_unary(RPC_METHOD)(groups, timeout=PATIENCE_S))
    assert answer.err_no != 0
    assert rpc_refusal(service, V2 + "ModelInfer", groups[:9000]) is grpc.StatusCode.INTERNAL


DIGITS, ZEROS = "9" * 5000, "1" + "0" * 400
INPUT = '{"inputs":[{"name":"a","shape":[1],"datatype":"FP32",'


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PREDICT, f'{{"tensors":[{{"name":"a","elem_type":{DIGITS}}}]}}', 400),
        (PREDICT, f'{{"tensors":[{{"name":"a","shape":["{DIGITS}"]}}]}}', 400),
        (PREDICT, f'{{"key":["a"],"value":["b"],"logid":{DIGITS}}}', 400),
        (INFER, f'{{"inputs":[{{"name":"a","shape":[{DIGITS}],"datatype":"INT32","data":[1]}}]}}', 500),
        (INFER, f'{INPUT}"data":[{DIGITS}]}}]}}', 500),
        (INFER, f'{INPUT}"data":[{ZEROS}]}}]}}', 500),
        (INFER, f'{INPUT}"parameters":{{"binary_data_size":{DIGITS}}}}}]}}', 500),
        ("/v1/models/test:predict", f'{{"instances":[{{"a":{DIGITS}}}]}}', 400),
        ("/v2/models/test/generate", f'{{"a":{DIGITS}}}', 500),
    ],
)
def test_numbers_of_thousands_of_digits_are_refused(
    service: ServiceProcess, path: str, body: str, status: int
) -> None:
    answer = service.http(path, body)
    assert answer.status == status, answer
    assert b"internal error" not in answer.body


def test_of_a_member_given_twice_the_last_counts(service: ServiceProcess) -> None:
    answer = service.http(PREDICT, '{"key":["number"],"value":["1"],"value":["5"]}')
    assert answer.json["value"][1] == "10"
    twice = (
        '{"inputs":[],"inputs":[{"name":"number","shape":[1],"shape":[1],"datatype":"BYTES","data":["6"]}]}'
    )
    outputs = {each["name"]: each["data"] for each in service.http(INFER, twice).json["outputs"]}
    assert outputs["doubled"] == ["12"]
