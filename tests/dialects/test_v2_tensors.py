"""KServe v2 tensors to arrays and back."""

from __future__ import annotations

import numpy as np
import pytest

from client.protos.kserve_v2_pb2 import InferTensorContents
from pipeline.models.tensor_spec import BY_DATATYPE
from pipeline.wire.v2_tensors import CONTENTS, from_contents, from_raw, to_raw

TYPED = [datatype for datatype in CONTENTS if datatype != "BYTES"]


@pytest.mark.parametrize("datatype", [datatype for datatype in BY_DATATYPE if datatype != "BYTES"])
def test_numbers_come_back_raw(datatype: str) -> None:
    array = from_raw(to_raw(_numbers(datatype)), datatype, [2, 2])
    np.testing.assert_array_equal(array, _numbers(datatype), strict=True)


@pytest.mark.parametrize("datatype", TYPED)
def test_numbers_come_back_as_typed_contents(datatype: str) -> None:
    contents = InferTensorContents(**{CONTENTS[datatype]: _numbers(datatype).ravel().tolist()})
    np.testing.assert_array_equal(from_contents(contents, datatype, [2, 2]), _numbers(datatype), strict=True)


def _numbers(datatype: str) -> np.ndarray:
    name = BY_DATATYPE[datatype].name
    return np.array([[1, 0], [2, 3]]).astype("uint16" if name == "bfloat16" else name)


def test_raw_numbers_are_little_endian_and_row_major() -> None:
    big = np.array([[1, 2], [3, 4]], ">i4").T
    assert to_raw(big) == bytes([1, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 4, 0, 0, 0])


def test_elements_of_bytes_follow_their_length() -> None:
    raw = to_raw(np.array(["é", b"\x00\xff", ""], object))
    assert raw == b"\x02\x00\x00\x00\xc3\xa9\x02\x00\x00\x00\x00\xff\x00\x00\x00\x00"
    assert from_raw(raw, "BYTES", [3, 1]).tolist() == [["é".encode()], [b"\x00\xff"], [b""]]
    contents = InferTensorContents(bytes_contents=[b"a", b"b"])
    assert from_contents(contents, "BYTES", [2]).tolist() == [b"a", b"b"]


@pytest.mark.parametrize(
    ("data", "datatype", "shape", "told"),
    [
        (b"1234567", "FP32", [2], "7 bytes do not fill FP32"),
        (b"", "FP32", [1 << 62, 1 << 62], "0 bytes do not fill FP32"),
        (b"", "FP32", [-1], "negative length"),
        (b"", "FP8", [0], "'FP8' is not one of BOOL"),
        (b"\x05\x00\x00\x00abc", "BYTES", [1], "do not hold 1 elements"),
        (b"\x01\x00\x00\x00ab", "BYTES", [1], "do not hold 1 elements"),
        (b"\xff\xff\xff\xff", "BYTES", [2], "do not hold 2 elements"),
        (b"", "BYTES", [1 << 40], "do not hold"),
    ],
)
def test_bytes_that_do_not_fill_the_shape_are_refused(
    data: bytes, datatype: str, shape: list[int], told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        from_raw(data, datatype, shape)


@pytest.mark.parametrize(
    ("contents", "datatype", "told"),
    [
        ({"fp32_contents": [1.0]}, "FP32", "1 elements in fp32_contents do not fill"),
        ({"fp32_contents": [1.0, 2.0]}, "INT32", "0 elements in int_contents"),
        ({"int_contents": [1, 300]}, "INT8", "int_contents reaches from 1 to 300, beyond INT8"),
        ({}, "FP16", "it travels raw"),
    ],
)
def test_contents_that_do_not_fill_the_shape_are_refused(
    contents: dict[str, list[float]], datatype: str, told: str
) -> None:
    with pytest.raises(ValueError, match=told):
        from_contents(InferTensorContents(**contents), datatype, [2])


def test_what_is_no_text_is_no_element_of_bytes() -> None:
    with pytest.raises(ValueError, match="holds a float"):
        to_raw(np.array([b"a", 1.5], object))
