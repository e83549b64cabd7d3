"""The element types of tensors: their names and numbers in every format that has tensors, in one table."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Dtype(NamedTuple):
    """One element type."""

    name: str  # in `Variable.dtype`: NumPy's name, or "bfloat16" or "string"
    datatype: str  # KServe v2's name; Paddle's programs call numbers by the same (VarType)
    numpy: np.dtype[Any]  # of its arrays: bfloat16 travels as the uint16 of its bits, a string as an object
    onnx: int  # its number in an ONNX file (TensorProto.DataType)
    paddle: int | None  # its number in a prototxt and in Paddle Serving's Tensor; None: it has none there


# Paddle Serving's Tensor has texts under numbers of its own, 12 and 13.
DTYPES = (
    Dtype("bool", "BOOL", np.dtype(np.bool_), 9, 9),
    Dtype("uint8", "UINT8", np.dtype(np.uint8), 2, 7),
    Dtype("uint16", "UINT16", np.dtype(np.uint16), 4, None),
    Dtype("uint32", "UINT32", np.dtype(np.uint32), 12, None),
    Dtype("uint64", "UINT64", np.dtype(np.uint64), 13, None),
    Dtype("int8", "INT8", np.dtype(np.int8), 3, 8),
    Dtype("int16", "INT16", np.dtype(np.int16), 5, 4),
    Dtype("int32", "INT32", np.dtype(np.int32), 6, 2),
    Dtype("int64", "INT64", np.dtype(np.int64), 7, 0),
    Dtype("float16", "FP16", np.dtype(np.float16), 10, 5),
    Dtype("bfloat16", "BF16", np.dtype(np.uint16), 16, 6),
    Dtype("float32", "FP32", np.dtype(np.float32), 1, 1),
    Dtype("float64", "FP64", np.dtype(np.float64), 11, 3),
    Dtype("string", "BYTES", np.dtype(np.object_), 8, 20),
)
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
BY_DATATYPE = {dtype.datatype: dtype for dtype in DTYPES}
BY_ONNX = {dtype.onnx: dtype for dtype in DTYPES}
BY_PADDLE = dict(sorted((dtype.paddle, dtype) for dtype in DTYPES if dtype.paddle is not None))

RAW_ALONE = ("FP16", "BF16")  # datatypes that KServe v2 has neither as JSON nor as typed contents
