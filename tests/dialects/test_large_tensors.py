"""Key/value tensors of large requests: the worker decodes them with the results of the front's decoding."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from pipeline.api.dag import MESSAGE
from pipeline.dialects import json_outline, message_fields
from pipeline.dialects.json_outline import make_outline
from pipeline.dialects.key_value import front
from pipeline.dialects.key_value.front import parse_http, parse_proto, pass_http_on, pass_proto_on
from pipeline.dialects.key_value.repository_models import match_inputs
from pipeline.dialects.key_value.unread import DeclaredTexts, UnreadMessage, UnreadTensor, UnreadText
from pipeline.errors import BadPackage, MalformedBody, ServingError
from pipeline.messages.frames import decode, encode, will_read
from pipeline.models.tensor_spec import Signature, TensorSpec
from pipeline.wire.paddle_tensors import to_message, to_npy
from tests.support.key_value_messages import LIMITS
from tests.support.recordings import RECORDINGS, body_of

will_read((DeclaredTexts, UnreadText, UnreadTensor, UnreadMessage))
RECORDED = [row for row in RECORDINGS if "tensor" in row["case"] and row["app"].startswith("probe")]
NPY = base64.b64encode(to_npy(np.arange(6, dtype=np.float32).reshape(2, 3))).decode()
TENSORS = [
    '"int64_data":[1,"2",null],"shape":[3]',
    '"int64Data":[1,2],"shape":[-1,1]',
    '"int64_data":[],"int64Data":[7],"shape":[1]',
    '"int64_data":[5],"float_data":[1,2],"shape":[1]',
    '"elem_type":1,"float_data":[1,2.5,"NaN"],"shape":[3]',
    '"elem_type":5,"float_data":[1,1e6],"shape":[2]',
    '"elem_type":9,"bool_data":[true,null],"shape":[2]',
    '"elem_type":12,"str_data":["国","有"],"shape":[2]',
    '"elem_type":12,"str_data":["a","b"],"shape":[1]',
    '"elem_type":12,"strData":["a\\ud800"]',
    f'"elem_type":13,"byte_data":"{NPY}"',
    f'"elem_type":13,"byteData":"{NPY}"',
    '"int64_data":[1,2,3],"lod":[0,3],"shape":[ 3 ]',
    '"elem_type":12,"str_data":["a"],"lod":[0,1]',
    # Refused:
    '"elem_type":8,"int_data":[200],"shape":[1]',
    '"elem_type":2,"int_data":[2147483648],"shape":[1]',
    '"elem_type":1,"float_data":[1,"x"],"shape":[2]',
    '"elem_type":3,"float64_data":[1e999],"shape":[1]',
    '"int64_data":[1,2.5],"shape":[2]',
    '"int64_data":[1,[2]],"shape":[2]',
    '"int64_data":[1,true],"shape":[2]',
    '"int64_data":[1,2],"shape":[3]',
    '"int64_data":[1],"lod":[1,2,3],"shape":[1]',
    '"elem_type":9,"bool_data":[1],"shape":[1]',
    '"elem_type":12,"str_data":[1],"shape":[1]',
    '"elem_type":13,"byte_data":"%%"',
    '"elem_type":13,"byte_data":"AAAA"',
    '"elem_type":14,"int64_data":[1]',
    '"int64_data":[1],"shape":[' + ",".join("1" * 17) + "]",
]
MESSAGES = [
    '{"key":["a"],"value":["b"],"tensors":[{"name":"x","int64_data":[1],"shape":[1]}],"logid":"7"}',
    '{"tensors":[null,{"name":"x","int64_data":[1]},{"name":"y","int64_data":[2]}]} and more',
    '{"tensors":[{"name":"x","int64_data":[1]},{"name":"x","int64_data":[2]}]}',
    '{"tensors":[{"name":"\\ud800","int64_data":[NaN]}]}',
    '{"tensors":[1]}',
    '{"tensors":{"int64_data":[1]}}',
]
BODIES = [
    *('{"tensors":[{"name":"x",' + tensor + "}]}" for tensor in TENSORS),
    *MESSAGES,
]
Result = tuple[Any, ...]


@pytest.fixture
def all_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut every array of a body's tensors, and every packed field of a message's."""
    monkeypatch.setattr(json_outline, "_SHORT_BYTES", 1)
    monkeypatch.setattr(message_fields, "SMALL_BYTES", 20)
    monkeypatch.setattr(message_fields, "SHORT_BYTES", 0)
    monkeypatch.setattr(front, "SMALL_BYTES", 0)


def result(parse: Callable[[], dict[str, Any]]) -> Result:
    """What the worker is given, or the refusal, to be compared."""
    try:
        inputs = decode(encode(parse(), allow_pickle=False), allow_pickle=False)
    except ServingError as error:
        return type(error), error.err_no, error.http_status, error.always_status, error.message
    return tuple((name, *described(value)) for name, value in inputs.items())


def described(value: Any) -> tuple[Any, ...]:
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.flags.writeable, value.tolist().__repr__()
    return type(value), value


def same(first: Result, second: Result) -> bool:
    """Whether two results agree; the text of a refusal may differ in the place within the JSON."""
    if first[:1] == (MalformedBody,) and "no valid JSON" in first[-1]:
        return first[:-1] == second[:-1] and "no valid JSON" in second[-1]
    return first == second


def http(body: bytes, *, large: bool) -> Result:
    outline = make_outline(body, LIMITS) if large else None
    return result(lambda: parse_http(body, "test", "prediction", LIMITS, outline=outline).inputs)


@pytest.mark.parametrize("body", BODIES)
def test_a_large_json_body_is_read_as_a_small_one(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = http(body.encode(), large=False)
    monkeypatch.setattr(json_outline, "_SHORT_BYTES", 1)
    monkeypatch.setattr(front, "SMALL_BYTES", 0)
    assert same(expected, http(body.encode(), large=True))


@pytest.mark.parametrize("row", RECORDED, ids=[row["case"] for row in RECORDED])
def test_large_tensors_reach_the_op_as_they_did_in_the_original(
    row: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    if row["request"]["proto"] == "http":
        body = body_of(row)
        expected = http(body, large=False)
        request.getfixturevalue("all_is_large")
        assert same(expected, http(body, large=True))
    else:
        data = base64.b64decode(row["request"]["wire_b64"])
        expected = result(lambda: parse_proto(data, LIMITS).inputs)
        request.getfixturevalue("all_is_large")
        assert expected == result(lambda: parse_proto(data, LIMITS).inputs)


def messages() -> dict[str, bytes]:
    """Messages with packed fields in unusual places."""
    split = RequestMessage(key=["a"], value=["b"], logid=7)
    split.tensors.add(name="x", int64_data=[1, 2], shape=[4], lod=[0, 4])
    inner = (
        split.tensors[0].SerializeToString()
        + split.tensors[0].__class__(int64_data=[3, 4]).SerializeToString()
    )
    unpacked = inner + b"\x08\x05"  # one more element of int64_data, not packed
    broken = inner + b"\x0a\x02\x80\x80"  # a packed field that ends within a number
    rest = RequestMessage(key=["a"], value=["b"], logid=7).SerializeToString()
    plain = RequestMessage()
    for dtype in ("i8", "f4", "i4", "f8", "i2", "f2", "u2", "u1", "i1", "?", "c8", "U1"):
        plain.tensors.append(to_message(dtype, np.arange(6).reshape(2, 3).astype(dtype)))
    wrong_range = RequestMessage()
    wrong_range.tensors.add(name="x", elem_type=8, int_data=[200], shape=[1])
    number = RequestMessage.TENSORS_FIELD_NUMBER << 3 | 2
    return {
        "merged": rest + bytes([number, len(inner)]) + inner,
        "unpacked": rest + bytes([number, len(unpacked)]) + unpacked,
        "broken": rest + bytes([number, len(broken)]) + broken,
        "every type": plain.SerializeToString(),
        "out of range": wrong_range.SerializeToString(),
    }


MESSAGE_CASES = messages()


@pytest.mark.parametrize("case", MESSAGE_CASES)
def test_a_large_message_is_read_as_a_small_one(case: str, request: pytest.FixtureRequest) -> None:
    data = MESSAGE_CASES[case]
    expected = result(lambda: parse_proto(data, LIMITS).inputs)
    request.getfixturevalue("all_is_large")
    actual = result(lambda: parse_proto(data, LIMITS).inputs)
    if case == "broken":
        assert expected[:4] == actual[:4] and actual[0] is MalformedBody
    else:
        assert expected == actual


@pytest.mark.parametrize("body", MESSAGES)
def test_an_app_that_unpacks_messages_gets_the_same_large_message(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def passed_on(outline: Any) -> dict[str, Any]:
        inputs = pass_http_on(body.encode(), "test", "x", LIMITS, outline=outline).inputs
        assert (type(inputs[MESSAGE]) is UnreadMessage) == (outline is not None)
        return inputs

    expected = result(lambda: passed_on(None))
    monkeypatch.setattr(json_outline, "_SHORT_BYTES", 1)
    assert same(expected, result(lambda: passed_on(make_outline(body.encode(), LIMITS))))


@pytest.mark.usefixtures("all_is_large")
def test_an_app_that_unpacks_messages_gets_a_large_message_as_it_is() -> None:
    data = MESSAGE_CASES["merged"]
    request = pass_proto_on(data, LIMITS)
    assert (request.log_id, type(request.inputs[MESSAGE])) == (7, UnreadMessage)
    assert decode(encode(request.inputs, allow_pickle=False), allow_pickle=False) == {MESSAGE: data}
    broken = pass_proto_on(MESSAGE_CASES["broken"], LIMITS)
    with pytest.raises(MalformedBody, match="are no Request"):
        decode(encode(broken.inputs, allow_pickle=False), allow_pickle=False)


def test_the_numbers_of_a_large_request_stay_as_they_were_sent() -> None:
    count = 300_000
    body = json.dumps({"tensors": [{"name": "x", "int64_data": [7] * count, "shape": [count]}]}).encode()
    request = parse_http(body, "test", "x", LIMITS, outline=make_outline(body, LIMITS))
    assert type(request.inputs["x"]) is UnreadTensor and len(request.inputs["x"].data) > count
    message = RequestMessage()
    message.tensors.append(to_message("x", np.full(count, 7)))
    assert type(parse_proto(message.SerializeToString(), LIMITS).inputs["x"]) is UnreadTensor


def test_a_long_text_is_passed_on() -> None:
    text = "国\ud800" * 200_000
    body = json.dumps({"key": ["a", "b"], "value": [text, "short"]}).encode()
    given = parse_http(body, "test", "x", LIMITS, outline=make_outline(body, LIMITS)).inputs
    assert type(given["a"]) is UnreadText and given["b"] == "short"
    replaced = text.replace("\ud800", "\ufffd")
    assert result(lambda: given) == (("a", str, replaced), ("b", str, "short"))
    message = RequestMessage(key=["a"], value=[replaced]).SerializeToString()
    assert result(lambda: parse_proto(message, LIMITS).inputs) == (("a", str, replaced),)
    signature = Signature((TensorSpec("a", "BYTES", (-1, 1)),), (), max_batch_size=8)
    inputs, rows = match_inputs("test", signature, {"a": given["a"]}, LIMITS)
    read = decode(encode(inputs, allow_pickle=False), allow_pickle=False)["a"]
    assert (rows, read.shape, read[0, 0].decode()) == (1, (1, 1), replaced)


def test_many_bytes_that_are_no_utf_8_are_refused_in_a_large_body() -> None:
    small, large = (b'{"key":["a"],"value":["' + b"\xff" * count + b'"]}' for count in (200_000, 300_000))
    assert parse_http(small, "test", "x", LIMITS).inputs == {"a": "\ufffd" * 200_000}
    with pytest.raises(MalformedBody, match="more than 65536 bytes that are no UTF-8"):
        parse_http(large, "test", "x", LIMITS, outline=make_outline(large, LIMITS))


SIGNATURE = Signature(
    (
        TensorSpec("numbers", "INT64", (-1, 2)),
        TensorSpec("words", "BYTES", (-1, 1)),
    ),
    (),
    max_batch_size=8,
)
DECLARED = [
    ('"int64_data":[1,2,3,4],"shape":[2,2]', '"elem_type":12,"str_data":["a","b"],"shape":[2,1]'),
    ('"int64_data":[1,2],"shape":[1,2]', '"elem_type":12,"str_data":["a"]'),
    ('"int64_data":[1,2],"shape":[1,2]', '"elem_type":12,"str_data":["a","b"],"shape":[1]'),
    ('"int64_data":[1,2,3],"shape":[2,2]', '"elem_type":12,"str_data":["a","b"],"shape":[2,1]'),
    ('"int64_data":[1,2],"shape":[2]', '"elem_type":12,"str_data":["a"]'),
    ('"elem_type":2,"int_data":[1,2],"shape":[1,2]', '"elem_type":12,"str_data":["a"]'),
    ('"int64_data":[' + ",".join("1" * 18) + '],"shape":[9,2]', '"elem_type":12,"str_data":["a"]'),
    (
        f'"elem_type":13,"byte_data":"{base64.b64encode(to_npy(np.ones((1, 2), np.int64))).decode()}"',
        f'"elem_type":13,"byte_data":"{base64.b64encode(to_npy(np.array([["ab"]]))).decode()}"',
    ),
    ('"int64_data":[1,2],"shape":[1,2]', '"elem_type":1,"float_data":[1],"shape":[1,1]'),
    ('"int64_data":[1,2],"shape":[1,2]', f'"elem_type":13,"byte_data":"{NPY}"'),
]


@pytest.mark.parametrize(("numbers", "words"), DECLARED)
def test_large_tensors_are_checked_against_what_a_model_declares(
    numbers: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = f'{{"name":"numbers",{numbers}}},{{"name":"words",{words}}}'
    body = f'{{"tensors":[{tensors}]}}'.encode()
    rows = []

    def addressed(*, large: bool) -> dict[str, Any]:
        outline = make_outline(body, LIMITS) if large else None
        given = parse_http(body, "test", "x", LIMITS, outline=outline).inputs
        inputs, count = match_inputs("test", SIGNATURE, given, LIMITS)
        rows.append(count)
        return inputs

    expected = result(lambda: addressed(large=False))
    monkeypatch.setattr(json_outline, "_SHORT_BYTES", 1)
    monkeypatch.setattr(front, "SMALL_BYTES", 0)
    actual = result(lambda: addressed(large=True))
    if expected[0] is BadPackage and "reshape" in expected[-1]:
        assert expected[:4] == actual[:4], "refused by the worker"
    else:
        assert expected == actual
    assert len(set(rows)) <= 1


@pytest.mark.usefixtures("all_is_large")
def test_a_large_tensor_for_a_declared_input_names_all_its_lengths() -> None:
    body = b'{"tensors":[{"name":"numbers","int64_data":[1,2],"shape":[-1,2]}]}'
    given = parse_http(body, "test", "x", LIMITS, outline=make_outline(body, LIMITS)).inputs
    signature = Signature((TensorSpec("numbers", "INT64", (-1, 2)),), (), max_batch_size=8)
    with pytest.raises(BadPackage, match="send all lengths"):
        match_inputs("test", signature, given, LIMITS)
