"""Table of element types: names and numbers in KServe v2, ONNX, .pdmodel and Paddle Serving."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Dtype(NamedTuple):
    """An element type of tensors."""

    name: str  # in `Variable.dtype`: NumPy's name, or "bfloat16" or "string"
    datatype: str  # KServe v2's name
    numpy: np.dtype[Any]  # of its arrays: bfloat16 as uint16 bits, string as object
    onnx: int  # number in an ONNX file (TensorProto.DataType)
    program: int | None  # number in a .pdmodel (VarType.Type); None: such variables can't be served
    paddle: int | None  # number in a prototxt and in Paddle Serving's Tensor; None: none there


# Texts in Paddle Serving's Tensor have the additional numbers 12 and 13.
DTYPES = (
    Dtype("bool", "BOOL", np.dtype(np.bool_), 9, 0, 9),
    Dtype("uint8", "UINT8", np.dtype(np.uint8), 2, 20, 7),
    Dtype("uint16", "UINT16", np.dtype(np.uint16), 4, None, None),
    Dtype("uint32", "UINT32", np.dtype(np.uint32), 12, None, None),
    Dtype("uint64", "UINT64", np.dtype(np.uint64), 13, None, None),
    Dtype("int8", "INT8", np.dtype(np.int8), 3, 21, 8),
    Dtype("int16", "INT16", np.dtype(np.int16), 5, 1, 4),
    Dtype("int32", "INT32", np.dtype(np.int32), 6, 2, 2),
    Dtype("int64", "INT64", np.dtype(np.int64), 7, 3, 0),
    Dtype("float16", "FP16", np.dtype(np.float16), 10, 4, 5),
    Dtype("bfloat16", "BF16", np.dtype(np.uint16), 16, 22, 6),
    Dtype("float32", "FP32", np.dtype(np.float32), 1, 5, 1),
    Dtype("float64", "FP64", np.dtype(np.float64), 11, 6, 3),
    Dtype("string", "BYTES", np.dtype(np.object_), 8, None, 20),
)
BY_NAME = {dtype.name: dtype for dtype in DTYPES}
BY_DATATYPE = {dtype.datatype: dtype for dtype in DTYPES}
BY_ONNX = {dtype.onnx: dtype for dtype in DTYPES}
BY_PROGRAM = {dtype.program: dtype for dtype in DTYPES if dtype.program is not None}
BY_PADDLE = dict(sorted((dtype.paddle, dtype) for dtype in DTYPES if dtype.paddle is not None))

RAW_ALONE = ("FP16", "BF16")  # datatypes that KServe v2 only sends as raw bytes
