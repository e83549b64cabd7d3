"""The `Tensor` message in both protocols, held against the recordings of the original."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest

from client.protos.pipeline_service_pb2 import Request as RequestMessage
from pipeline.dialects.key_value.front import parse_http, parse_proto
from pipeline.errors import BadPackage, MalformedBody, TooLarge
from pipeline.front.dag_run import Request
from pipeline.wire.paddle_tensors import add_tensors, to_message, to_npy
from tests.support.key_value_messages import LIMITS, http, refusal
from tests.support.recordings import RECORDINGS, body_of


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
    "dtype", ["i8", "f4", "i4", "f8", "i2", "f2", "u2", "u1", "i1", "?", "c8", "u8", "U1", ">f4"]
)
def test_arrays_of_every_type_come_back_as_they_went(dtype: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype)
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [to_message("x", array)], LIMITS)
    np.testing.assert_array_equal(inputs["x"], array)
    assert inputs["x"].dtype == array.dtype.newbyteorder("=")


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        ('"str_data":["国","有"]', "国有"),
        ('"str_data":["国","有"],"shape":[2]', [["国", "有"], (2,)]),
        ('"str_data":["a","","ccc","d"],"shape":[2,2]', [[["a", ""], ["ccc", "d"]], (2, 2)]),
        ('"str_data":["a","b"],"shape":[1]', "ab"),
        ('"str_data":["a"],"shape":[1]', "a"),
        ('"str_data":[]', ""),
    ],
)
def test_texts_are_joined_unless_the_shape_says_how_they_lie(tensor: str, expected: Any) -> None:
    got = http('{"tensors":[{"name":"x","elem_type":12,' + tensor + "}]}").inputs["x"]
    assert ([got.tolist(), got.shape] if isinstance(got, np.ndarray) else got) == expected


def test_an_array_of_texts_is_bounded_by_the_memory_it_takes() -> None:
    texts = json.dumps(["a" * 600, *[""] * 999])
    tensor = '{"tensors":[{"name":"x","elem_type":12,"shape":[1000],"str_data":' + texts + "}]}"
    with pytest.raises(TooLarge, match="600000 characters; limits"):
        parse_http(tensor.encode(), "test", "x", LIMITS.model_copy(update={"text_chars": 500_000}))


def test_a_text_and_a_list_of_texts_are_answered_as_texts() -> None:
    inputs: dict[str, Any] = {}
    add_tensors(
        inputs, [to_message("text", np.asarray("国足")), to_message("list", np.asarray(["a", ""]))], LIMITS
    )
    assert (inputs["text"], inputs["list"].tolist()) == ("国足", ["a", ""])


def test_a_fortran_ordered_npy_keeps_its_elements_in_place() -> None:
    array = np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3).astype("c8"))
    inputs: dict[str, Any] = {}
    add_tensors(inputs, [to_message("x", array)], LIMITS)
    np.testing.assert_array_equal(inputs["x"], array)
    assert inputs["x"].flags.c_contiguous
