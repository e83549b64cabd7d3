"""What a client may send at most, on every door: more is refused, and costs nobody else anything."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import time
import zlib
from collections.abc import Iterator

import grpc
import pytest

from bench.fuzz import http2
from client.protos.kserve_v2_pb2 import ModelInferRequest, ModelStreamInferResponse
from client.protos.pipeline_service_pb2 import Request, Response
from service_process import APPS, PATIENCE_S, RPC_METHOD, ServiceProcess, key_value, wait_until

LIMITS = {
    "body_bytes": 200_000,
    "tensors": 8,
    "header_bytes": 4096,
    "header_timeout_s": 0.3,
    "body_timeout_s": 0.3,
    "idle_timeout_s": 1.0,
    "max_connections": 24,
    "connection_calls": 4,
    "json_depth": 8,
    "text_chars": 6000,
}
V2 = "/inference.GRPCInferenceService/"
PREDICT, INFER = "/test/prediction", "/v2/models/test/infer"
RST_STREAM = bytes([http2.RST_STREAM, 0, 0, 0, 0])  # as a frame has it, behind its length


@pytest.fixture(scope="module")
def service() -> Iterator[ServiceProcess]:
    config = {"dag": {"http_errors": "status"}, "limits": LIMITS}
    with ServiceProcess(APPS / "echo.py", config) as process:
        yield process


@pytest.fixture(autouse=True)
def goes_on(service: ServiceProcess) -> Iterator[None]:
    """Whatever a test sends, the same processes answer the next request, and none has grown."""
    pids = [service.process.pid, *service.worker_pids()]
    yield
    assert service.predict({"number": "21"})["doubled"] == "42"
    assert service.rpc({"number": "4"}).value[1] == "8"
    assert [service.process.pid, *service.worker_pids()] == pids
    assert service.metric("paddlewheel_resident_bytes", process="front") < 200e6
    assert "fault of ours" not in service.log


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
def test_json_that_nests_too_deep_is_refused_at_every_door(
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
def test_a_text_too_long_is_refused_at_every_door(service: ServiceProcess, path: str, body: object) -> None:
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
    # The client compresses it while the connection is idle, which is closed after a second.
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


# Connections that are slow, silent or too many:


def connected(service: ServiceProcess) -> socket.socket:
    return socket.create_connection(("127.0.0.1", service.rpc_port), timeout=PATIENCE_S)


def all_of(client: socket.socket) -> bytes:
    """What the service says until it closes the connection."""
    said = b""
    while received := client.recv(65536):
        said += received
    return said


@pytest.mark.parametrize(
    "start", [b"", http2.PREFACE[:9], http2.PREFACE], ids=["none", "half", "no settings"]
)
def test_a_connection_that_never_begins_http_2_is_closed(service: ServiceProcess, start: bytes) -> None:
    with connected(service) as client:
        client.sendall(start)
        all_of(client)


def test_a_call_whose_message_does_not_come_is_cancelled(service: ServiceProcess) -> None:
    head = http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 1)
    begun = http2.frame(http2.DATA, b"\x00\x00\x00\x01\x00only a few bytes", 0, 1)
    for slow in (head, head + begun):
        with connected(service) as client:
            client.sendall(http2.opening() + slow)
            said = b""
            while b"grpc-message" not in said:
                received = client.recv(65536)
                assert received, said
                said += received
            assert b"did not arrive within limits.body_timeout_s" in said


def test_a_slow_call_harms_no_other_of_its_connection(service: ServiceProcess) -> None:
    message = Request(key=["number"], value=["3"]).SerializeToString()
    head = http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 1)
    with connected(service) as client:
        client.sendall(http2.opening() + head + http2.call(RPC_METHOD.encode(), message, stream=3))
        said = b""
        while b"doubled" not in said:
            said += client.recv(65536)


def test_a_connection_has_no_more_calls_than_allowed(service: ServiceProcess) -> None:
    calls = b"".join(
        http2.frame(http2.HEADERS, http2.headers(RPC_METHOD.encode()), http2.END_HEADERS, 2 * i + 1)
        for i in range(12)
    )
    with connected(service) as client:
        client.sendall(http2.opening() + calls)
        said = b""
        while RST_STREAM not in said:
            received = client.recv(65536)
            assert received, said
            said += received
        assert b"\x00\x03\x00\x00\x00\x04" in said  # SETTINGS_MAX_CONCURRENT_STREAMS


def test_an_idle_connection_is_closed_on_both_ports(service: ServiceProcess) -> None:
    good = key_value({"number": "1"})
    with socket.create_connection(("127.0.0.1", service.http_port), timeout=PATIENCE_S) as client:
        client.sendall(
            b"POST %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (PREDICT.encode(), len(good)) + good
        )
        assert all_of(client).startswith(b"HTTP/1.1 200")
    with connected(service) as client:
        client.sendall(http2.opening() + http2.frame(http2.SETTINGS, flags=1))
        all_of(client)


def test_no_more_connections_are_open_than_allowed(service: ServiceProcess) -> None:
    idle = [connected(service) for _ in range(40)]
    try:
        for client in idle:
            client.sendall(http2.opening())
        closed = 0
        give_up = time.monotonic() + PATIENCE_S
        for client in idle[24:]:
            client.settimeout(max(0.1, give_up - time.monotonic()))
            try:
                closed += all_of(client) is not None
            except ConnectionResetError:
                closed += 1
        assert closed == 16
    finally:
        for client in idle:
            client.close()
    wait_until(lambda: is_answered(service), "there is room again")


def is_answered(service: ServiceProcess) -> bool:
    try:
        return service.rpc({"number": "1"}).err_no == 0
    except grpc.RpcError:  # refused: the service has not noticed yet that the others are closed
        return False


def test_what_connections_needed_is_given_back_when_they_are_closed() -> None:
    with ServiceProcess(APPS / "echo.py", {}) as service:
        before = front_bytes(service)
        with contextlib.ExitStack() as opened:
            for _ in range(900):
                client = opened.enter_context(connected(service))
                client.sendall(http2.opening())
                assert client.recv(65536), "it is the service's, not the kernel's alone"
            grown = front_bytes(service) - before
            assert grown > 10e6, "there is something to give back"
        wait_until(lambda: front_bytes(service) < before + 0.75 * grown, "a part of it is given back")


def front_bytes(service: ServiceProcess) -> float:
    return service.metric("paddlewheel_resident_bytes", process="front")
