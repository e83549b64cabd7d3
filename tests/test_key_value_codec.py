"""Key/value messages and answers, held against the recordings of the original."""

from __future__ import annotations

import base64
import json
import math
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from client.protos.pipeline_service_pb2 import Response
from pipeline.answers import print_as_numpy_1, render, render_error
from pipeline.config import Limits
from pipeline.errors import BadPackage, MalformedBody, ProductError, ServingError, TooLarge, UnprintableAnswer
from pipeline.request import AnswerForm, Request
from pipeline.server.codecs.key_value import parse_http, parse_proto
from pipeline.server.codecs.key_value_json import Body, decode_leniently
from pipeline.tensors import add_tensors, to_message, to_npy

LIMITS = Limits()
RECORDINGS = [
    json.loads(line)
    for line in (Path(__file__).parent / "fixtures" / "paddle_serving.jsonl").read_text().splitlines()
]
EXAMPLE = '{"key": ["0"], "value": ["..."]}'


def recorded(case: str) -> dict[str, Any]:
    return next(row for row in RECORDINGS if row["case"] == case)


def http(body: bytes | str, limits: Limits = LIMITS) -> Request:
    return parse_http(body if isinstance(body, bytes) else body.encode(), "bert", "prediction", limits)


def refusal(body: bytes | str, limits: Limits = LIMITS) -> ServingError:
    with pytest.raises(ServingError) as caught:
        http(body, limits)
    assert caught.value.message.endswith(f". A valid message: {EXAMPLE}")
    return caught.value


def body_of(recording: dict[str, Any]) -> bytes:
    request = recording["request"]
    return base64.b64decode(request["body_b64"]) if "body_b64" in request else request["body"].encode()


# Reading ---------------------------------------------------------------------------------------------

READ_BY_THE_CODEC = [
    row
    for row in RECORDINGS
    if row["request"].get("method") == "POST"
    and row["request"]["path"] == "/bert/prediction"
    and ("body_b64" in row["request"] or row["request"].get("body") is not None)
    and not {"Content-Encoding", "Grpc-Timeout", "X-HTTP-Method-Override"} & set(row["request"]["headers"])
]
NOTHING_GIVEN = {
    "empty_body",
    "empty_object",
    "null_body",
}  # reached the Op there; here they are told what to send


@pytest.mark.parametrize("row", READ_BY_THE_CODEC, ids=[row["case"] for row in READ_BY_THE_CODEC])
def test_what_the_gateway_accepted_is_accepted_and_what_it_refused_is_refused(row: dict[str, Any]) -> None:
    answer = json.loads(row["response"]["body"]) if row["response"]["status"] == 200 else {"err_no": None}
    if row["response"]["status"] == 400:
        error = refusal(body_of(row))
        assert (type(error), error.http_status, error.always_status) == (MalformedBody, 400, True)
    elif answer["err_no"] == 8000 or row["case"] in NOTHING_GIVEN:
        error = refusal(body_of(row))
        assert (type(error), error.err_no, error.always_status) == (BadPackage, 8000, False)
        assert (
            error.message.startswith(answer["err_msg"].split(" in tensor")[0]) or row["case"] in NOTHING_GIVEN
        )
    else:
        assert row["response"]["status"] == 200
        assert http(body_of(row)).service == "bert"


def test_a_request_is_read_in_full() -> None:
    request = http(
        '{"key":["0","pipeline.profile"],"value":["体育","1"],"logid":"7","clientip":"1.2.3.4","name":"x"}'
    )
    assert (request.service, request.method) == ("bert", "prediction")
    assert request.inputs == {"0": "体育", "pipeline.profile": "1"}
    assert (request.log_id, request.client_ip, request.profile) == (7, "1.2.3.4", True)
    assert (request.form, request.deadline) == (AnswerForm.JSON, math.inf)


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ('{"key":["0"],"value":["a","b"]}', {"0": "a"}),
        ('{"key":["0","0"],"value":["a","b"]}', {"0": "b"}),
        ('{"key":["0"],"value":[null]}', {"0": ""}),
        ('{"key":[],"value":[]}', {}),
        ('{"value":["a"]}', {}),
        ('{"key":["0"],"value":["a"],"foo":{"bar":[1e999]}}', {"0": "a"}),
        ('{"key":["0"],"value":["a"]} {"key":', {"0": "a"}),
        ('{"key":["x"],"key":["0"],"value":["a"]}', {"0": "a"}),
        ('{"key":["0"],"value":["\\ud800\\ud83d\\ude00"]}', {"0": "\ufffd😀"}),
        (b'{"key":["0"],"value":["\xe4\xb8\xff"]}', {"0": "\ufffd\ufffd\ufffd"}),
    ],
    ids=["more-values", "key-twice", "null", "empty-lists", "no-key", "unknown", "trailing", "field-twice",
         "lone-surrogate", "bytes-no-utf8"],
)  # fmt: skip
def test_leniency_keeps_the_meaning(body: bytes | str, inputs: dict[str, str]) -> None:
    assert http(body).inputs == inputs


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"text": "体育"}', "the body has neither 'key', 'value' nor 'tensors'"),
        ("", "the body has neither 'key', 'value' nor 'tensors'"),
        ('{"key":["0","1"],"value":["a"]}', "'key' has 2 elements and 'value' 1"),
        ('{"key":["0"],"value":["x"', "no valid JSON: Expecting ',' delimiter at line 1, column 26"),
        ('{"key":\n["0"] x}', "no valid JSON: Expecting ',' delimiter at line 2, column 7"),
        (
            '{"key":["0"],"value":["a\nb"]}',
            "no valid JSON: Invalid control character at at line 1, column 25",
        ),
        ('{"key":["0"],"value":[NaN]}', "no valid JSON: NaN is no JSON"),
        ("\ufeff{}", "starts with a byte order mark"),
        ("[1]", "the body is a list"),
        ('{"key":"0"}', "'key': Expected `array | null`, got `str`"),
        ('{"key":["0"],"value":[{"a":1}]}', "'value[0]': Expected `str | null`, got `object`"),
        ('{"key":["0"],"value":["a"],"logid":1.5}', "'logid': Expected `int | str | null`, got `float`"),
        ('{"key":["0"],"value":["a"],"logid":"abc"}', "'logid': 'abc' is no integer"),
        (
            '{"key":["0"],"value":["a"],"logid":9223372036854775808}',
            "'logid': 9223372036854775808 is outside",
        ),
        ('{"key":["0"],"value":["a"],"logid":' + "9" * 10_000 + "}", "'logid': "),
    ],
)
def test_a_refusal_names_the_field_and_shows_a_valid_body(body: str, told: str) -> None:
    assert told in refusal(body).message


@pytest.mark.parametrize("levels", [33, 200_000])
def test_nesting_beyond_the_limit_is_refused(levels: int) -> None:
    nested = "[" * (levels - 1) + "]" * (levels - 1)
    error = refusal('{"key":["0"],"value":["a"],"foo":' + nested + "}")
    assert isinstance(error, TooLarge)
    assert f"nests {levels} levels deep; limits.json_depth is 32" in error.message


def test_brackets_in_texts_are_no_nesting() -> None:
    text = '[{"\\' * 1000
    assert http(json.dumps({"key": ["0"], "value": [text]})).inputs == {"0": text}
    assert http('{"foo":' + "[" * 31 + "]" * 31 + ',"key":["0"],"value":["a"]}').inputs == {"0": "a"}


def test_a_text_over_the_limit_is_refused_by_its_key() -> None:
    limits = Limits(text_chars=5)
    assert http('{"key":["0"],"value":["五个字符呀"]}', limits).inputs == {"0": "五个字符呀"}
    error = refusal('{"key":["0"],"value":["六个字符了呀"]}', limits)
    assert (type(error), error.err_no, error.http_status) == (TooLarge, 5000, 413)
    assert "the value of key '0' has 6 characters; limits.text_chars is 5" in error.message


@pytest.mark.parametrize(
    "body",
    [
        '{"key":["0",null],"value":["体育","\\u4f53\\n"],"logid":"-7","clientip":null,"name":"a","foo":[{}]}',
        '{"tensors":[{"name":"x","elemType":"1","floatData":[1,"NaN",2.5e3],"shape":[3],"lod":[0,3]}]}',
        '{"tensors":[null,{"str_data":["a",null],"elem_type":12,"int64_data":["1",2]}]}',
    ],
)
def test_the_fast_and_the_exact_reading_agree(body: str) -> None:
    assert msgspec.json.decode(body, type=Body) == decode_leniently(body.encode())


# Tensors ---------------------------------------------------------------------------------------------


def types_as_the_probe_app_prints_them(inputs: dict[str, Any]) -> dict[str, str]:
    with np.printoptions(legacy="1.25"):
        return {
            k: f"{type(v).__name__}|{getattr(v, 'dtype', '')}|{getattr(v, 'shape', '')}|{v}"
            for k, v in inputs.items()
        }


TENSOR_CASES = [
    row
    for row in RECORDINGS
    if "tensor" in row["case"] and row["app"].startswith("probe")
]  # fmt: skip


@pytest.mark.parametrize("row", TENSOR_CASES, ids=[row["case"] for row in TENSOR_CASES])
def test_tensors_reach_the_op_as_they_did_in_the_original(row: dict[str, Any]) -> None:
    def read() -> Request:
        if row["request"]["proto"] == "http":
            return http(body_of(row))
        return parse_proto(base64.b64decode(row["request"]["wire_b64"]), LIMITS)

    response = row["response"]
    if response.get("status") == 400:
        with pytest.raises(
            MalformedBody, match="'float_data' of tensor 'x' holds a number too large for float32"
        ):
            read()
        return
    answer = response["message"] if "message" in response else json.loads(response["body"])
    if answer["err_no"]:
        with pytest.raises(BadPackage) as caught:
            read()
        assert caught.value.err_no == answer["err_no"]
        return
    seen = types_as_the_probe_app_prints_them(read().inputs)
    assert seen == dict(zip(answer["key"], answer["value"], strict=True))


@pytest.mark.parametrize(
    ("tensor", "told"),
    [
        (
            '"elem_type":8,"int_data":[200],"shape":[1]',
            "int_data of tensor 'x' reaches from 200 to 200; int8 holds",
        ),
        (
            '"elem_type":2,"int_data":[2147483648],"shape":[1]',
            "'int_data' of tensor 'x': 2147483648 is outside",
        ),
        (
            '"elem_type":7,"uint32_data":[-1],"shape":[1]',
            "'uint32_data' of tensor 'x': -1 is outside 0 to 4294967295",
        ),
        ('"elem_type":1,"float_data":[1,"x"],"shape":[2]', "'float_data' of tensor 'x': 'x' is no number"),
        ('"elem_type":3,"float64_data":[1e999],"shape":[1]', "holds a number too large for float64"),
        ('"elem_type":3,"float64_data":["1e999"],"shape":[1]', "holds a number too large for float64"),
        (
            '"elem_type":0,"int64_data":[1],"shape":[4294967295]',
            "'shape' of tensor 'x': 4294967295 is outside",
        ),
        ('"elem_type":0,"int64_data":[1],"lod":[1,2,3],"shape":[1]', "the lod of tensor 'x'"),
        ('"elem_type":13,"byte_data":"%%"', "'byte_data' of tensor 'x' is no base64"),
        ('"elem_type":13,"byte_data":"AAAA"', "byte_data of tensor 'x' is no npy file"),
        ('"elem_type":14', "elem_type:14 error in tensor 'x'; 0 to 13 exist"),
    ],
)
def test_a_tensor_that_can_not_be_is_refused_by_its_name(tensor: str, told: str) -> None:
    assert told in refusal('{"tensors":[{"name":"x",' + tensor + "}]}").message


def test_a_tensor_of_too_many_dimensions_is_too_large() -> None:
    tensor = '{"tensors":[{"name":"x","int64_data":[1],"shape":[' + ",".join("1" * 17) + "]}]}"
    assert isinstance(refusal(tensor), TooLarge)
    npy = base64.b64encode(to_npy(np.zeros((1,) * 17))).decode()
    assert isinstance(
        refusal('{"tensors":[{"name":"x","elem_type":13,"byte_data":"' + npy + '"}]}'), TooLarge
    )


def npy_header(header: str) -> bytes:
    padded = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(padded).to_bytes(2, "little") + padded.encode()


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }"),
            "0 bytes do not fill",
        ),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, -1), }") + b"1234",
            "do not fill",
        ),
        (
            npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0, 10000000000000000000000), }"),
            "reshape",
        ),
        (npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }") + b"(lp0\n.", "dtype object"),
        (
            npy_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }") + b"1234",
            "isn't accepted",
        ),
        (npy_header("__import__('os').getpid()"), "is no npy file"),
        (b"\x80\x04K\x01.", "is no npy file"),
        (b"", "is no npy file"),
    ],
    ids=["more-than-there-is", "negative", "overflow", "objects", "structured", "code", "pickle", "empty"],
)
def test_an_npy_file_is_judged_by_its_header_and_never_unpickled(data: bytes, told: str) -> None:
    message = RequestMessage()
    message.tensors.add(name="x", elem_type=13, byte_data=data)
    with pytest.raises(BadPackage) as caught:
        parse_proto(message.SerializeToString(), LIMITS)
    assert told in caught.value.message


@pytest.mark.parametrize(
    "dtype", ["i8", "f4", "i4", "f8", "i2", "f2", "u2", "u1", "i1", "?", "c8", "u8", "U3", ">f4"]
)
def test_arrays_of_every_type_come_back_as_they_went(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [to_message("x", array)], LIMITS)
    np.testing.assert_array_equal(inputs["x"], array)
    assert inputs["x"].dtype == array.dtype.newbyteorder("=")


def test_a_fortran_ordered_npy_keeps_its_elements_in_place() -> None:
    array = np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3).astype("c8"))
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [to_message("x", array)], LIMITS)
    np.testing.assert_array_equal(inputs["x"], array)
    assert inputs["x"].flags.c_contiguous


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(MalformedBody, match="the 3 bytes are no Request of baidu"):
        parse_proto(b"\xff\xff\xff", LIMITS)


def test_a_message_without_content_is_told_what_to_send() -> None:
    with pytest.raises(BadPackage, match="neither key, value nor tensors"):
        parse_proto(b"", LIMITS)


# Answers ---------------------------------------------------------------------------------------------

# What the probe app's Op returned for each recorded case.
ANSWERS: dict[str, Any] = {
    "f32": {"a": np.arange(4, dtype="float32") / 3},
    "f64": {"a": np.arange(4, dtype="float64") / 3},
    "f16": {"a": np.arange(4).astype("float16")},
    "i64": {"a": np.arange(4)},
    "i32": {"a": np.arange(4, dtype="int32")},
    "u8": {"a": np.arange(4, dtype="uint8")},
    "bool": {"a": np.array([True, False])},
    "npstr": {"a": np.array(["x", "中文"])},
    "bytes": {"a": np.array([b"ab"])},
    "obj": {"a": np.array([{"k": 1}, None], dtype=object)},
    "zerod": {"a": np.array(3.5)},
    "npscalar": {"a": np.float32(3.5)},
    "empty": {"a": np.zeros((0, 3), "float32")},
    "nan": {"a": np.array([np.nan, np.inf, -np.inf])},
    "big": {"a": np.arange(3000, dtype="float32").reshape(3, 1000)},
    "d3": {"a": np.zeros((2, 2, 2), "float32")},
    "sci": {"a": np.array([1e-8, 1e8, 1.0], "float32")},
    "two": {"b": np.array([1]), "a": np.array([2])},
    "str": {"a": 'hello 中文 <&>\u2028"q"'},
    "str2": {"b": "1", "a": "2"},
    "strempty": {"a": ""},
    "liststr": {"a": ["x", "中文", "it's"]},
    "listint": {"a": [1, 2]},
    "listnd": {"a": [np.array([1])]},
    "int": {"a": 1},
    "float": {"a": 1.5},
    "none": {"a": None},
    "dict": {"a": {"b": 1}},
    "boolpy": {"a": True},
    "bytespy": {"a": b"x"},
    "mixed": {"a": np.array([1]), "b": "s"},
    "mixed2": {"b": "s", "a": np.array([1])},
    "emptydict": {},
    "intkey": {1: "x"},
    "intkey_nd": {1: np.array([1])},
    "tuple": {"a": ("x",)},
    "complex": {"a": np.array([1 + 2j])},
    "lod": {"a": np.arange(3), "a.lod": np.array([0, 3])},
}


@pytest.mark.parametrize("case", ANSWERS)
def test_an_answer_is_printed_as_the_original_printed_it(case: str) -> None:
    response = recorded(case)["response"]
    if case == "big":  # the recording keeps its head and its length
        body = render(ANSWERS[case], AnswerForm.JSON).decode()
        assert len(body.encode()) == response["body_len"]
        assert body.startswith(response["body"].removesuffix("...TRUNCATED"))
        return
    expected = json.loads(response["body"])
    if expected["err_no"]:
        with pytest.raises(UnprintableAnswer) as caught:
            render(ANSWERS[case], AnswerForm.JSON)
        assert caught.value.err_no == expected["err_no"]
        assert caught.value.message.startswith(expected["err_msg"])
        return
    assert json.loads(render(ANSWERS[case], AnswerForm.JSON)) == expected
    message = Response.FromString(render(ANSWERS[case], AnswerForm.PROTO))
    assert [list(message.key), list(message.value)] == [expected["key"], expected["value"]]


def test_scalars_inside_lists_and_object_arrays_print_without_their_type() -> None:
    outputs = {"a": np.array([np.float32(0.5), [np.int64(1)]], dtype=object), "b": ["x", np.float32(0.25)]}
    assert json.loads(render(outputs, AnswerForm.JSON))["value"] == [
        "array([0.5, list([1])], dtype=object)",
        "['x', 0.25]",
    ]


def test_print_options_of_the_app_neither_reach_an_answer_nor_change_by_it() -> None:
    with np.printoptions(precision=1, threshold=2):
        before = np.get_printoptions()
        body = render({"a": np.full(3, 1 / 3)}, AnswerForm.JSON)
        assert np.get_printoptions() == before
    assert json.loads(body)["value"] == ["array([0.33333333, 0.33333333, 0.33333333])"]


def test_hooks_print_as_under_numpy_1_in_the_thread_that_asked_for_it() -> None:
    printed: list[str] = []

    def hook() -> None:
        printed.append(str([np.float32(0.5)]))
        print_as_numpy_1()
        printed.append(str([np.float32(0.5)]))

    thread = threading.Thread(target=hook)
    thread.start()
    thread.join()
    assert printed == ["[np.float32(0.5)]", "[0.5]"]


@pytest.mark.parametrize("form", AnswerForm)
def test_text_that_is_no_unicode_can_not_be_sent(form: AnswerForm) -> None:
    with pytest.raises(UnprintableAnswer, match=r"rpc package error: .* surrogates not allowed") as caught:
        render({"a": "\ud800"}, form)
    assert caught.value.err_no == 8000


def test_a_refusal_carries_number_and_message_in_both_forms() -> None:
    error = ProductError("看不懂\ud800", err_no=51)
    expected = {"err_no": 51, "err_msg": "看不懂?", "key": [], "value": [], "tensors": []}
    assert json.loads(render_error(error, AnswerForm.JSON)) == expected
    message = Response.FromString(render_error((51, "看不懂"), AnswerForm.PROTO))
    assert (message.err_no, message.err_msg) == (51, "看不懂")


def test_a_number_that_no_message_holds_is_told_in_the_text() -> None:
    message = Response.FromString(render_error((1 << 40, "why"), AnswerForm.PROTO))
    assert (message.err_no, message.err_msg) == (10000, "why (err_no 1099511627776)")
