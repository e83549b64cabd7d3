"""The table of dtypes, and the clients' own copy of its part."""

from __future__ import annotations

from client.pipeline_client import ENCODINGS
from pipeline.models.tensor_spec import (
    BY_DATATYPE,
    BY_NAME,
    BY_ONNX,
    BY_PADDLE,
    BY_PROGRAM,
    DTYPES,
    RAW_ALONE,
)
from pipeline.wire.paddle_tensors import NUMERIC


def test_no_name_or_number_stands_for_two_dtypes() -> None:
    assert len(BY_NAME) == len(BY_DATATYPE) == len(BY_ONNX) == len(DTYPES)
    assert len(BY_PADDLE) == sum(dtype.paddle is not None for dtype in DTYPES)
    assert len(BY_PROGRAM) == sum(dtype.program is not None for dtype in DTYPES)
    assert set(RAW_ALONE) < BY_DATATYPE.keys()


def test_arrays_have_the_dtype_of_the_same_name_but_for_texts_and_the_bits_of_bfloat16() -> None:
    others = {dtype.name: dtype.numpy.name for dtype in DTYPES if dtype.numpy.name != dtype.name}
    assert others == {"bfloat16": "uint16", "string": "object"}


def test_numbers_of_a_program_are_those_of_paddle() -> None:
    from paddle.base.proto import framework_pb2  # here: importing Paddle takes seconds

    names = {number: framework_pb2.VarType.Type.Name(number) for number in BY_PROGRAM}
    assert names == {number: dtype.datatype for number, dtype in BY_PROGRAM.items()}


def test_clients_send_the_numbers_and_fields_that_the_service_reads() -> None:
    read = {dtype.name: (number, field) for number, (field, dtype) in NUMERIC.items()}
    assert read == ENCODINGS
